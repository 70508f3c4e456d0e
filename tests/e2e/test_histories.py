"""Random histories on real servers: edits, kills and cut-short commands, then one undisturbed apply.

`tests/property/test_histories.py` goes through many more of them on a host in memory.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import tritonclient.http as triton_http
from ctl_host import Host, ended, infer_http, partition, plan

from controlplane.files.waiting import wait_until

pytestmark = pytest.mark.e2e

NAMES = "ab"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with ended(Host(tmp_path_factory.mktemp("h"), f"his{os.getpid()}x{time.monotonic_ns() % 10**6}")) as here:
        first = here.apply(plan(*(partition(name, 20) for name in NAMES)))
        assert first.returncode == 0, first.stderr
        yield here


def some_plan(chance: random.Random) -> dict[str, Any]:
    parts = [partition(n, chance.choice([20, 25]), shadow=chance.random() < 0.7) for n in NAMES]
    for part in parts:
        part["workloads"][0]["slo_ms"] = chance.choice([1500, 2000])
        part["workloads"][0]["rate_rps"] = chance.choice([80, 100])
    return plan(*(parts if chance.random() < 0.7 else parts[:1]))


def kill_server(host: Host, chance: random.Random) -> None:
    tritons = []
    for process in psutil.process_iter(["name", "environ"]):
        environ = process.info["environ"] or {}
        if environ.get("TRISECT_FLEET") == host.fleet and process.info["name"] == "tritonserver":
            tritons.append((environ["TRISECT_NAME"], process))
    if tritons:
        chance.choice(sorted(tritons, key=lambda one: one[0]))[1].kill()


def kill_gateway(host: Host, chance: random.Random) -> None:
    """HAProxy, as it dies by itself: its supervisor starts it again."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "haproxy" and str(host.directory) in " ".join(
            process.info["cmdline"] or ()
        ):
            process.kill()


def cut_short(host: Host, chance: random.Random) -> None:
    command = host.command(*host.apply_command(some_plan(chance), "--rename-endpoints", ports=False))
    apply = subprocess.Popen(
        command,
        cwd=host.directory,
        env=host.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        apply.wait(timeout=chance.uniform(0.5, 6.0))
    except subprocess.TimeoutExpired:
        apply.send_signal(signal.SIGKILL)
        apply.wait()


HAPPENS = {
    "edit": lambda host, chance: host.apply(some_plan(chance), "--rename-endpoints", ports=False),
    "cut short": cut_short,
    "rollback": lambda host, chance: host.ctl("rollback", "--yes"),
    "redirect": lambda host, chance: host.ctl("redirect", chance.choice(NAMES)),
    "kill server": kill_server,
    "kill another": kill_server,
    "kill controller": lambda host, chance: host.kill_controller(),
    "kill gateway": kill_gateway,
}


def converges(host: Host, seed: int, length: int = 4) -> None:
    chance = random.Random(seed)
    history = [chance.choice(sorted(HAPPENS)) for _ in range(length)]
    for what in history:
        HAPPENS[what](host, chance)
    last = some_plan(chance)
    done = host.apply(last, "--as-planned", "--rename-endpoints", ports=False)
    assert done.returncode == 0, (seed, history, done.stderr)
    wanted = sorted(
        (part["id"], float(percent), "running")
        for part in last["gpus"][0]["partitions"]
        for percent in (part["percent"], *([part["shadow"]["percent"]] if part["shadow"] else []))
    )
    found: list[Any] = []

    def as_planned() -> bool:
        status = json.loads(host.ctl("status", "--json").stdout)
        found[:] = sorted((s["partition"], s["percent"], s["state"]) for s in status["servers"])
        return found == wanted and status["controller"] is not None

    # What a controller was starting when the apply began is ended once it has started.
    assert wait_until(as_planned, deadline_s=60.0, interval_s=0.5), (seed, history, found, wanted)
    client = triton_http.InferenceServerClient(f"127.0.0.1:{host.http}")
    for part in last["gpus"][0]["partitions"]:
        infer_http(client, part["id"])
    again = host.apply(last, "--as-planned", ports=False)
    assert (again.returncode, again.stdout.strip()) == (0, "nothing to do"), (seed, history, again.stderr)


def test_a_history_on_real_servers_ends_in_the_planned_fleet(host: Host) -> None:
    """The gateway and a server are killed, then an apply."""
    converges(host, seed=5, length=3)


def test_a_rollback_leaves_a_controller(host: Host) -> None:
    slower = partition("a", 20) | {"workloads": [partition("a", 20)["workloads"][0] | {"slo_ms": 3000}]}
    assert host.apply(plan(slower, partition("b", 20)), ports=False).returncode == 0
    host.kill_controller()
    back = host.ctl("rollback", "--yes")
    assert back.returncode == 0, back.stderr
    assert json.loads(host.ctl("status", "--json").stdout)["controller"] is not None


def test_a_dry_run_and_another_launcher_render_nothing(host: Host) -> None:
    before = sorted(host.directory.glob("rendered/*/*/*"))
    other = plan(partition("a", 20) | {"models": [{"model": "echo", "batch": 2}]})
    shown = host.apply(other, "--dry-run", ports=False)
    assert (shown.returncode, "start " in shown.stdout) == (0, True), shown.stderr
    refused = host.apply(other, "--launcher", "docker", ports=False)
    assert refused.returncode == 2
    assert f"--launcher: fleet '{host.fleet}' runs with process" in refused.stderr
    assert sorted(host.directory.glob("rendered/*/*/*")) == before


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_histories_on_real_servers_end_in_the_planned_fleet(host: Host, seed: int) -> None:
    converges(host, seed)

"""Random histories on real servers: edits, kills and cut-short commands, then one undisturbed apply.

`tests/property/test_histories.py` goes through many more of them on a host in memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.http as triton_http
from ctl_fleet import Ctl, infer_http, partition, plan

from controlplane.files.waiting import wait_until

NAMES = "ab"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctl]:
    with Ctl(tmp_path_factory.mktemp("h"), "his") as here:
        here.apply(plan(*(partition(name, 20) for name in NAMES)))
        yield here


def some_plan(chance: random.Random) -> dict[str, Any]:
    parts = [partition(n, chance.choice([20, 25]), shadow=chance.random() < 0.7) for n in NAMES]
    for part in parts:
        part["workloads"][0]["slo_ms"] = chance.choice([1500, 2000])
        part["workloads"][0]["rate_rps"] = chance.choice([80, 100])
    return plan(*(parts if chance.random() < 0.7 else parts[:1]))


def kill_server(host: Ctl, chance: random.Random) -> None:
    mine = host.processes(TRISECT_FLEET=host.fleet)
    tritons = [p for p in mine if p.info["name"] == "tritonserver"]
    if tritons:
        chance.choice(sorted(tritons, key=lambda one: str(one.info["environ"]["TRISECT_NAME"]))).kill()


def kill_gateway(host: Ctl, chance: random.Random) -> None:
    """HAProxy, as it dies by itself: its supervisor starts it again."""
    for process in host.all_processes():
        if process.name() == "haproxy":
            process.kill()


def cut_short(host: Ctl, chance: random.Random) -> None:
    host.cut_short(some_plan(chance), chance.uniform(0.5, 6.0), "--allow", "renames", ports=False)


HAPPENS = {
    "edit": lambda host, chance: host.apply(
        some_plan(chance), "--allow", "renames", ports=False, exit_code=None
    ),
    "cut short": cut_short,
    "rollback": lambda host, chance: host.ctl("rollback", "--yes", exit_code=None),
    "redirect": lambda host, chance: host.ctl("redirect", chance.choice(NAMES), exit_code=None),
    "kill server": kill_server,
    "kill another": kill_server,
    "kill controller": lambda host, chance: host.kill_controller(),
    "kill gateway": kill_gateway,
}


def converges(host: Ctl, seed: int, length: int = 4) -> None:
    chance = random.Random(seed)
    history = [chance.choice(sorted(HAPPENS)) for _ in range(length)]
    for what in history:
        HAPPENS[what](host, chance)
    last = some_plan(chance)
    host.apply(last, "--as-planned", "--allow", "renames", ports=False)
    wanted = sorted(
        (part["id"], float(percent), "running")
        for part in last["gpus"][0]["partitions"]
        for percent in (part["percent"], *([part["shadow"]["percent"]] if part["shadow"] else []))
    )
    found: list[Any] = []

    def as_planned() -> bool:
        status = host.document("status")
        found[:] = sorted((s["partition"], s["percent"], s["state"]) for s in status["servers"])
        return found == wanted and status["controller"] is not None

    # What a controller was starting when the apply began is ended once it has started.
    assert wait_until(as_planned, deadline_s=60.0, interval_s=0.5), (seed, history, found, wanted)
    client = triton_http.InferenceServerClient(f"127.0.0.1:{host.http}")
    for part in last["gpus"][0]["partitions"]:
        infer_http(client, part["id"])
    again = host.apply(last, "--as-planned", ports=False)
    assert again.stdout.strip() == "nothing to do"


def test_a_history_on_real_servers_ends_in_the_planned_fleet(host: Ctl) -> None:
    """The gateway and a server are killed, then an apply."""
    converges(host, seed=5, length=3)


def test_a_rollback_leaves_a_controller(host: Ctl) -> None:
    slower = partition("a", 20) | {"workloads": [partition("a", 20)["workloads"][0] | {"slo_ms": 3000}]}
    host.apply(plan(slower, partition("b", 20)), ports=False)
    host.kill_controller()
    host.ctl("rollback", "--yes")
    assert host.document("status")["controller"] is not None


def test_a_dry_run_and_another_launcher_render_nothing(host: Ctl) -> None:
    before = sorted(host.directory.glob("rendered/*/*/*"))
    other = plan(partition("a", 25) | {"models": [{"model": "echo", "batch": 2}]})
    shown = host.apply(other, "--dry-run", ports=False)
    assert "start " in shown.stdout
    refused = host.apply(other, "--set=serve.launcher=docker", ports=False, exit_code=2)
    assert f"serve.launcher: fleet '{host.fleet}' runs with process" in refused.stderr
    assert sorted(host.directory.glob("rendered/*/*/*")) == before


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_histories_on_real_servers_end_in_the_planned_fleet(host: Ctl, seed: int) -> None:
    converges(host, seed)

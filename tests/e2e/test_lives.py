"""A fleet outlives what surrounds it: a newer version's files, the host's clock, and the host itself."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import stepped_clock
from background import until
from ctl_fleet import Ctl, partition, plan
from no_descriptors import without_descriptors
from steady_clients import CLIENTS, Traffic
from stepped_clock import SteppedClock

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.monitor.client import GatewayTelemetry


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Ctl]:
    with Ctl(tmp_path, "lives") as here:
        here.apply(plan(partition("a", 30, shadow=False)))
        yield here


def named(host: Ctl, text: str) -> list[psutil.Process]:
    return [p for p in host.all_processes() if text in " ".join(p.cmdline())]


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, 30)


MAPS = ("devices", "env", "files")
"""What has names of its own as keys, as pinned models have: a plan's models are a list."""


def with_unknown_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [with_unknown_keys(one) for one in value]
    if isinstance(value, dict):
        named = {k for k, v in value.items() if k in MAPS or (k == "models" and isinstance(v, dict))}
        return {**{k: v if k in named else with_unknown_keys(v) for k, v in value.items()}, "later": 1}
    return value


def documents_of(text: str) -> list[Any]:
    """A file's documents: one, or one in each line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def test_what_ends_after_a_newer_version_wrote_the_files_is_started_again(host: Ctl) -> None:
    files = [p for p in host.files.rglob("*.json") if p.is_file()]
    assert {"fleet.json", "plan.json", "slots.json", "settings.json"} <= {p.name for p in files}
    for path in files:
        written = path.with_suffix(".new")
        documents = documents_of(path.read_text())
        written.write_text("\n".join(json.dumps(with_unknown_keys(each)) for each in documents) + "\n")
        written.replace(path)
    for program in ("controlplane.gateway.facade", "haproxy", "controlplane.gateway.supervise"):
        before = {p.pid for p in named(host, program)}
        assert before, program
        kill([psutil.Process(pid) for pid in before])
        until(lambda: host.answers("a"), 90.0, "served again")
    host.kill_controller()
    told = host.ctl("status", exit_code=0)
    assert "a newer version of ctl applied fleet" in told.stderr
    again = host.apply(plan(partition("a", 30, shadow=False)), ports=False)
    assert again.stdout.strip() == "nothing to do"


def test_a_fleet_is_served_again_after_the_host_started_cold(host: Ctl) -> None:
    # What dies first may be started again while the rest is killed.
    until(lambda: not (kill(host.all_processes()) or host.all_processes()))
    # As a boot leaves it: no shared memory, no sockets.
    for region in Path("/dev/shm").iterdir():
        if host.fleet in region.name:
            region.unlink()
    for folder in host.files.rglob("run"):
        shutil.rmtree(folder)
    with host.running("controller"):  # the unit's command
        until(lambda: host.answers("a"), 90.0, "served again")
    assert host.answers("a"), "without its controller"


@pytest.mark.skipif(stepped_clock.COMPILER is None, reason=stepped_clock.NOT_RUN)
def test_a_clock_that_is_set_costs_no_request_and_hides_no_death(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    with Ctl(tmp_path, "clock") as host:
        host.environment.update(clock.environment)
        host.apply(plan(partition("a", 30)))
        telemetry = GatewayTelemetry(GatewayPaths.of(host.files / "gateway").monitor_socket)
        with Traffic(host) as traffic:
            for ahead_s in (3600, 0, -3600):
                clock.set(ahead_s)
                traffic.await_more(20)
                until(lambda: "a" in telemetry.windows(1.0))
            assert traffic.failed == []
            before = routed(host)
            host.kill("a")
            until(lambda: routed(host) not in ([], before))
            traffic.await_more(20)
        assert len(traffic.failed) <= 2 * CLIENTS, traffic.failed


def test_a_controller_without_descriptors_ends_no_server(tmp_path: Path) -> None:
    with Ctl(tmp_path, "full") as host:
        # Few servers: the kernel polls no more processes than the limit, and refuses otherwise.
        host.apply(plan(partition("a", 30)))
        until(lambda: all(one["shadow_ready"] for one in host.document("status")["guard"]))
        before, controller = ports(host), host.document("status")["controller"]
        with Traffic(host) as traffic:
            with without_descriptors(controller):
                # It lists the servers every 5 s, and sends a canary to each shadow now and then.
                end = time.monotonic() + 7.0
                while time.monotonic() < end or "Too many open files" not in host.log():
                    traffic.await_more(20)
            # It can write no event meanwhile.
            until(lambda: "the engine answers again" in host.ctl("events").stdout)
            assert "Too many open files" in host.ctl("events").stdout
            traffic.await_more(20)
            assert traffic.failed == []
        assert (ports(host), host.document("status")["controller"]) == (before, controller)


def ports(host: Ctl) -> list[int]:
    """The ports of all servers."""
    return sorted(server["http"] for server in host.servers())


def routed(host: Ctl) -> list[int]:
    """The ports of the servers that serve."""
    return [server["http"] for server in host.servers() if server["routed"]]

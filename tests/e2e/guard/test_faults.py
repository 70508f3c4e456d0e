"""Faults that take more than one server, or that come back, on real Tritons: one in CI, the rest soak."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ctl_fleet
import guard_rig as rig
import pytest
import tritonclient.grpc as triton
from background import until
from guard_rig import Guarded, Load

RATE_RPS = 40.0
SLO_MS = 1000.0
WORK_S = 0.003


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Guarded]:
    with Guarded(tmp_path) as made:
        yield made


def cores(count: int) -> list[str]:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < count:
        pytest.skip(f"CAPABILITY MISSING: {count} cores for two devices")
    return [f"cpu-{core}" for core in usable[:count]]


def partition(name: str, policy: str, device: str) -> dict[str, Any]:
    made = rig.partition(name, 30, rate_rps=RATE_RPS, slo_ms=SLO_MS, device=device)
    made["shadow"]["policy"] = policy
    return made


def plan(devices: list[str], *partitions: dict[str, Any]) -> dict[str, Any]:
    """All partitions on the first device; the others hold shadows."""
    gpus = [
        {"id": d, "type": "cpu", "partitions": list(partitions) if d == devices[0] else []} for d in devices
    ]
    return {**ctl_fleet.plan(), "gpus": gpus}


def guard_row(fleet: Guarded, name: str) -> dict[str, Any]:
    told = fleet.document("status")
    (row,) = [r for r in told["guard"] if r["partition"] == name]
    return dict(row)


def test_a_fault_of_a_device_is_one_event_and_everybody_moves(fleet: Guarded) -> None:
    first, second = cores(2)
    shared = partition("b", "warm", second)
    # `0b` bears the model, `b` is an alias of it: a warm shadow has to load both.
    shared["workloads"].append({**shared["workloads"][0], "name": "0b", "endpoint": "0b"})
    fleet.apply(plan([first, second], partition("a", "hot", second), shared))
    fleet.await_guarding("b", lambda state: state.standby_ready, "the warm shadow stands by")
    on_first = [s for s in fleet.running_servers() if s.spec.device == first]
    assert {s.spec.labels.partition for s in on_first} == {"a", "b"}
    with Load(fleet.grpc, "a", RATE_RPS, WORK_S) as hot, Load(fleet.grpc, "b", RATE_RPS, WORK_S) as warm:
        hot.await_answers(40)
        warm.await_answers(40)
        # Stopped meanwhile, so that it finds all of them dead in one look, as a fault of a GPU leaves them.
        fleet.controller().suspend()
        hit_s, dead_s = rig.kill([p for server in on_first for p in fleet.tree(server.name)])
        fleet.controller().resume()
        for partition_id in ("a", "b"):
            fleet.await_event("redirect", since_s=hit_s, says=f".{partition_id}.")
        moved_s = time.time()
        hot.await_answers(40, since_s=moved_s)
        warm.await_answers(40, since_s=moved_s)
    fleet.await_event("notice", since_s=hit_s, says="a fault of the whole core")
    said = [e for e in fleet.events() if e.kind == "notice" and e.at_s >= hit_s and e.level == "critical"]
    assert [e.subject for e in said if "a fault of the whole core" in e.reason] == [first]
    assert len(said) == 1, "one event, not one a server"
    assert hot.unexplained(hit_s, dead_s) == []
    assert all(r.started_s <= moved_s for r in warm.failed()), "a warm shadow has to load first"
    present = {fleet.active(endpoint) for endpoint in ("a", "b", "0b")}
    assert {s.spec.device for s in fleet.running_servers() if s.name in present} == {second}


@pytest.mark.soak
def test_a_model_that_no_longer_loads_opens_the_breaker(fleet: Guarded) -> None:
    fleet.apply(plan(cores(1), partition("w", "hot", cores(1)[0])))
    fleet.await_guarded()
    (standby,) = [s for s in fleet.running_servers() if s.name != fleet.active("w")]
    pinned = (Path(standby.spec.repository) / "w" / "1" / "model.py").resolve()
    pinned.chmod(0o644)
    pinned.write_text("raise RuntimeError('no such weights')\n")
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load:
        rig.kill(fleet.tree(standby.name))
        fleet.await_event("breaker", deadline_s=90.0)
        time.sleep(5.0)
    assert load.failed() == [], "what serves is left alone"
    launches = [e for e in fleet.events() if e.kind == "launch"]
    assert 4 <= len(launches) <= 5, "no more starts once it is open"
    row = guard_row(fleet, "w")
    assert row["breaker_open"]
    assert row["phase"] == "exposed"
    assert row["retry_in_s"] > 400.0
    assert any("no such weights" in e.reason for e in fleet.events()), "the server's own words"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with ctl_fleet.small_disk(tmp_path / "small", 24) as mounted:
        if not mounted:
            pytest.skip("CAPABILITY MISSING: no tmpfs can be mounted here to be filled")
        yield tmp_path / "small"


@pytest.mark.soak
def test_a_full_disk_stops_no_redirect(disk: Path) -> None:
    with Guarded(disk) as fleet:
        fleet.apply(plan(cores(1), partition("w", "hot", cores(1)[0])))
        fleet.await_guarded()
        before = fleet.active("w")
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(bytes(4096))
        with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load:
            load.await_answers(40)
            for _ in range(2):  # there and back, by hand
                fleet.ctl("redirect", "w")
            fleet.await_guarded()
            hit_s, dead_s = rig.kill(fleet.tree(before)[:1])
            until(lambda: fleet.active("w") != before, 20.0, "redirected")
            time.sleep(2.0)
            fleet.controller().kill()
            fleet.start_controller()
            time.sleep(2.0)
            assert fleet.controller().is_running()
            filler.unlink()
            fleet.await_guarded()
            assert guard_row(fleet, "w")["failed_starts"] == 0, "the disk's fault is none of the server's"
        assert load.unexplained(hit_s, dead_s) == []


@pytest.fixture
def memory_group() -> Iterator[Path]:
    base = ctl_fleet.CGROUPS / "memory"
    if not (base / "memory.limit_in_bytes").exists() or not os.access(base, os.W_OK):
        pytest.skip("CAPABILITY MISSING: no memory cgroup to limit a model in")
    folder = base / f"trisect-test-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text().strip(), 10.0, "the group is empty")
        folder.rmdir()


@pytest.mark.soak
def test_a_model_that_runs_out_of_memory_is_left(fleet: Guarded, memory_group: Path) -> None:
    fleet.apply(plan(cores(1), partition("w", "hot", cores(1)[0])))
    fleet.await_guarded()
    before = fleet.active("w")
    _, stub = fleet.tree(before)
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load:
        load.await_answers(40)
        hit_s = time.time()
        # What it holds already stays where it is counted: this is for what comes on top.
        (memory_group / "memory.limit_in_bytes").write_text(str(8 * 2**20))
        (memory_group / "cgroup.procs").write_text(str(stub.pid))
        with contextlib.suppress(triton.InferenceServerException):
            rig.infer(f"127.0.0.1:{fleet.grpc}", "w", -64.0, timeout_s=5.0)  # it takes so many megabytes
        moved = fleet.await_event("redirect", since_s=hit_s)
        load.await_answers(80, since_s=moved.at_s)
    assert rig.is_dead(stub)
    assert all(r.started_s <= moved.at_s + 0.5 for r in load.failed()), load.failed()
    fleet.await_guarded()

"""The guard on real Tritons behind a real HAProxy, with a client that counts what it lost."""

import json
import math
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import guard_rig as rig
import pytest
import tritonclient.grpc as triton_grpc
from background import until
from ctl_fleet import plan
from guard_rig import Guarded, Load, Request
from host_ports import free_ports
from killed_controller import POINTS

pytestmark = pytest.mark.long

RATE_RPS = 40.0
SLO_MS = 1000.0
"""Far longer than a busy host lets a process stand still: nobody hangs or is slow unless a test has it so."""
WORK_S = 0.003
CUT_PERCENT = 10.0
"""What a slow server is held to. It needs 17 %, which even a busy host has, and is slow, not silent."""
PERCENT = 50.0
ROOMY_PERCENT = 80.0
PLAN = plan(rig.partition("w", PERCENT, rate_rps=RATE_RPS, slo_ms=SLO_MS))


STEPS = ("start", "start", "started", "started", "commit", "drain", "drain", "stop", "stop", "converged")
"""What the journal tells of an apply that changes a share."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guard")) as made:
        made.apply(PLAN)
        yield made


@pytest.fixture
def fleet(host: Guarded) -> Guarded:
    """Guarded, with a controller that was started by `apply` or anew; with room for two larger shares."""
    host.start_controller()
    host.await_guarded()
    if share(host) > ROOMY_PERCENT:
        host.apply(PLAN, "--as-planned")
        until(lambda: share(host) == PERCENT, 60.0, "the plan again")
        host.await_guarded()
    return host


def share(fleet: Guarded) -> float:
    # First its name: one that a redirect leaves meanwhile still runs.
    name = fleet.active("w")
    (active,) = [s for s in fleet.launched() if s.name == name]
    return active.spec.percent


def test_a_slow_server_is_left_and_no_client_notices(fleet: Guarded) -> None:
    rig.needs_quota(fleet)
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load:
        load.await_answers(40)
        before, percent = fleet.active("w"), share(fleet)
        cut_s = time.time()
        fleet.cut_quota(percent, CUT_PERCENT)
        moved = fleet.await_event("redirect", since_s=cut_s)
        # Where it was cut all would come late, more and more so.
        until(lambda: in_time(load.between(moved.at_s, time.time())[-40:]), 60.0, "it is fast again")
    assert load.failed() == []
    assert "slow server" in moved.reason
    assert fleet.active("w") != before
    fleet.await_guarded()
    assert {s.spec.percent for s in fleet.running_servers()} == {percent + 10, percent + 20}
    # After answers later than the SLO it stays late for a minute, and is guarded meanwhile.
    fleet.await_guarding("w", lambda state: state.phase in ("guarded", "late"), "it has settled")
    asked_s = time.time()
    told = status(fleet)
    (row,) = told["guard"]
    assert row["phase"] in ("guarded", "late")
    assert (row["shadow_ready"], row["breaker_open"]) == (True, False)
    assert "slow server" in row["redirect"]
    assert asked_s - moved.at_s <= row["redirected_s"] <= time.time() - moved.at_s
    assert told["controller"] == fleet.controller().pid
    again = fleet.apply(PLAN)
    assert again.stdout.strip() == "nothing to do"
    assert f"was redirected to {percent + 10:g} %" in again.stderr
    assert share(fleet) == percent + 10


def status(fleet: Guarded) -> dict[str, Any]:
    return dict(fleet.document("status"))


def in_time(requests: list[Request]) -> bool:
    """Whether a second's worth of them came within the SLO, but for what a busy host does to some."""
    return len(requests) >= RATE_RPS and sum(r.latency_ms > SLO_MS for r in requests) <= 0.2 * RATE_RPS


@pytest.mark.parametrize(
    "point", [p if p == "HAProxy half told" else pytest.param(p, marks=pytest.mark.soak) for p in POINTS]
)
def test_a_controller_killed_within_a_redirect_is_replaced_and_the_next_goes_on(
    fleet: Guarded, point: str
) -> None:
    rig.needs_quota(fleet)
    percent, before = share(fleet), fleet.active("w")
    fleet.kill_controller()
    ended_s = time.time()
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load, fleet.serving_until(point) as doomed:
        fleet.await_event("adopt", since_s=ended_s)
        load.await_answers(40)
        fleet.cut_quota(percent, CUT_PERCENT)
        assert doomed.wait(timeout=60) == -signal.SIGKILL
        fleet.start_controller()
        until(lambda: share(fleet) == percent + 10, 60.0, "redirected")
        fleet.await_guarded()
        load.await_answers(40, since_s=time.time())
    assert load.failed() == []
    until(lambda: fleet.tree(before) == [], 30.0, "nothing of it is left")
    assert sorted(s.spec.percent for s in fleet.running_servers()) == [percent + 10, percent + 20]


@pytest.mark.soak
@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_controller_killed_during_an_apply_costs_nothing(fleet: Guarded, step: int) -> None:
    began = len(fleet.journal())
    changed = plan(rig.partition("w", PERCENT - 10, rate_rps=RATE_RPS, slo_ms=2 * SLO_MS))
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load, ThreadPoolExecutor(1) as pool:
        load.await_answers(20)
        applying = pool.submit(fleet.apply, changed)
        until(lambda: len(fleet.journal()) > began + step, 60.0, STEPS[step])
        fleet.controller().send_signal(signal.SIGKILL)
        applying.result()
        assert sorted(fleet.journal()[began:]) == sorted(STEPS)
        fleet.start_controller()
        fleet.await_guarded()
    assert load.failed() == []
    assert {s.spec.percent for s in fleet.running_servers()} == {PERCENT - 10, PERCENT}
    fleet.apply(PLAN)


@pytest.mark.parametrize(
    ("fault", "cause"), [("kill", "crash"), ("stop", "hang"), ("stop its model", "failing inferences")]
)
def test_a_dead_server_is_left_and_replaced(fleet: Guarded, fault: str, cause: str) -> None:
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load:
        load.await_answers(40)
        fleet.await_guarded()
        before = fleet.active("w")
        triton, *stubs = fleet.tree(before)
        hit_s = time.time()
        match fault:
            case "kill":
                _, dead_s = rig.kill([triton])
            case "stop":
                for process in (triton, *stubs):
                    process.suspend()
            case "stop its model":
                # Triton goes on, and refuses a batch each second.
                for process in stubs:
                    process.suspend()
        moved = fleet.await_event("redirect", since_s=hit_s)
        until(lambda: rig.is_dead(triton), 30.0, "the dead server's end")
        load.await_answers(40, since_s=time.time())
    assert moved.reason.rpartition(": ")[2] == cause
    assert moved.at_s - hit_s < 20.0
    # Lost is only what the dead server held, or was handed before it was known to be dead.
    assert load.unexplained(hit_s, dead_s if fault == "kill" else moved.at_s) == []
    fleet.await_guarded()
    until(lambda: before not in {s.name for s in fleet.launched()}, 30.0, "nothing of it is left")


def test_a_controller_killed_with_its_server_leaves_the_share_as_it_was(fleet: Guarded) -> None:
    percent = share(fleet)

    def whole() -> bool:
        return sorted(s.spec.percent for s in fleet.launched()) == [percent, percent + 10]

    for _ in range(2):
        triton, *_ = fleet.tree(fleet.active("w"))
        killed_s, _ = rig.kill([fleet.controller(), triton])
        fleet.start_controller()
        fleet.await_event("launch", since_s=killed_s, says=f"{percent:g} %")
        until(lambda: share(fleet) == percent, 60.0, "the larger shadow gives the share back")
        fleet.await_guarded()
        until(whole, 30.0, "none that is dead")


def test_a_controller_that_starts_again_ends_what_drains_and_keeps_the_shadow(fleet: Guarded) -> None:
    before = fleet.active("w")
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load:
        load.await_answers(40)
        known, hit_s = {s.name for s in fleet.launched()}, time.time()
        for process in fleet.tree(before):
            process.suspend()
        fleet.await_event("launch", since_s=hit_s)
        until(lambda: {s.name for s in fleet.launched()} - known, 30.0, "it starts")
        rig.kill([fleet.controller()])
        fleet.start_controller()
        fleet.await_event("adopt", since_s=hit_s)
        until(lambda: fleet.tree(before) == [], 60.0, "the hung server's end")
        fleet.await_guarded()
    launched = [e.reason for e in fleet.events() if e.kind == "launch" and e.at_s >= hit_s]
    assert len(launched) == 1, launched


def test_a_server_that_another_program_ends_costs_no_request(fleet: Guarded) -> None:
    fleet.await_guarded()
    before = fleet.active("w")
    triton, *_ = fleet.tree(before)
    rate_rps = RATE_RPS / 2
    with (
        Load(fleet.grpc, "w", rate_rps, WORK_S) as grpc,
        Load(fleet.http, "w", rate_rps, WORK_S, protocol="http") as http,
    ):
        grpc.await_answers(20)
        http.await_answers(20)
        hit_s = time.time()
        triton.terminate()
        moved = fleet.await_event("redirect", since_s=hit_s)
        until(lambda: rig.is_dead(triton), 60.0, "its end")
        grpc.await_answers(20, since_s=time.time())
        http.await_answers(20, since_s=time.time())
    assert moved.reason.rpartition(": ")[2] == "another program ends it"
    assert grpc.failed() + http.failed() == []
    fleet.await_guarded()


def test_a_request_that_kills_its_model_takes_no_shadow(fleet: Guarded) -> None:
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load, ThreadPoolExecutor(1) as pool:
        load.await_answers(40)
        fleet.await_guarded()
        before = fleet.active("w")
        triton, *_ = fleet.tree(before)
        hit_s = time.time()
        asked = pool.submit(poison, fleet)
        moved = fleet.await_event("redirect", since_s=hit_s)
        until(lambda: rig.is_dead(triton), 30.0, "the dead server's end")
        gone_s = time.time()
        load.await_answers(40, since_s=gone_s)
        refused, refused_s = asked.result()
    assert moved.reason.rpartition(": ")[2] == "a model's process died"
    assert "is not healthy" in refused
    # Sent on to the shadow, it would be refused another second later.
    if refused_s < gone_s + 0.5:
        assert load.unexplained(hit_s, moved.at_s) == []
        # A batch of four a second, until it ended: none behind them.
        assert len(load.failed()) <= 4 * (1 + int(gone_s - hit_s)), load.failed()
        assert len([e for e in fleet.events() if e.kind == "redirect" and e.at_s >= hit_s]) == 1
    else:  # Triton stood still for so long that it did not refuse it in the second it is given
        assert gone_s - moved.at_s >= 1.0
    fleet.await_guarded()
    until(lambda: before not in {s.name for s in fleet.launched()}, 30.0, "nothing of it is left")


def poison(fleet: Guarded) -> tuple[str, float]:
    """One request that kills the process it is executed in: what its client is told, and when."""
    with pytest.raises(triton_grpc.InferenceServerException) as told:
        rig.infer(f"127.0.0.1:{fleet.grpc}", "w", math.nan, timeout_s=30.0)
    return str(told.value), time.time()


def test_once_repairs_and_ends(fleet: Guarded) -> None:
    killed_s = time.time()
    fleet.kill_controller()
    before = fleet.active("w")
    rig.kill(fleet.tree(before))
    fleet.ctl("controller", "--once")
    fleet.await_event("controller", since_s=killed_s, says="did not end by itself")
    assert fleet.active("w") != before
    assert fleet.is_guarded()


@pytest.mark.soak
def test_once_ends_though_the_host_can_start_nothing(fleet: Guarded) -> None:
    fleet.kill_controller()
    before = fleet.active("w")
    rig.kill(fleet.tree(before))
    told = fleet.ctl("controller", "--once", TRISECT_TRITON_HOME="/nowhere")
    assert "cannot be started now: no tritonserver" in told.stderr
    assert fleet.active("w") != before
    assert "breaker" not in {e.kind for e in fleet.events()}


def test_the_gateway_dies_and_the_controller_lives(fleet: Guarded) -> None:
    began_s = time.time()
    for role in ("haproxy", "facade"):
        (process,) = fleet.gateway_processes(role)
        process.kill()
        until(
            lambda role=role, old=process.pid: any(  # type: ignore[misc]
                p.pid != old for p in fleet.gateway_processes(role)
            ),
            60.0,
            f"{role} started again",
        )
    with Load(fleet.grpc, "w", RATE_RPS, WORK_S) as load:
        load.await_answers(40)
        fleet.await_guarded()
        hit_s, dead_s = rig.kill(fleet.tree(fleet.active("w"))[:1])
        fleet.await_event("redirect", since_s=hit_s)
    assert load.unexplained(hit_s, dead_s) == []
    fleet.await_guarded()
    told = fleet.document("events")["events"]
    restarts = [e for e in told if e["kind"] == "restart" and e["at_s"] >= began_s]
    assert [e["subject"] for e in restarts] == ["haproxy", "facade"]
    # How a process ended is known of those that this supervisor has started itself.
    assert all(e["reason"].startswith("ended") and "started again at once" in e["reason"] for e in restarts)
    assert [e["at_s"] for e in told] == sorted(e["at_s"] for e in told)
    assert "facade ended" in fleet.ctl("status").stdout


def test_health_and_metrics_and_a_look_that_changes_nothing(fleet: Guarded) -> None:
    fleet.await_guarded()
    controller = fleet.controller()
    controller.terminate()
    until(lambda: rig.is_dead(controller), 30.0, "the controller's end")
    fleet.apply(PLAN, "--no-controller")
    assert not (fleet.files / "controller.pid").exists()
    began_s = time.time()
    (port,) = free_ports(1)
    with fleet.running("controller", "--port", str(port)):
        fleet.await_event("adopt", since_s=began_s)
        for path, says in (("healthz", "last looked"), ("metrics", "trisect_partition_share_ratio")):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
                assert says in answer.read().decode()
        second = fleet.ctl("controller", exit_code=4)
        assert "already has a controller" in second.stderr
    assert "adopt" in fleet.ctl("events").stdout
    kinds = [event.kind for event in fleet.events()]
    assert kinds.index("apply") < kinds.index("adopt")
    before, guarding = fleet.active("w"), (fleet.files / "guard.json").read_text()
    (standby,) = [s.name for s in fleet.launched() if s.name != before]
    rig.kill(fleet.tree(before)[:1])
    told = fleet.ctl("controller", "--once", "--plan-only")
    assert (fleet.files / "guard.json").read_text() == guarding
    said = [json.loads(line) for line in told.stderr.splitlines()]
    (route,) = [e["reason"] for e in said if e["kind"] == "would route"]
    assert route == f"w -> {standby}"
    assert fleet.active("w") == before
    since = [e.kind for e in fleet.events() if e.at_s >= began_s]
    assert all(not kind.startswith("would") and kind != "redirect" for kind in since)
    fleet.start_controller()
    fleet.await_guarded()

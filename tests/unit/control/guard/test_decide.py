"""Each row of the guard's table. What holds in any order of events is in tests/property/control/guard."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from guard_bench import ALONE, CONTENDED, LIMITS, READY, TICK_S, bench, ends, of, partition, targets
from guard_invariants import validate_state

from controlplane.control.converge.desired import Desired
from controlplane.control.guard import decide
from controlplane.control.guard.effects import Cause, Ending, Launch, Probe, Redirect, Report
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, Phase, PlacedServer, guarded_partitions
from controlplane.domain.fleet import Delays
from controlplane.domain.observation import Answer, Health, HostSeen, Level, ServerSeen
from controlplane.domain.plan import (
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Prediction,
    Rule,
    ServedModel,
    Shadow,
)
from controlplane.domain.workload import ShadowPolicy


def test_a_slow_server_is_left_for_its_shadow_and_a_larger_one_is_started() -> None:
    b = bench()
    assert b.tick(200) == []
    assert b.phase() is Phase.GUARDED
    effects = b.tick(10, late=["W1"])
    assert of(Redirect, effects) == [Redirect("W1", "W1.a", "W1.s", Cause.SLOW)]
    assert ends(effects).ending is Ending.DRAINED
    assert [(one.gpu, one.percent) for one in of(Launch, effects)] == [("g0", 60.0)]
    assert b.phase() is Phase.SETTLING
    assert b.routes() == {"W1": ("W1.s",)}


def test_larger_and_larger_until_nothing_is_left_and_then_loudly_once() -> None:
    b = bench(partition(percent=80.0))
    for _ in range(300):
        b.tick(late=["W1"])
        b.ready()
    assert [launch.percent for launch in of(Launch, b.effects)][:2] == [100.0, 100.0]
    assert b.moved() == [Cause.SLOW] * 2, "80 -> 90 -> 100, and no redirect to the same share"
    assert b.said(Level.CRITICAL).count("all there is") == 1
    assert b.phase() is Phase.EXHAUSTED
    b.tick(400)
    assert b.phase() is Phase.GUARDED


def test_an_alarm_that_waited_for_a_shadow_is_forgotten_where_nothing_follows_it() -> None:
    b = bench(standby=False)
    b.tick(200)
    b.tick(10, late=["W1"])
    assert "its shadow is not ready yet" in b.said()
    b.tick(round(LIMITS.calm_s / TICK_S) + 10)
    b.ready()
    b.tick(50)
    assert b.moved() == []
    assert b.state.watches["W1"].broken_s is None
    assert b.phase() is Phase.GUARDED


def test_a_broken_slo_is_reported_though_nothing_moves_and_so_is_its_end() -> None:
    b = bench()
    for _ in range(12):
        b.tick(59, rate=20.0)
        b.tick(1, late=["W1"], rate=20.0)  # 1.7 % late over two minutes, too few for an alarm
    assert b.moved() == []
    assert b.phase() is Phase.LATE
    assert b.said().count("P99") == 1
    b.tick(500, rate=20.0)
    assert b.phase() is Phase.GUARDED
    assert b.said(Level.INFO).count("P99") == 1


SLOW = {"queue_ms": 90.0, "compute_ms": 45.0}
LARGE = {"queue_ms": 90.0, "compute_ms": 45.0, "inferences": {"W1": 8.0}}
AS_PLANNED = {"queue_ms": 90.0, "compute_ms": 19.0}
IN_FEWER = {"queue_ms": 90.0, "compute_ms": 45.0, "inferences": {"W1": 1.0}}
STARVED = {"delays": Delays(starved=0.7, throttled=0.05)}
AT_ITS_QUOTA = {"delays": Delays(0.1, 0.6)}


@pytest.mark.parametrize(
    ("seen", "rate", "host", "planned", "says"),
    [
        ({}, 200.0, None, {}, "against 100 planned"),
        (LARGE, 100.0, None, {}, "of 8.0 inferences each instead of 1"),
        # 15 % above plan drowns in the noise of the count; a batch as fast as planned says whose fault it is.
        (AS_PLANNED, 120.0, None, {}, "queue 90.0 ms, compute 19.0 ms"),
        (STARVED, 100.0, CONTENDED, {}, "the host is contended"),
        (SLOW, 200.0, None, {}, None),
        (IN_FEWER, 100.0, None, {"rate_rps": 25.0, "inferences": 4.0}, None),
        (AT_ITS_QUOTA, 100.0, CONTENDED, {}, None),
        ({"delays": Delays(0.7, 0.1)}, 100.0, HostSeen(waiting=0.1), {}, None),
        ({}, 100.0, CONTENDED, {}, None),
    ],
)
def test_late_answers_move_traffic_where_neither_more_of_it_nor_the_host_explains_them(
    seen: Mapping[str, Any], rate: float, host: HostSeen | None, planned: Mapping[str, Any], says: str | None
) -> None:
    b = bench(partition(**planned))
    b.host, b.servers["W1.a"] = host, ServerSeen(Health.READY, **seen)
    b.tick(200, rate=rate)
    b.tick(50, late=["W1"], rate=rate)
    assert b.moved()[:1] == ([Cause.SLOW] if says is None else [])
    assert (says or "") in b.said()


def test_a_contended_host_alone_moves_no_traffic_and_leaves_the_evidence_of_batches() -> None:
    b = bench()
    b.tick(50)
    b.host = CONTENDED
    for look in range(300):
        score = b.state.watches["W1"].queues[0].batches.chart.score
        delays = Delays(0.6 if look % 7 == 0 else 0.85, 0.1)
        b.servers["W1.a"] = ServerSeen(Health.READY, delays=delays, inferences={"W1": 1.0})
        if any(isinstance(effect, Report) for effect in b.tick(late=["W1"], rate=40.0)):
            assert b.state.watches["W1"].queues[0].batches.chart.score >= score
    assert b.moved() == []
    assert "the host is contended" in b.said()


def test_a_cut_share_is_left_within_a_second_though_the_host_is_contended_all_the_time() -> None:
    b = bench()
    b.host = HostSeen(waiting=0.6)
    b.tick(50)
    for look in range(5):
        # Every third reading finds a server that waited longer, by chance.
        delays = Delays(0.3, 0.3) if look % 3 == 2 else Delays(0.05, 0.6)
        b.servers["W1.a"] = ServerSeen(Health.READY, delays=delays, inferences={"W1": 1.0})
        b.tick(late=["W1"], rate=30.0)
    assert b.moved() == [Cause.SLOW]


def test_a_server_slowed_by_half_is_left_though_it_waits_for_its_core_all_the_time() -> None:
    """It idles between batches, so it uses up its quota in few of the periods."""
    b = bench()
    b.host = HostSeen(waiting=0.6)
    for throttled, ticks, how in ((0.15, 50, {"took_ms": 25.0}), (0.4, 10, {"rate": 60.0, "took_ms": 48.0})):
        delays = Delays(0.2, throttled)
        b.servers["W1.a"] = ServerSeen(Health.READY, delays=delays, inferences={"W1": 1.0})
        b.tick(ticks, **how)
    assert b.moved()


@pytest.mark.parametrize("settling", [False, True])
@pytest.mark.parametrize(
    ("health", "cause", "ending"),
    [
        (None, Cause.CRASH, Ending.AT_ONCE),
        (Health.FAILING, Cause.FAILING, Ending.AT_ONCE),
        # What its dead process held may be what it died of, and is not to reach the shadow.
        (Health.IMPAIRED, Cause.IMPAIRED, Ending.REFUSED),
        (Health.HUNG, Cause.HANG, Ending.HUNG),
        (Health.PAUSED, Cause.HANG, Ending.HUNG),
        (Health.ENDING, Cause.ENDING, Ending.DRAINED),
    ],
)
def test_a_server_that_serves_no_more_is_left_at_once(
    health: Health | None, cause: Cause, ending: Ending, settling: bool
) -> None:
    b = bench()
    if settling:
        b.tick(10, late=["W1"])
        b.ready()
        b.tick()
    left = b.active()
    if health is None:
        del b.servers[left]
    else:
        b.servers[left] = ServerSeen(health, reason="it says why")
    effects = b.tick()
    assert [(one.source, one.cause) for one in of(Redirect, effects)] == [(left, cause)]
    assert ends(effects, left).ending is ending
    assert health is None or "it says why" in b.said()
    assert (b.state.watches["W1"].failed_s == b.now_s) is (health is Health.FAILING)


@pytest.mark.parametrize(
    ("health", "ending"),
    [
        (Health.ENDING, Ending.DRAINED),
        (Health.PAUSED, Ending.HUNG),
        (Health.HUNG, Ending.HUNG),
        (Health.IMPAIRED, Ending.REFUSED),
    ],
)
def test_a_shadow_that_stands_by_no_more_is_replaced(health: Health, ending: Ending) -> None:
    b = bench()
    b.tick(60)
    b.servers["W1.s"] = ServerSeen(health, reason="it says why")
    effects = b.tick()
    assert ends(effects, "W1.s").ending is ending
    assert len(of(Launch, effects)) == 1
    assert "it says why" in b.said()


@pytest.mark.parametrize("health", [Health.IMPAIRED, Health.ENDING])
@pytest.mark.parametrize("kept", [partition(), ALONE])
def test_one_that_nothing_can_replace_serves_until_its_successor_is_ready(
    kept: GuardedPartition, health: Health
) -> None:
    b = bench(kept, standby=False)
    assert len(of(Launch, b.effects)) == (kept is not ALONE)
    b.servers["W1.a"] = ServerSeen(health, reason="it says why")
    effects = b.tick(3)
    assert of(Probe, effects) == [Probe("W1.a")]
    assert "nothing stands by" in b.said()
    assert b.phase() is Phase.EXPOSED
    assert b.routes() == {"W1": ("W1.a",)}
    b.ready()
    b.tick()
    assert len(b.moved()) == 1
    b.tick(20)
    assert len(of(Launch, b.effects)) == (1 if kept is ALONE else 2), "nothing is to stand by there"


OVERDUE_S = LIMITS.overdue_s


@pytest.mark.parametrize(
    ("seen", "host", "planned", "patience_s"),
    [
        ({"in_flight": 4}, None, {}, 0.5),
        ({"in_flight": 4}, HostSeen(waiting=0.8), {}, 1.0),
        ({"in_flight": 2}, None, {}, OVERDUE_S),
        ({"streaming": 30}, None, {}, OVERDUE_S),
        ({"in_flight": 2, "streaming": 30}, None, {}, OVERDUE_S),
        ({"in_flight": 1}, None, {"longest_ms": 5_000.0}, 5.0),
        ({"in_flight": 1}, None, {"widest_slo_ms": 100_000.0}, 200.0),
        ({"in_flight": 9}, None, {"widest_slo_ms": 100_000.0}, 200.0),
        # A request may wait for the place of a sequence that lives.
        ({"streaming": 1, "sequences": 1}, None, {}, LIMITS.drain_s),
    ],
)
def test_a_hang_is_no_answer_for_longer_than_the_open_requests_may_take(
    seen: Mapping[str, int], host: HostSeen | None, planned: Mapping[str, Any], patience_s: float
) -> None:
    b = bench(partition(rate=5.0, **planned))
    b.host = host
    b.tick(3, rate=5.0)
    b.servers["W1.a"] = ServerSeen(Health.READY, **seen)
    b.tick(int(patience_s / TICK_S - 1e-9), rate=0.0)
    assert b.moved() == []
    effects = b.tick(2, rate=0.0)
    assert b.moved() == [Cause.HANG]
    waits_s = ends(effects).patience_s - ends(effects).silent_s
    assert (waits_s < TICK_S) is (patience_s >= 5.0), "one of several may be a long request"


@pytest.mark.parametrize(("sequences", "patience_s"), [(0, OVERDUE_S), (1, LIMITS.drain_s)])
def test_a_hung_server_is_waited_for_as_long_as_its_sequences_live(sequences: int, patience_s: float) -> None:
    b = bench()
    b.servers["W1.a"] = ServerSeen(Health.HUNG, in_flight=3, sequences=sequences)
    assert ends(b.tick()).patience_s == patience_s


def test_a_server_that_works_or_rests_does_not_hang() -> None:
    for seen in (ServerSeen(Health.READY, in_flight=9, progressed=True), READY):
        b = bench(partition(rate=5.0))
        b.servers["W1.a"] = seen
        b.tick(100, rate=0.0)
        assert b.moved() == []


@pytest.mark.parametrize("works", [False, True])
def test_refusals_of_a_full_queue_show_no_work(works: bool) -> None:
    b = bench(partition(rate=5.0))
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=8)
    began_s = b.now_s
    while not b.moved() and b.now_s < began_s + 2.0 * OVERDUE_S:
        b.answers = [Answer(b.now_s, 1.0, False, "W1", "W1.a", refused=True)]
        b.tick(rate=5.0 if works and round(b.now_s) % 20 == 0 else 0.0)
    assert b.moved() == ([] if works else [Cause.HANG])
    assert works or b.now_s - began_s < OVERDUE_S + 1.0
    assert any("refused" in one.reason for one in of(Report, b.effects))
    assert of(Probe, b.effects) == []


@pytest.mark.parametrize("gateway", [False, True])
def test_a_standstill_is_no_hang_and_no_fault_of_a_server(gateway: bool) -> None:
    b = bench(partition(), partition("W2"))
    b.tick(3)
    if gateway:
        b.host = HostSeen(0.0, stood_s=20.0)
    else:
        b.now_s += 5.0  # as after a suspend
    b.servers["W2.a"] = ServerSeen(Health.READY, in_flight=300)
    b.tick(1, late=["W1", "W2"])
    b.tick(4, late=["W1"], rate=100.0 if gateway else 0.0)
    assert b.phase() is Phase.SETTLING
    b.host, b.servers["W2.a"] = HostSeen(0.0), READY
    b.tick(50)
    assert b.moved() == []
    assert b.phase() is Phase.LATE, "clients waited, whatever the cause"
    b.tick(600)
    b.tick(20, late=["W1"])
    assert b.moved()[:1] == [Cause.SLOW], "what is slow afterwards is seen as ever"


def test_a_standstill_excuses_neither_a_hang_that_outlasts_it_nor_one_again_and_again() -> None:
    b = bench()
    b.now_s += 5.0
    b.servers["W1.a"] = ServerSeen(Health.READY, in_flight=300)
    b.tick(8, rate=0.0)
    assert b.moved() == [Cause.HANG]
    # Of several instances the log shows no batch times: only late answers count.
    b = bench(partition(instances=2))
    for _ in range(20):
        b.now_s += 2.5
        b.tick(late=["W1"])
    assert b.moved()[0] is Cause.SLOW


def test_failed_requests_lead_to_a_probe_and_nothing_else() -> None:
    b = bench()
    b.servers["W1.a"] = ServerSeen(Health.READY, failing=LIMITS.failed_in_a_row)
    assert [effect for effect in b.tick(2) if not isinstance(effect, Report)] == [Probe("W1.a")]


def planned(*placements: Placement, models: Sequence[ServedModel] = ()) -> GuardedPartition:
    shadow = Shadow(ShadowPolicy.HOT, "g0", 10.0, 50.0)
    kept = Partition("W1", 40.0, tuple(models), placements, shadow=shadow)
    plan = Plan("joint", Rule.P99, "ours", (PlannedGpu("g0", "v100", (kept,)),))
    return guarded_partitions(plan, Desired({}, {}))[0]


def placement(endpoint: str, model: str, rate: float, slo_ms: float, ms: float, batch: int = 1) -> Placement:
    predicted = Prediction(execution_ms=ms)
    return Placement(endpoint, endpoint, model, rate, slo_ms, predicted=predicted, client_batch=batch)


QUEUE = planned(placement("strict", "m", 60.0, 50.0, 12.0), placement("loose", "m", 80.0, 200.0, 13.0, 2))


def test_workloads_of_one_queue_are_promised_the_strictest_slo_at_their_whole_rate_of_requests() -> None:
    assert QUEUE.promises == (
        Promise(
            "loose",
            50.0,
            100.0,
            13.0,
            ("strict",),
            inferences=1.4,
            widest_slo_ms=200.0,
            model="m",
            client_batch=2,
        ),
    )
    assert (QUEUE.shadow_gpu, QUEUE.policy, QUEUE.step_percent) == ("g0", ShadowPolicy.HOT, 10.0)


@pytest.mark.parametrize(
    ("kept", "rate"),
    [
        (QUEUE, 100.0),  # every answer is the looser one's: 150 ms, which it alone would bear
        (
            planned(
                placement("first", "m", 50.0, 50.0, 12.0),
                placement("second", "n", 50.0, 50.0, 12.0),
                models=(ServedModel("m", 4), ServedModel("n", 2)),
            ),
            50.0,
        ),
    ],
)
def test_what_one_server_serves_is_redirected_together(kept: GuardedPartition, rate: float) -> None:
    b = bench(kept)
    assert targets(b.tick(20, late=["W1"], rate=rate)) == ["W1.s"]
    assert b.routes() == dict.fromkeys(kept.endpoints, ("W1.s",))


def test_the_state_that_breaks_an_invariant_is_caught() -> None:
    kept = (partition("W1", 60.0), partition("W2", 60.0))
    for name, percent, match in (("{}.a", 60.0, "overdrawn"), ("same", 10.0, "has two places")):
        placed = {w.id: (PlacedServer(name.format(w.id), w.gpu, percent),) for w in kept}
        with pytest.raises(AssertionError, match=match):
            validate_state(decide.begin(kept, placed, LIMITS))

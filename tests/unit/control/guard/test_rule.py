"""What of slower batches and late answers together is enough for a redirect, and what the host explains."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.control.guard import baseline, batch_times, late_answers, queues, rule
from controlplane.control.guard.batch_times import (
    NO_PART,
    BatchTimes,
    BesidePlan,
    Chart,
    HostPart,
    Recent,
    Weighing,
)
from controlplane.control.guard.decide import begin
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.queues import QueueState
from controlplane.control.guard.state import GuardedPartition, Limits, PlacedServer, Watch
from controlplane.domain.fleet import Delays
from controlplane.domain.observation import Answer, Health, HostSeen, ServerSeen
from controlplane.domain.workload import ShadowPolicy

PROMISE = Promise("w", slo_ms=50.0, rate_rps=100.0)


def times(score: float, slowdown: float = 1.0) -> BatchTimes:
    """Batches whose recent blocks took `slowdown` times as long as usual."""
    return BatchTimes(chart=Chart(score), recent=Recent(slowdown, slowdown, 1.0))


SURE = times(batch_times.height(PROMISE.rate_rps))


def queue(
    batches: BatchTimes, late: int, promise: Promise = PROMISE, rate_rps: float | None = None
) -> QueueState:
    """A queue with so many late answers in a row, at its planned rate unless given."""
    heard = [Answer(0.01 * i, 80.0, False, "w", "s") for i in range(late)]
    evidence, _ = late_answers.weigh(late_answers.begin(promise), promise, heard)
    rate_rps = promise.rate_rps if rate_rps is None else rate_rps
    return queues.begin(promise)._replace(late=evidence, batches=batches, rates_rps=(rate_rps, rate_rps))


def test_batches_of_whose_time_the_gateways_waits_leave_nothing_are_no_alarm() -> None:
    usual = batch_times.weigh(
        BatchTimes(),
        [Answer(0.1 * i, 20.0, False, "w", "s") for i in range(400)],
        50.0,
        Weighing(batch_times.height(10.0)),
    )[0]
    slow = queue(usual._replace(chart=SURE.chart, recent=Recent(1.0, 0.0, 1.0, 10.0)), 3)
    assert slow.slowness == 1.0
    assert not rule.is_slow(slow, HostPart(1.0, 10.0))


def test_the_less_certain_slower_batches_are_the_more_late_answers_are_needed() -> None:
    needed = []
    for certainty in (1.0, 0.75, 0.5, 0.25, 0.0):
        doubtful = times(certainty * SURE.chart.score)
        needed.append(next(n for n in range(100) if rule.is_slow(queue(doubtful, n))))
    assert needed == [7, 13, 20, 26, 32]


def suspected(late: int) -> Watch:
    """A partition whose batches are certainly slower."""
    partition = GuardedPartition("w", "g0", 40.0, (PROMISE,), ShadowPolicy.HOT, "g0", 10.0)
    watch = begin((partition,), {"w": (PlacedServer("s", "g0", 40.0),)}, Limits()).watches["w"]
    return replace(watch, queues=(queue(SURE, late),))


def test_a_verdict_from_batch_times_waits_for_what_requests_carry() -> None:
    assert rule.sizes_unknown(suspected(7), ServerSeen(Health.READY))
    assert not rule.sizes_unknown(suspected(7), ServerSeen(Health.READY, inferences={"w": 1.0}))
    assert not rule.sizes_unknown(suspected(60), ServerSeen(Health.READY))


def test_larger_requests_than_planned_are_more_traffic_though_batches_take_longer() -> None:
    larger, usual = (ServerSeen(Health.READY, inferences={"w": each}) for each in (4.0, 1.0))
    assert rule.over_plan(suspected(7).queues, larger) is not None
    assert rule.over_plan(suspected(7).queues, usual) is None


def slower(slowdown: float) -> BatchTimes:
    """Usual times of 6 ms for one and 2 ms for each more in a batch; they certainly take longer now."""
    means = [0.004 + 0.002 * size for size in range(2 * baseline.SIZES)]
    known = baseline.EMPTY._replace(counts=[99.0] * baseline.SIZES + [0.0] * baseline.SIZES, means=means)
    return times(SURE.chart.score, slowdown)._replace(baseline=known)


FOURS = replace(PROMISE, batch=4)


@pytest.mark.parametrize(
    ("slowdown", "certainty", "rate_rps", "breaks"),
    [
        (2.5, 1.0, None, True),
        (1.5, 1.0, None, False),
        (2.5, 1.0, 30.0, False),
        (1.5, 1.0, 250.0, False),  # a rate above the plan is no server's fault
        (4.0, 0.9, None, False),
    ],
)
def test_slower_batches_are_enough_where_the_queue_model_says_that_they_break_the_promise(
    slowdown: float, certainty: float, rate_rps: float | None, breaks: bool
) -> None:
    batches = slower(slowdown)._replace(chart=Chart(certainty * SURE.chart.score))
    assert rule.is_slow(queue(batches, 0, FOURS, rate_rps)) is breaks


PLANNED = replace(FOURS, p99_ms=45.0, batch_ms=(8.0, 10.0, 12.0, 14.0), rate_rps=200.0)


def served_from_the_start(factor: float, blocks: float = 60.0) -> BatchTimes:
    """Batches that took `factor` times the planned time since the first one."""
    taken = BesidePlan(blocks=blocks, multiples=factor * blocks, squares=factor * factor * blocks)
    return BatchTimes(queued=taken)


@pytest.mark.parametrize(
    ("factor", "late", "breaks"),
    [
        (0.9, 1, False),
        (1.0, 1, False),
        (1.05, 0, False),
        (1.05, 1, True),
        (1.2, 0, True),
        (1.2, 1, True),
        (2.0, 0, True),
    ],
)
def test_a_server_slower_than_planned_from_its_first_batch_on_breaks_its_promise(
    factor: float, late: int, breaks: bool
) -> None:
    """It need not be as certain where something was late already."""
    batches = served_from_the_start(factor)
    assert rule.breaks_as_measured(queue(batches, late, PLANNED)) is breaks
    few = queue(batches, 1, PLANNED, rate_rps=40.0)
    assert not rule.breaks_as_measured(few), "few requests wait for others"


def test_few_blocks_or_no_prediction_show_no_slower_model() -> None:
    slow = served_from_the_start(2.0)
    assert rule.breaks_as_measured(queue(slow, 1, PLANNED))
    assert not rule.breaks_as_measured(queue(served_from_the_start(2.0, 5.0), 1, PLANNED))
    assert not rule.breaks_as_measured(queue(slow, 1, replace(PLANNED, p99_ms=None)))


def test_batches_as_fast_as_planned_need_no_queue_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(rule, "rounded_p99_s", lambda rate_rps, *_: asked.append(rate_rps) or 1.0)
    assert not rule.breaks_as_measured(queue(served_from_the_start(1.0), 1, PLANNED))
    assert asked == []
    rule.breaks_as_measured(queue(served_from_the_start(1.1), 1, PLANNED))
    assert asked


def test_each_kind_of_evidence_is_named_with_its_figure() -> None:
    assert rule.contention(HostSeen(0.75, 0.08, 0.3)) == (
        "the host is contended: the gateway waited for a core in 75% of the time it was ready to run, "
        "the hypervisor withheld 8% of the cores' time, "
        "the gateway's own cgroup was throttled for 30% of the time"
    )
    throttled = "the host is contended: the gateway's own cgroup was throttled for 30% of the time"
    assert rule.contention(HostSeen(0.1, 0.0, 0.3)) == throttled
    assert rule.contention(None) == rule.contention(HostSeen(waiting=0.2, steal=0.01)) == ""


PARTS = st.floats(0.0, 1.0)


@given(PARTS, PARTS, PARTS)
def test_any_one_kind_of_evidence_is_enough(waiting: float, steal: float, throttled: float) -> None:
    enough = waiting >= rule.WAITING or steal >= rule.STEAL or throttled >= rule.THROTTLED
    assert bool(rule.contention(HostSeen(waiting, steal, throttled))) is enough


@given(PARTS, PARTS, PARTS)
def test_the_host_explains_what_other_work_and_other_machines_take(
    starved: float, throttled: float, steal: float
) -> None:
    server = ServerSeen(Health.READY, delays=Delays(starved, throttled))
    part = rule.host_part(HostSeen(0.0, steal, wait_s=0.002), server, 40.0)
    assert part.own == pytest.approx(max(rule.LEAST_UNEXPLAINED, (1.0 - starved) * (1.0 - steal)))
    assert part.wait_s == 0.002
    assert rule.host_part(HostSeen(1.0, steal), ServerSeen(Health.READY), 40.0) == NO_PART


@pytest.mark.parametrize(
    ("delays", "cut"),
    [
        (Delays(0.0, 0.5), False),
        (Delays(0.0, 0.6), False),
        (Delays(0.0, 0.9), True),
        (Delays(0.5, 0.25), False),
        (Delays(0.5, 0.45), True),
        (Delays(0.9, 0.0), False),
        (Delays(1.0, 0.0), False),
    ],
)
def test_a_server_that_is_throttled_for_far_more_than_its_share_has_lost_its_quota(
    delays: Delays, cut: bool
) -> None:
    """Whatever other work takes of its time."""
    assert rule.host_part(None, ServerSeen(Health.READY, delays=delays), 50.0).cut is cut

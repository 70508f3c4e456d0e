"""Slower batches and late answers together: what is enough for a redirect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.control.guard import baseline, batch_times, late_answers, queues, rule
from controlplane.control.guard.batch_times import BatchTimes, BesidePlan, Chart, HostPart, Recent, Weighing
from controlplane.control.guard.decide import begin
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.queues import QueueState
from controlplane.control.guard.state import GuardedPartition, Limits, PlacedServer, Watch
from controlplane.domain.observation import Answer, Health, ServerSeen
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


def test_slower_batches_alone_break_no_promise() -> None:
    assert not rule.is_slow(queue(SURE, 0))


def test_slower_batches_need_a_few_late_answers() -> None:
    assert rule.is_slow(queue(SURE, 7))
    assert not rule.is_slow(queue(SURE, 3))


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


def test_a_few_late_answers_without_slower_batches_are_no_alarm() -> None:
    assert not rule.is_slow(queue(BatchTimes(), 7))


def test_the_less_certain_slower_batches_are_the_more_late_answers_are_needed() -> None:
    needed = []
    for certainty in (1.0, 0.75, 0.5, 0.25):
        doubtful = times(certainty * SURE.chart.score)
        needed.append(next(n for n in range(100) if rule.is_slow(queue(doubtful, n))))
    assert needed == [7, 13, 20, 26]


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


def test_slower_batches_are_enough_where_the_queue_model_says_that_they_break_the_promise() -> None:
    assert rule.is_slow(queue(slower(2.5), 0, FOURS))
    assert not rule.is_slow(queue(slower(1.5), 0, FOURS))
    assert not rule.is_slow(queue(slower(2.5), 0, FOURS, rate_rps=30.0))


def test_a_promise_that_only_a_rate_above_the_plan_would_break_is_no_servers_fault() -> None:
    assert not rule.is_slow(queue(slower(1.5), 0, FOURS, rate_rps=250.0))


def test_slower_batches_that_are_not_certain_break_nothing() -> None:
    doubtful = slower(4.0)._replace(chart=Chart(0.9 * SURE.chart.score))
    assert not rule.is_slow(queue(doubtful, 0, FOURS))


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

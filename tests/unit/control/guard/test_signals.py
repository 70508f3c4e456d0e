"""Slower batches and late answers together: what is enough for a redirect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.control.guard import sequential, service, signals
from controlplane.control.guard.decisions import begin
from controlplane.control.guard.sequential import Promise
from controlplane.control.guard.state import GuardedPartition, Limits, PlacedServer
from controlplane.domain.observation import Answer, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy

PROMISE = Promise("w", slo_ms=50.0, rate_rps=100.0)


def record(score: float, slowdown: float = 1.0) -> service.Service:
    """A record whose blocks took `slowdown` times as long since the score left zero."""
    chart = service.Service().chart
    return service.Service(chart=(score, *chart[1:5], slowdown, 1.0, *chart[7:]))


SURE = record(service.height(PROMISE.rate_rps))


def late(answers: int) -> sequential.Evidence:
    heard = [Answer(0.01 * i, 80.0, False, "w", "s") for i in range(answers)]
    return sequential.weigh(sequential.fresh(PROMISE), PROMISE, heard)[0]


def test_slower_batches_alone_break_no_promise() -> None:
    assert not signals.slow(SURE, late(0), PROMISE, 100.0)


def test_slower_batches_need_a_few_late_answers() -> None:
    assert signals.slow(SURE, late(7), PROMISE, 100.0)
    assert not signals.slow(SURE, late(3), PROMISE, 100.0)


def test_a_few_late_answers_without_slower_batches_are_no_alarm() -> None:
    assert not signals.slow(service.Service(), late(7), PROMISE, 100.0)


def test_the_less_certain_slower_batches_are_the_more_late_answers_are_needed() -> None:
    needed = []
    for certainty in (1.0, 0.75, 0.5, 0.25):
        doubtful = record(certainty * SURE.score)
        needed.append(next(n for n in range(100) if signals.slow(doubtful, late(n), PROMISE, 100.0)))
    assert needed == [7, 13, 20, 26]


def test_a_verdict_from_batch_times_waits_for_what_requests_carry() -> None:
    partition = GuardedPartition("w", "g0", 40.0, (PROMISE,), ShadowPolicy.HOT, "g0", 10.0)
    watch = begin((partition,), {"w": (PlacedServer("s", "g0", 40.0),)}, Limits()).watches["w"]
    suspected = replace(watch, evidence=(late(7),), services=(SURE,))
    assert signals.sizes_unknown(suspected, ServerSeen(Health.READY))
    assert not signals.sizes_unknown(suspected, ServerSeen(Health.READY, inferences={"w": 1.0}))
    certain = replace(suspected, evidence=(late(60),))
    assert not signals.sizes_unknown(certain, ServerSeen(Health.READY))


def test_larger_requests_than_planned_are_more_traffic_though_batches_take_longer() -> None:
    partition = GuardedPartition("w", "g0", 40.0, (PROMISE,), ShadowPolicy.HOT, "g0", 10.0)
    watch = begin((partition,), {"w": (PlacedServer("s", "g0", 40.0),)}, Limits()).watches["w"]
    suspected = replace(watch, evidence=(late(7),), services=(SURE,))
    assert signals.over_plan(suspected, ServerSeen(Health.READY, inferences={"w": 4.0})) is not None
    assert signals.over_plan(suspected, ServerSeen(Health.READY, inferences={"w": 1.0})) is None


def slower(slowdown: float) -> service.Service:
    """A record of 6 ms for one and 2 ms for each more in a batch, and batches that certainly take longer."""
    means = tuple(0.004 + 0.002 * size for size in range(service.SIZES))
    return replace(record(SURE.score, slowdown), counts=(99.0,) * service.SIZES, means=means)


FOURS = replace(PROMISE, batch=4)


def test_slower_batches_are_enough_where_the_queue_model_says_that_they_break_the_promise() -> None:
    assert signals.slow(slower(2.5), late(0), FOURS, rate_rps=100.0)
    assert not signals.slow(slower(1.5), late(0), FOURS, rate_rps=100.0)
    assert not signals.slow(slower(2.5), late(0), FOURS, rate_rps=30.0)


def test_a_promise_that_only_a_rate_above_the_plan_would_break_is_no_servers_fault() -> None:
    assert signals.slow(slower(1.5), late(0), FOURS, rate_rps=250.0) is False


def test_slower_batches_that_are_not_certain_break_nothing() -> None:
    doubtful = replace(slower(4.0), chart=record(0.9 * SURE.score, 4.0).chart)
    assert not signals.slow(doubtful, late(0), FOURS, rate_rps=100.0)


PLANNED = replace(FOURS, p99_ms=45.0, batch_ms=(8.0, 10.0, 12.0, 14.0), rate_rps=200.0)


def served_from_the_start(factor: float, blocks: float = 60.0) -> service.Service:
    """A record of batches that took `factor` times the planned time since the first one."""
    chart = service.Service().chart
    means = (0.0, *(factor * time_ms / 1000.0 for time_ms in PLANNED.batch_ms), *(0.0,) * 29)
    lasting = (blocks, blocks, blocks)  # each took its usual time
    return service.Service(
        chart=(*chart[:-3], *lasting), counts=(0.0, *(99.0,) * 4, *(0.0,) * 29), means=means
    )


@pytest.mark.parametrize(("factor", "breaks"), [(0.9, False), (1.0, False), (1.2, True), (2.0, True)])
def test_a_server_slower_than_planned_from_its_first_batch_on_breaks_its_promise(
    factor: float, breaks: bool
) -> None:
    record = served_from_the_start(factor)
    assert signals.breaks_as_measured(record, late(1), PLANNED, 200.0) is breaks
    assert not signals.breaks_as_measured(record, late(0), PLANNED, 200.0), "nothing is late"
    assert not signals.breaks_as_measured(record, late(1), PLANNED, 40.0), "few requests wait for others"


def test_few_blocks_or_no_prediction_show_no_slower_model() -> None:
    slow = served_from_the_start(2.0)
    assert signals.breaks_as_measured(slow, late(1), PLANNED, 200.0)
    assert not signals.breaks_as_measured(served_from_the_start(2.0, 10.0), late(1), PLANNED, 200.0)
    assert not signals.breaks_as_measured(slow, late(1), replace(PLANNED, batch_ms=()), 200.0)
    assert not signals.breaks_as_measured(slow, late(1), replace(PLANNED, p99_ms=None), 200.0)


def test_sizes_that_were_hardly_seen_take_as_many_times_as_planned_as_the_others() -> None:
    few = replace(served_from_the_start(1.5), counts=(0.0, 99.0, 99.0, *(0.0,) * 31))
    assert signals.slower_than_planned(few, PLANNED) == pytest.approx(1.5)
    assert signals.breaks_as_measured(few, late(1), PLANNED, 200.0)

"""Slower batches and late answers together: what is enough for a redirect."""

from __future__ import annotations

from dataclasses import replace

from controlplane.control.guard import sequential, service, signals
from controlplane.control.guard.decisions import begin
from controlplane.control.guard.sequential import Promise
from controlplane.control.guard.state import GuardedPartition, Limits, PlacedServer
from controlplane.domain.observation import Answer, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy

PROMISE = Promise("w", slo_ms=50.0, rate_rps=100.0)
SURE = service.Service(scores=(service.height(PROMISE.rate_rps), 0.0))


def late(answers: int) -> sequential.Evidence:
    heard = [Answer(0.01 * i, 80.0, False, "w", "s") for i in range(answers)]
    return sequential.weigh(sequential.fresh(PROMISE), PROMISE, heard)[0]


def test_slower_batches_alone_break_no_promise() -> None:
    assert not signals.slow(SURE, late(0), PROMISE)


def test_slower_batches_need_a_few_late_answers() -> None:
    assert signals.slow(SURE, late(7), PROMISE)
    assert not signals.slow(SURE, late(3), PROMISE)


def test_a_few_late_answers_without_slower_batches_are_no_alarm() -> None:
    assert not signals.slow(service.Service(), late(7), PROMISE)
    almost = replace(SURE, scores=(0.99 * SURE.scores[0], 0.0))
    assert not signals.slow(almost, late(7), PROMISE)


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

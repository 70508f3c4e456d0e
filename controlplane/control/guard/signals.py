"""Signals of one partition: is its server slow, overloaded, failing, hung or dead. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from controlplane.control.guard import ahead, sequential, service
from controlplane.control.guard.sequential import Evidence, Promise
from controlplane.control.guard.service import Service
from controlplane.control.guard.state import Cause, GuardState, Limits, Watch
from controlplane.domain.observation import Answer, FleetSeen, Health, ServerSeen

GONE = ServerSeen(Health.GONE)

SLOW_COMPUTE = 1.15
"""A server computes slowly if its mean batch takes this many times the predicted time of a full one."""

HANG_SLOS = 2.0
"""A queue that promises 99 % within its SLO never owes answers for twice that without giving one: a batch's
execution lasts less than the SLO."""

OVER_PLAN = 1.1

LATE = 0.2
"""With batches that certainly take longer than before, this part of the evidence of late answers is enough:
some seven of them at 100 req/s and an SLO of 50 ms. Alone, slower batches break no promise."""

_NAMED = 3
"""So many endpoints of a queue are named; the rest is counted."""

MEMORIES = ((0.5, 50.0), (4.0, 400.0))
"""Moving means of the rate: seconds and requests, whichever is longer. The short one sees a jump while it is
young, the long one a few percent too much."""


def missed_s(state: GuardState, seen: FleetSeen) -> float:
    """How long nobody looked before this look, where that is too long to judge by; 0 where it is not.

    A host that stands still again and again is no excuse: clients meet it as it is.
    """
    gap_s = seen.now_s - state.now_s
    seldom = seen.now_s - state.stood_s > state.limits.calm_s
    return gap_s if seldom and state.limits.gap_s < gap_s < math.inf else 0.0


def hear(state: GuardState, seen: FleetSeen) -> GuardState:
    """What the answers since the look before say, and nothing done about it.

    Whoever cannot act now decides again at the next look, and has forgotten nothing.
    """
    answers: dict[str, list[Answer]] = {}
    for answer in seen.answers:
        answers.setdefault(answer.server, []).append(answer)
    now, missed = seen.now_s, missed_s(state, seen) > 0.0
    watches = {}
    for partition, watch in state.watches.items():
        if missed:
            # A host that stood still looks like servers that do; what waited meanwhile is answered late.
            settled_s = max(watch.settled_s, now + state.limits.settle_s)
            watch = replace(watch, heard_s=now, settled_s=settled_s)
        active = seen.servers.get(watch.active.server, GONE)
        heard = answers.get(watch.active.server, [])
        watches[partition] = listen(watch, active, heard, state.now_s, now)
    return replace(state, now_s=now, watches=watches, stood_s=now if missed else state.stood_s)


def listen(watch: Watch, seen: ServerSeen, answers: Sequence[Answer], before_s: float, now_s: float) -> Watch:
    """The watch after what its active server answered since the tick before."""
    evidence, rates, services = [], [], []
    broken = False
    owed = max(0, seen.in_flight - watch.in_flight)
    known = zip(watch.evidence, watch.rates_rps, watch.services, watch.partition.promises, strict=True)
    for old, rate, record, promise in known:
        endpoints = promise.endpoints
        mine = [a for a in answers if a.endpoint in endpoints]
        counted: Sequence[Answer] = mine
        if promise.instances == 1:
            record, counted = service.weigh(record, mine, promise.rate_rps, now_s)
        weighed, alarm = sequential.weigh(old, promise, counted)
        if service.strength(record, promise.rate_rps) >= service.HOLD:
            # What a slow server does to its queue is no natural size of clusters.
            weighed = replace(weighed, size=old.size, size_squared=old.size_squared, clusters=old.clusters)
        broken = broken or alarm or slow(record, weighed, promise, rate[-1])
        services.append(record)
        evidence.append(weighed)
        # What queues up arrived too; it is shared out as the answers are.
        arrived = len(mine) + (owed * len(mine) / len(answers) if answers else 0.0)
        rates.append(_moving(rate, arrived, now_s - before_s, promise))
    settled = now_s >= watch.settled_s
    failed = watch.failed_in_a_row
    for answer in answers:
        failed = failed + 1 if answer.failed else 0
    return replace(
        watch,
        evidence=tuple(evidence) if settled else tuple(sequential.restart(e) for e in evidence),
        rates_rps=tuple(rates),
        services=tuple(services) if settled else tuple(service.restart(s) for s in services),
        heard_s=now_s if answers or seen.in_flight == 0 or math.isinf(watch.heard_s) else watch.heard_s,
        broken_s=now_s if broken and settled and watch.broken_s is None else watch.broken_s,
        alarm_s=now_s if broken and settled else watch.alarm_s,
        in_flight=seen.in_flight,
        failed_in_a_row=failed,
    )


def slow(record: Service, evidence: Evidence, promise: Promise, rate_rps: float) -> bool:
    """Whether batches certainly take longer than before, and that makes answers late or will do so."""
    if service.strength(record, promise.rate_rps) < 1.0:
        return False
    return sequential.strength(evidence, promise) >= LATE or will_break(record, promise, rate_rps)


def will_break(record: Service, promise: Promise, rate_rps: float) -> bool:
    """Whether the queue model puts the P99 above the SLO at the batch times and the rate that are seen.

    It takes the planned rate at most: a higher one is no server's fault.
    """
    slowdown = service.slowdown(record)
    times_s = [slowdown * usual_s for usual_s in service.usual_s(record, promise.batch)]
    return bool(times_s) and 1000.0 * ahead.p99_s(min(rate_rps, promise.rate_rps), times_s) > promise.slo_ms


def sizes_unknown(watch: Watch, seen: ServerSeen) -> bool:
    """Whether slower batches count, and requests that carry more than planned may be why.

    Triton's statistics tell what requests carry; they are read under suspicion. Late answers that alone are
    an alarm need no such reason.
    """
    for evidence, promise in zip(watch.evidence, watch.partition.promises, strict=True):
        if sequential.strength(evidence, promise) >= 1.0:
            return False
    return any(promise.endpoint not in seen.inferences for promise in watch.partition.promises)


def suspicion(watch: Watch) -> float:
    """The strongest evidence against one of its promises; 1 is an alarm."""
    promises = watch.partition.promises
    late = (sequential.strength(e, p) for e, p in zip(watch.evidence, promises, strict=True))
    slower = (service.strength(s, p.rate_rps) for s, p in zip(watch.services, promises, strict=True))
    return max(*late, *slower)


def death(watch: Watch, seen: ServerSeen, limits: Limits, now_s: float) -> Cause | None:
    """Why the active server counts as dead, None if it does not."""
    if seen.health is Health.GONE:
        return Cause.CRASH
    if seen.health is Health.FAILING:
        return Cause.FAILING
    # A pause is no reason to turn over twice.
    settling = 2.0 if now_s < watch.settled_s else 1.0
    slo_s = max(p.slo_ms for p in watch.partition.promises) / 1000.0
    patience_s = settling * max(limits.hang_s, HANG_SLOS * slo_s)
    if seen.in_flight > 0 and now_s - watch.heard_s > patience_s:
        return Cause.HANG
    return None


def over_plan(watch: Watch, seen: ServerSeen) -> str | None:
    """What to say if more traffic than planned, not a slow server, broke the SLO; None otherwise.

    The rate decides, against its own noise: 3 standard deviations above the plan where Triton's times are
    not known, 1 where they show that a batch takes no longer than predicted and the rest is queueing.
    A batch that takes longer than predicted is the server's fault at any rate, unless requests carry more
    than planned. What counts are inferences: more of them in as many requests are more traffic, too.
    """
    known = zip(watch.rates_rps, watch.services, watch.partition.promises, strict=True)
    for rate, record, promise in known:
        each = seen.inferences.get(promise.endpoint, promise.inferences)
        carried = each / promise.inferences
        expected_ms = promise.execution_ms
        timed = seen.compute_ms is not None and expected_ms is not None and expected_ms > 0.0
        longer = timed and seen.compute_ms > SLOW_COMPUTE * expected_ms  # type: ignore[operator]
        slower = service.strength(record, promise.rate_rps) >= 1.0
        if (longer or slower) and carried <= OVER_PLAN:
            continue
        for mean, memory in zip(rate, MEMORIES, strict=True):
            noise = math.sqrt(promise.rate_rps / (2.0 * _memory_s(promise, memory)))
            deviations = 1.0 if timed and not longer else 3.0
            if mean * carried <= OVER_PLAN * promise.rate_rps + deviations * noise * carried:
                continue
            sent = f"{mean:.0f} req/s against {promise.rate_rps:g} planned"
            if carried > OVER_PLAN:
                sent += f", of {each:.1f} inferences each instead of {promise.inferences:g}"
            split = (
                f"; queue {seen.queue_ms:.1f} ms, compute {seen.compute_ms:.1f} ms"
                if seen.queue_ms is not None and seen.compute_ms is not None
                else ""
            )
            return f"{_subject(promise)}: {sent}{split}"
    return None


def slowness(watch: Watch, seen: ServerSeen) -> str:
    """The evidence against a slow server, in words."""
    parts = []
    for record, promise in zip(watch.services, watch.partition.promises, strict=True):
        if service.strength(record, promise.rate_rps) >= 1.0:
            parts.append(f"{_subject(promise)}: batches take longer than they did")
    for evidence, rate, promise in zip(
        watch.evidence, watch.rates_rps, watch.partition.promises, strict=True
    ):
        if sequential.strength(evidence, promise) < LATE:
            continue
        parts.append(
            f"{_subject(promise)}: more than 1 % above {promise.slo_ms:g} ms "
            f"at {rate[0]:.0f} of {promise.rate_rps:g} req/s"
        )
    if seen.compute_ms is not None and seen.queue_ms is not None:
        parts.append(f"queue {seen.queue_ms:.1f} ms, compute {seen.compute_ms:.1f} ms")
    return "; ".join(parts) or "more than 1 % above the SLO"


def _subject(promise: Promise) -> str:
    endpoints, more = promise.endpoints, len(promise.endpoints) - _NAMED
    return " + ".join(endpoints if more <= 0 else (*endpoints[:_NAMED], f"{more} more"))


def _memory_s(promise: Promise, memory: tuple[float, float]) -> float:
    return max(memory[0], memory[1] / promise.rate_rps)


def _moving(rate: tuple[float, ...], arrived: float, passed_s: float, promise: Promise) -> tuple[float, ...]:
    if passed_s <= 0.0 or math.isinf(passed_s):
        return rate
    moved = []
    for old, memory in zip(rate, MEMORIES, strict=True):
        kept = math.exp(-passed_s / _memory_s(promise, memory))
        moved.append(kept * old + (1.0 - kept) * arrived / passed_s)
    return tuple(moved)

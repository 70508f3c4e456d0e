"""Signals of one partition: is its server slow, overloaded, failing, hung or dead. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from controlplane.control.guard import ahead, sequential, service, slo_window
from controlplane.control.guard.host import contention
from controlplane.control.guard.sequential import Evidence, Promise
from controlplane.control.guard.service import Service
from controlplane.control.guard.state import Cause, GuardState, Limits, Watch
from controlplane.domain.observation import Answer, FleetSeen, Health, HostSeen, ServerSeen

GONE = ServerSeen(Health.GONE)

SLOW_COMPUTE = 1.15
"""A server computes slowly if its mean batch takes this many times the predicted time of a full one."""

HANG_SLOS = 2.0
"""A queue that keeps its promise answers within twice its SLO: a batch runs for less than the SLO."""

LONGER = 1.5
"""A time without an answer is longer than any before if it is longer by this factor."""

OVER_PLAN = 1.1

SHARED = 0.8
"""The part of the evidence of late answers that batches which certainly take longer replace: some seven late
answers are enough then, at 100 req/s and an SLO of 50 ms. Slower batches alone break no promise."""

LATE = 1.0 - SHARED

SURE = 3.0
"""The standard errors by which batches must take longer than would break the P99."""

MODEL_ERROR = 1.03
"""The queue model's P99 is off by as much."""

RECENT = 15.0
"""The number of late answers over which the host's part in them is averaged: single readings are noisy."""

_NAMED = 3
"""The number of endpoints of a queue that a message names; it counts the others."""

MEMORIES = ((0.5, 50.0), (4.0, 400.0))
"""Moving means of the rate: seconds and requests, whichever is longer. The short one detects a jump early,
the long one an excess of a few percent."""


def missed_s(state: GuardState, seen: FleetSeen) -> float:
    """Return the time without a look before this one where it is too long to judge servers by, else 0.

    It counts once in a while only: a host that often stands still is slow for clients too.
    """
    gap_s = seen.now_s - state.now_s
    seldom = seen.now_s - state.stood_s > state.limits.calm_s
    return gap_s if seldom and state.limits.gap_s < gap_s < math.inf else 0.0


def resumed(watch: Watch, until_s: float) -> Watch:
    """Return the watch of a partition that rested as looks without anything new would have left it."""
    rested_s = until_s - watch.looked_s
    if not 0.0 < rested_s < math.inf:
        return watch
    known = zip(watch.rates_rps, watch.partition.promises, strict=True)
    rates = tuple(_moving(rate, 0.0, rested_s, promise) for rate, promise in known)
    return replace(watch, rates_rps=rates, answered_s=until_s, worked_s=until_s, looked_s=until_s)


def update(
    watch: Watch,
    seen: ServerSeen,
    answers: Sequence[Answer],
    ticks_s: tuple[float, float],
    counted_part: float = 1.0,
) -> Watch:
    """Return the watch after the answers of its active server between two ticks.

    `counted_part` is the part of a batch's time that the host cannot explain.
    """
    before_s, now_s = ticks_s
    evidence, rates, services, windows = [], [], [], []
    broken = False
    unexplained_part = watch.unexplained
    queued = max(0, seen.in_flight - watch.in_flight)
    known = zip(
        watch.evidence, watch.rates_rps, watch.services, watch.windows, watch.partition.promises, strict=True
    )
    for old, rate, baseline, window, promise in known:
        endpoints = promise.endpoints
        mine = [a for a in answers if a.endpoint in endpoints and not a.refused]
        windows.append(slo_window.count(window, mine, promise.slo_ms, now_s))
        counted: Sequence[Answer] = mine
        if promise.instances == 1:
            calm = sequential.strength(old, promise) < service.HOLD
            baseline, counted = service.weigh(
                baseline, mine, promise.rate_rps, now_s, counted_part, calm=calm
            )
        weighed, alarm = sequential.weigh(sequential.count(old, promise, mine), promise, counted)
        late = sum(a.latency_ms > promise.slo_ms for a in mine)
        unexplained_part += (1.0 - math.exp(-late / RECENT)) * (counted_part - unexplained_part)
        if service.strength(baseline, promise.rate_rps) >= service.HOLD:
            # Clusters behind a slow server are larger than natural ones.
            weighed = replace(weighed, size=old.size, size_squared=old.size_squared, clusters=old.clusters)
        broken = broken or alarm or slow(baseline, weighed, promise, rate[-1], counted_part)
        services.append(baseline)
        evidence.append(weighed)
        # Requests that wait have arrived too; their endpoints are not known, so they count like the answers.
        sent = sum(a.endpoint in endpoints for a in answers)
        arrived = sent + (queued * sent / len(answers) if answers else 0.0)
        rates.append(_moving(rate, arrived, now_s - before_s, promise))
    settled = now_s >= watch.settled_s
    lives = bool(answers) or seen.progressed
    works = seen.progressed or any(a.shows_work for a in answers)
    idle = not (seen.in_flight or seen.streaming)
    silent_s = now_s - watch.answered_s if lives and settled else 0.0
    return replace(
        watch,
        evidence=tuple(evidence) if settled else tuple(sequential.restart(e) for e in evidence),
        rates_rps=tuple(rates),
        services=tuple(services) if settled else tuple(service.restart(s) for s in services),
        windows=tuple(windows),
        answered_s=now_s if lives or idle or math.isinf(watch.answered_s) else watch.answered_s,
        worked_s=now_s if works or idle or math.isinf(watch.worked_s) else watch.worked_s,
        refused_s=now_s if any(a.refused for a in answers) else watch.refused_s,
        longest_s=max(watch.longest_s, silent_s) if math.isfinite(silent_s) else watch.longest_s,
        broken_s=now_s if broken and settled and watch.broken_s is None else watch.broken_s,
        alarm_s=now_s if broken and settled else watch.alarm_s,
        unexplained=unexplained_part,
        in_flight=seen.in_flight,
        looked_s=now_s,
    )


def slow(
    baseline: Service, evidence: Evidence, promise: Promise, rate_rps: float, unexplained: float = 1.0
) -> bool:
    """Return whether it is an alarm that batches take longer, than they did or than planned.

    Those that take longer than they did make answers late, or certainly take longer and will do so.
    """
    slower = service.strength(baseline, promise.rate_rps)
    if enough(sequential.strength(evidence, promise), slower):
        return True
    if slower >= 1.0 and will_break(baseline, promise, rate_rps, unexplained):
        return True
    return breaks_as_measured(baseline, evidence, promise, rate_rps)


def enough(late: float, slower: float) -> bool:
    """Return whether the evidence of late answers and of slower batches together is an alarm."""
    return late >= 1.0 - SHARED * slower


def certainly_slower(watch: Watch) -> bool:
    """Return whether the batches of one of its queues certainly take longer, than before or than planned."""
    known = zip(watch.services, watch.evidence, watch.rates_rps, watch.partition.promises, strict=True)
    return any(
        service.strength(baseline, promise.rate_rps) >= 1.0
        or breaks_as_measured(baseline, evidence, promise, rate[-1])
        for baseline, evidence, rate, promise in known
    )


def will_break(baseline: Service, promise: Promise, rate_rps: float, unexplained: float = 1.0) -> bool:
    """Return whether the queue model puts the P99 above the SLO at the observed batch times and rate.

    Requests wait for the whole time of a batch, with the host's part. The rate counts up to the planned one:
    more traffic does not make a server slow.
    """
    usual_s = service.usual_s(baseline, promise.batch)
    rate_rps = min(rate_rps, promise.rate_rps)
    if not usual_s or rate_rps <= 0.0:
        return False
    slower = ahead.steps(service.slowdown(baseline) / unexplained)
    p99_s = ahead.p99_in_steps_s(ahead.steps(rate_rps), slower, usual_s, service.spread(baseline))
    return 1000.0 * p99_s > promise.slo_ms


def breaks_as_measured(baseline: Service, evidence: Evidence, promise: Promise, rate_rps: float) -> bool:
    """Return whether the P99 is above the SLO at the times that batches have taken lately.

    It does so whatever was usual: a server that was slow from its first batch on has no faster baseline. The
    planned P99 counts, in proportion to the queue model's at the measured and at the planned times: it knows
    of pools and dispersion. The host's part is left out. Where nothing is late, no P99 is broken.
    """
    ratio, error = service.lasting(baseline)
    ratio -= SURE * error
    if not promise.batch_ms or promise.p99_ms is None or not any(evidence.scores) or ratio <= 0.0:
        return False
    measured_s = service.measured_s(baseline, len(promise.batch_ms))
    planned_s = [time_ms / 1000.0 for time_ms in promise.batch_ms]
    factor = ratio * slower_than_planned(baseline, promise)
    times_s = [ratio * m if m else factor * p for m, p in zip(measured_s, planned_s, strict=True)]
    spread, planned = ahead.rounded(service.spread(baseline)), ahead.steps(promise.rate_rps)
    at_most = min(planned, ahead.steps(max(rate_rps, 1e-9)))
    now_s = ahead.p99_in_steps_s(at_most, 0, ahead.rounded(times_s), spread)
    then_s = ahead.p99_in_steps_s(planned, 0, ahead.rounded(planned_s), spread)
    return now_s * promise.p99_ms > MODEL_ERROR * promise.slo_ms * then_s


def slower_than_planned(baseline: Service, promise: Promise) -> float:
    """Return how many times their planned time batches usually take; 1 where that is not known."""
    measured_s = service.measured_s(baseline, len(promise.batch_ms))
    both = [(m, p / 1000.0) for m, p in zip(measured_s, promise.batch_ms, strict=True) if m]
    return sum(m for m, _ in both) / sum(p for _, p in both) if both else 1.0


def sizes_unknown(watch: Watch, seen: ServerSeen) -> bool:
    """Return whether a verdict from batch times must wait for the number of inferences in a request.

    More of them make longer batches. Triton counts them, and its counts are read under suspicion only. A
    verdict from late answers needs no such count.
    """
    for evidence, promise in zip(watch.evidence, watch.partition.promises, strict=True):
        if sequential.strength(evidence, promise) >= 1.0:
            return False
    return any(promise.endpoint not in seen.inferences for promise in watch.partition.promises)


def suspicion(watch: Watch) -> float:
    """Return the strongest evidence of a broken promise; 1 is an alarm."""
    promises = watch.partition.promises
    known = zip(watch.evidence, watch.services, promises, strict=True)
    return max(max(sequential.strength(e, p), service.strength(s, p.rate_rps)) for e, s, p in known)


def death(
    watch: Watch, seen: ServerSeen, limits: Limits, now_s: float, host: HostSeen | None = None
) -> Cause | None:
    """Return why the active server counts as dead; None if it does not."""
    if seen.health is Health.GONE:
        return Cause.CRASH
    if seen.health is Health.FAILING:
        return Cause.FAILING
    if seen.health in (Health.HUNG, Health.PAUSED):
        return Cause.HANG
    # A pause must not cause two redirects, and on a contended host a batch may take as long.
    settling = 2.0 if now_s < watch.settled_s or contention(host) else 1.0
    silent_s = now_s - watch.answered_s
    if seen.in_flight >= limits.due and silent_s > settling * patience_s(watch, limits):
        return Cause.HANG
    # A model that hangs goes on refusing what its full queue does not take.
    allowed_s = overdue_s(watch, limits, seen.sequences)
    if (seen.in_flight or seen.streaming) and now_s - watch.worked_s > allowed_s:
        return Cause.HANG
    return None


def patience_s(watch: Watch, limits: Limits) -> float:
    """Return how long a server may have no answer for several open requests: one may be a long one.

    What took longer than a single request may take was a stream, a slow client or a pause.
    """
    promises = watch.partition.promises
    slo_s = max(p.widest_slo_ms or p.slo_ms for p in promises) / 1000.0
    given_s = max((p.longest_ms for p in promises if p.longest_ms is not None), default=0.0) / 1000.0
    known_s = min(watch.longest_s, max(limits.overdue_s, given_s))
    return max(limits.hang_s, HANG_SLOS * slo_s, LONGER * known_s, given_s)


def overdue_s(watch: Watch, limits: Limits, sequences: int = 0) -> float:
    """Return the time without an answer after which even a single open request will have none.

    While `sequences` live, a request may wait for the place of one that pauses, as long as a drain would.
    """
    given = all(p.longest_ms is not None for p in watch.partition.promises)
    least_s = limits.drain_s if sequences else 0.0 if given else limits.overdue_s
    return max(least_s, patience_s(watch, limits))


def drain_s(watch: Watch, limits: Limits) -> float:
    """Return the time without an answer for which a server is waited for that works and is left."""
    return max(limits.drain_s, overdue_s(watch, limits))


def silence(watch: Watch, seen: ServerSeen, now_s: float) -> str:
    """Return the evidence of a hang, in words, and the way out where the requests were only long ones."""
    count = seen.in_flight + seen.streaming
    no = "no answer" if watch.answered_s <= watch.worked_s else "no answer but refusals"
    return (
        f"{no} for {now_s - watch.worked_s:.1f} s with {count} requests open; "
        "if requests may take so long, say so by longest_ms in the spec"
    )


def over_plan(watch: Watch, seen: ServerSeen) -> str | None:
    """Return the message if more traffic than planned, not a slow server, broke the SLO; None otherwise.

    The rate must be above the planned one by 3 standard deviations of its noise, or by 1 where Triton's times
    show that a batch takes no longer than predicted. A batch that takes longer is the server's fault at any
    rate, unless requests have more inferences than planned: the rate counts inferences.
    """
    known = zip(watch.rates_rps, watch.services, watch.partition.promises, strict=True)
    for rate, baseline, promise in known:
        each = seen.inferences.get(promise.endpoint, promise.inferences)
        carried = each / promise.inferences
        expected_ms = promise.execution_ms
        timed = seen.compute_ms is not None and expected_ms is not None and expected_ms > 0.0
        longer = timed and seen.compute_ms > SLOW_COMPUTE * expected_ms  # type: ignore[operator]
        slower = service.strength(baseline, promise.rate_rps) >= 1.0
        if (longer or slower) and carried <= OVER_PLAN:
            continue
        for mean in exceeding(promise, rate, carried, 1.0 if timed and not longer else 3.0):
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


def exceeding(
    promise: Promise, rates_rps: Sequence[float], carried: float = 1.0, deviations: float = 3.0
) -> Iterator[float]:
    """Yield the moving means of the rate that are above the planned one, whatever their noise.

    `carried` is the inferences of a request as a multiple of the planned ones.
    """
    for mean, memory in zip(rates_rps, MEMORIES, strict=True):
        noise = math.sqrt(promise.rate_rps / (2.0 * memory_s(promise, memory)))
        if mean * carried > OVER_PLAN * promise.rate_rps + deviations * noise * carried:
            yield mean


def slowness(watch: Watch, seen: ServerSeen) -> str:
    """Return the evidence of a slow server, in words."""
    parts = []
    for baseline, promise in zip(watch.services, watch.partition.promises, strict=True):
        if service.strength(baseline, promise.rate_rps) >= 1.0:
            parts.append(f"{_subject(promise)}: batches take longer than they did")
    if longer := longer_than_planned(watch):
        parts.append(longer)
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


def longer_than_planned(watch: Watch) -> str:
    """Return by how much batches certainly take longer than planned, in words; empty where none does."""
    parts = []
    for baseline, promise in zip(watch.services, watch.partition.promises, strict=True):
        ratio, error = service.lasting(baseline)
        factor = ratio * slower_than_planned(baseline, promise)
        if math.isfinite(error) and factor > 1.0 + SURE * error:
            parts.append(f"{_subject(promise)}: batches take {factor:.2f} times as long as planned")
    return "; ".join(parts)


def broken(watch: Watch) -> str | None:
    """Return what clients saw where a P99 was above its SLO lately; None where none was."""
    for window, promise in zip(watch.windows, watch.partition.promises, strict=True):
        lately = slo_window.broken(window, promise.natural_scale)
        if lately is not None:
            return (
                f"{_subject(promise)}: the P99 is above {promise.slo_ms:g} ms: {lately.late} of "
                f"{lately.requests} requests of {window.until_s - lately.began_s:.0f} s took longer"
            )
    return None


def memory_s(promise: Promise, memory: tuple[float, float]) -> float:
    """Return the time over which a moving mean of the rate is taken."""
    return max(memory[0], memory[1] / promise.rate_rps)


def _moving(rate: tuple[float, ...], arrived: float, passed_s: float, promise: Promise) -> tuple[float, ...]:
    if passed_s <= 0.0 or math.isinf(passed_s):
        return rate
    moved = []
    for old, memory in zip(rate, MEMORIES, strict=True):
        kept = math.exp(-passed_s / memory_s(promise, memory))
        moved.append(kept * old + (1.0 - kept) * arrived / passed_s)
    return tuple(moved)

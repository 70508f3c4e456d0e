"""A larger batch for a server that breaks its promise while nothing cures it. Pure.

The guard sets the batch of the least P99 at the times that batches take now, and the plan's again when that
would keep the SLO. Each change waits twice as long after the one before as that did, so that two batches
cannot take turns for long. A change is a last resort and must do no harm: none is to a smaller batch, which
may hold less, nor where several models take turns, which would wait longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from controlplane.control.guard import baseline, batch_times, queues, rule
from controlplane.control.guard.baseline import rounded_p99_s
from controlplane.control.guard.batch_times import BatchTimes, HostPart
from controlplane.control.guard.effects import SetBatch
from controlplane.control.guard.observe import Tick
from controlplane.control.guard.queues import QueueState
from controlplane.control.guard.state import GuardState, Rebatched, Watch
from controlplane.domain.fleet import Batches

GAIN = 1.1
"""A change must lower the P99, or under overload raise the capacity, by this factor: times are uncertain."""
_NEAR = 1.03
"""Of batches whose P99 is within this factor of the least the smallest is taken."""
_SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16)
"""The sizes that are tried: each costs some milliseconds."""
_LARGEST = baseline.SIZES - 1
"""Larger batches have no usual time of their own."""
LONGEST_PAUSE_S = 3600.0
"""Between two changes; after as long at the plan's batch they count anew."""


def best(times_s: Sequence[float], rate_rps: float, spread: Sequence[float], present: int) -> int:
    """Return the batch of the least P99; where no batch holds the rate, the one of the largest capacity.

    `times_s` are those of batches of 1 to the largest. It is `present` unless a larger one is clearly better.
    """
    sizes = sorted({present, len(times_s), *(s for s in _SIZES if present < s <= len(times_s))})
    found = {size: rounded_p99_s(rate_rps, times_s[:size], spread) for size in sizes}
    if math.isinf(min(found.values())):
        found = {size: times_s[size - 1] / size for size in sizes}
    least = min(found.values())
    if found[present] <= GAIN * least:
        return present
    return min(size for size in sizes if found[size] <= _NEAR * least)


def change(tick: Tick, watch: Watch, why: str) -> Watch:
    """Give the server's queue the batch of the least P99, where this is a larger one and it is time."""
    next_s = watch.rebatched.at_s + _pause_s(watch, tick.state.limits.settle_s)
    if len(watch.queues) > 1 or tick.now_s < next_s:
        return watch
    return _changed(tick, watch, _better(watch.queues[0], _host_part(tick, watch)), why)


def change_back(tick: Tick, watch: Watch) -> Watch:
    """Give the plan's batch back where it would keep the SLO, a while after the last change and alarm."""
    if not watch.rebatched.times:
        return watch
    queue, planned = watch.queues[0], watch.partition.promises[0].batch
    since_s = max(watch.rebatched.at_s, watch.alarm_s)
    if queue.promise.batch == planned:
        long_ago = tick.now_s > since_s + LONGEST_PAUSE_S
        return replace(watch, rebatched=Rebatched()) if long_ago else watch
    if tick.now_s < since_s + _pause_s(watch, tick.state.limits.calm_s):
        return watch
    times_s = _present_s(queue, planned, _host_part(tick, watch))
    if not times_s:
        return watch
    p99_s = rounded_p99_s(_rate_rps(queue), times_s, baseline.spread(queue.batches.baseline))
    if 1000.0 * rule.AHEAD * p99_s > queue.promise.slo_ms:
        return watch
    return _changed(tick, watch, planned, "the plan's batch would keep the SLO again")


def restore(tick: Tick, watch: Watch) -> Watch:
    """Give the plan's batch back to a server that stands by from now on."""
    if not watch.rebatched.times:
        return watch
    return _changed(tick, watch, watch.partition.promises[0].batch, "it stands by again")


def undone(state: GuardState, before: GuardState, change: SetBatch) -> GuardState:
    """Return the state where a change could not be made: the batch before it is in force.

    The next try waits as after a change.
    """
    watch, earlier = state.watches[change.partition], before.watches[change.partition]
    if watch.active.server != change.server:  # it was left
        return state
    kept = replace(watch, queues=tuple(map(queues.restart, earlier.queues)))
    return replace(state, watches={**state.watches, change.partition: kept})


def in_force(state: GuardState, server: str, planned: Batches) -> Batches:
    """Return the batches that a server has, in inferences: the planned ones but for the guard's change."""
    found = dict(planned)
    for watch in state.watches.values():
        if watch.active.server == server and watch.rebatched.times:
            promise = watch.queues[0].promise
            found[promise.endpoint] = promise.batch * promise.client_batch
    return tuple(sorted(found.items()))


def _pause_s(watch: Watch, first_s: float) -> float:
    return min(first_s * 2.0 ** max(0, watch.rebatched.times - 1), LONGEST_PAUSE_S)


def _host_part(tick: Tick, watch: Watch) -> HostPart:
    return rule.host_part(tick.seen.host, tick.active(watch), watch.active.percent)


def _better(queue: QueueState, host: HostPart) -> int:
    """Return the best batch in requests at the present rate and times, without the host's part in these.

    A larger one that alone takes longer than the SLO is none: it helps no request.
    """
    promise, most = queue.promise, min(queue.promise.largest, _LARGEST)
    times_s = _present_s(queue, most, host)
    if len(times_s) < promise.batch:  # fixed, or unknown
        return promise.batch
    most = max(promise.batch, sum(1000.0 * time_s <= promise.slo_ms for time_s in times_s))
    return best(times_s[:most], _rate_rps(queue), baseline.spread(queue.batches.baseline), promise.batch)


def _present_s(queue: QueueState, limit: int, host: HostPart) -> tuple[float, ...]:
    """Return the times of batches of 1 to `limit` requests now; empty where too little is known."""
    measured_s = baseline.measured_s(queue.batches.baseline, limit)
    if not any(measured_s):
        return ()
    ratio, planned = batch_times.slowdown(queue.batches, host), dict(enumerate(queue.promise.batch_s, 1))
    both = list(zip(measured_s, baseline.extended(planned, limit) or (0.0,) * limit, strict=True))
    as_planned_s = sum(p for m, p in both if m)
    factor = sum(measured_s) / as_planned_s if as_planned_s else 1.0
    known_s = {size: ratio * (m or factor * p) for size, (m, p) in enumerate(both, 1) if m or p}
    return baseline.extended(known_s, limit)


def _rate_rps(queue: QueueState) -> float:
    return max(*queue.rates_rps, 1e-9)


def _changed(tick: Tick, watch: Watch, batch: int, why: str) -> Watch:
    """Give the one queue this batch, where it differs from that in force."""
    (queue,), (planned,) = watch.queues, watch.partition.promises
    promise = queue.promise
    if batch == promise.batch:
        return watch
    is_planned = batch == planned.batch
    inferences = None if is_planned else batch * promise.client_batch
    execution_ms = planned.execution_ms if is_planned else None  # predicted for the plan's batch only
    reason = f"{promise.batch} -> {batch} requests in a batch: {why}"
    partition, server = watch.partition.id, watch.active.server
    tick.effects.append(SetBatch(partition, server, promise.endpoint, inferences, reason))
    # Its times are learned anew, as they are now: those of other sizes would be mixed with earlier ones.
    promise = replace(promise, batch=batch, execution_ms=execution_ms)
    return replace(
        watch,
        queues=(queues.restart(queue._replace(promise=promise, batches=BatchTimes())),),
        rebatched=Rebatched(watch.rebatched.times + 1, tick.now_s),
        broken_s=None,
        settled_s=tick.now_s + tick.state.limits.settle_s,
    )

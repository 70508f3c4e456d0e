"""Another batch for a server that breaks its promise while nothing stands by that cures it. Pure.

The guard sets the batch of the least P99 at the times that batches take now, and the plan's again when that
would keep the SLO. Each change waits twice as long after the one before as that did, so that two batches
cannot take turns for long: there are at most `most_changes` in a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane.control.guard import baseline, batch_times, queues, rule
from controlplane.control.guard.baseline import rounded_p99_s
from controlplane.control.guard.batch_times import BatchTimes, HostPart
from controlplane.control.guard.effects import SetBatch
from controlplane.control.guard.observe import Tick
from controlplane.control.guard.queues import QueueState
from controlplane.control.guard.state import Rebatched, Watch

GAIN = 1.1
"""A change must lower the P99, or under overload raise the capacity, by this factor: times are uncertain."""
_NEAR = 1.03
"""Of batches whose P99 is within this factor of the least the one nearest to the present is taken."""
_SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32)
"""The sizes that are tried: each costs some milliseconds."""
LONGEST_PAUSE_S = 3600.0
"""Between two changes; after as long at the plan's batch they count anew."""


def best(times_s: Sequence[float], rate_rps: float, spread: Sequence[float], present: int) -> int:
    """Return the batch of the least P99; where no batch holds the rate, the one of the largest capacity.

    `times_s` are those of batches of 1 to the largest. It is `present` unless another one is clearly better.
    """
    sizes = sorted({*(size for size in _SIZES if size <= len(times_s)), len(times_s), present})
    found = {size: rounded_p99_s(rate_rps, times_s[:size], spread) for size in sizes}
    if math.isinf(min(found.values())):
        found = {size: times_s[size - 1] / size for size in sizes}
    least = min(found.values())
    if found[present] <= GAIN * least:
        return present
    return min((s for s in sizes if found[s] <= _NEAR * least), key=lambda size: abs(size - present))


def change(tick: Tick, watch: Watch, why: str) -> Watch:
    """Give the server's queues the batches of the least P99, where these are others and it is time."""
    if tick.now_s < watch.rebatched.at_s + _pause_s(watch, tick.state.limits.settle_s):
        return watch
    host = _host_part(tick, watch)
    return _changed(tick, watch, {i: _better(queue, host) for i, queue in enumerate(watch.queues)}, why)


def change_back(tick: Tick, watch: Watch) -> Watch:
    """Give the plan's batches back where they would keep the SLO, a while after the last change and alarm."""
    if not watch.rebatched.times:
        return watch
    planned, since_s = watch.partition.promises, max(watch.rebatched.at_s, watch.alarm_s)
    if all(q.promise.batch == p.batch for q, p in zip(watch.queues, planned, strict=True)):
        long_ago = tick.now_s > since_s + LONGEST_PAUSE_S
        return replace(watch, rebatched=Rebatched()) if long_ago else watch
    if tick.now_s < since_s + _pause_s(watch, tick.state.limits.calm_s):
        return watch
    host, each = _host_part(tick, watch), zip(watch.queues, planned, strict=True)
    kept = {i: p.batch for i, (queue, p) in enumerate(each) if _would_keep(queue, p.batch, host)}
    return _changed(tick, watch, kept, "the plan's batch would keep the SLO again")


def _pause_s(watch: Watch, first_s: float) -> float:
    return min(first_s * 2.0 ** max(0, watch.rebatched.times - 1), LONGEST_PAUSE_S)


def _host_part(tick: Tick, watch: Watch) -> HostPart:
    return rule.host_part(tick.seen.host, tick.active(watch), watch.active.percent)


def _better(queue: QueueState, host: HostPart) -> int:
    """Return the best batch in requests at the present rate and times, without the host's part in these."""
    promise = queue.promise
    times_s = rule.present_s(queue, promise.largest, batch_times.slowdown(queue.batches, host))
    if len(times_s) < promise.batch:  # fixed, or unknown
        return promise.batch
    return best(times_s, _rate_rps(queue), baseline.spread(queue.batches.baseline), promise.batch)


def _would_keep(queue: QueueState, batch: int, host: HostPart) -> bool:
    """Return whether the P99 would be clearly within the SLO with this batch, as `_better`."""
    times_s = rule.present_s(queue, batch, batch_times.slowdown(queue.batches, host))
    if not times_s:
        return False
    p99_s = rounded_p99_s(_rate_rps(queue), times_s, baseline.spread(queue.batches.baseline))
    return 1000.0 * rule.AHEAD * p99_s <= queue.promise.slo_ms


def _rate_rps(queue: QueueState) -> float:
    return max(*queue.rates_rps, 1e-9)


def _changed(tick: Tick, watch: Watch, batches: Mapping[int, int], why: str) -> Watch:
    """Give queues, by their place, these batches where they differ from those in force."""
    after = list(watch.queues)
    for i, batch in batches.items():
        promise, planned = after[i].promise, watch.partition.promises[i]
        if batch == promise.batch:
            continue
        inferences = None if batch == planned.batch else batch * promise.client_batch
        reason = f"{promise.batch} -> {batch} requests in a batch: {why}"
        partition, server = watch.partition.id, watch.active.server
        tick.effects.append(SetBatch(partition, server, promise.endpoint, inferences, reason))
        # Its times are learned anew, as they are now: those of other sizes would be mixed with earlier ones.
        after[i] = after[i]._replace(promise=replace(promise, batch=batch), batches=BatchTimes())
    if all(new is old for new, old in zip(after, watch.queues, strict=True)):
        return watch
    return replace(
        watch,
        queues=tuple(map(queues.restart, after)),
        rebatched=Rebatched(watch.rebatched.times + 1, tick.now_s),
        broken_s=None,
        settled_s=tick.now_s + tick.state.limits.settle_s,
    )

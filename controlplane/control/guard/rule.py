"""The rule: whether a server breaks a promise, and whose fault it is. Pure; docs/design/guard.md."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from controlplane.control.guard import baseline, batch_times
from controlplane.control.guard.batch_times import NO_PART, HostPart
from controlplane.control.guard.causes import contention, host_part, over_plan, starves
from controlplane.control.guard.predicted_p99 import rounded_p99_s
from controlplane.control.guard.queues import QueueState
from controlplane.control.guard.state import Limits, Watch
from controlplane.domain.observation import HostSeen, ServerSeen

SHARED = 0.8
"""The part of the evidence of late answers that batches which certainly take longer replace: some seven late
answers are enough then, at 100 req/s and an SLO of 50 ms. Slower batches alone break no promise."""
LATE = 1.0 - SHARED
SURE = 3.0
"""The standard errors by which batches must take longer than would break the P99."""
MODEL_ERROR = 1.03
"""The queue model's P99 is off by as much, ..."""
AHEAD = 1.1
"""... and it must be so far above the SLO while nothing is late yet."""


class Verdict(StrEnum):
    """What follows from the evidence on a server that lives."""

    KEPT = "its promises are kept"
    PAST = "nothing followed an alarm"
    WAIT = "a reading may name another cause"
    TRAFFIC = "more traffic than planned"
    HOST = "other work has its core"
    SLOW = "the server is slow"


def verdict(watch: Watch, active: ServerSeen, host: HostSeen | None, now_s: float, limits: Limits) -> Verdict:
    """Return whether a promise is broken, and by what."""
    if watch.broken_s is None:
        return Verdict.KEPT
    if now_s - watch.alarm_s > limits.calm_s:
        return Verdict.PAST
    unread = sizes_unknown(watch, active) or (bool(contention(host)) and active.delays is None)
    if unread and now_s - watch.broken_s < limits.sizes_s:
        return Verdict.WAIT
    if over_plan(watch.queues, active) is not None:
        return Verdict.TRAFFIC
    part = host_part(host, active, watch.active.percent)
    if starves(host, watch.unexplained) and not any(breaks_itself(queue, part) for queue in watch.queues):
        return Verdict.HOST
    return Verdict.SLOW


def is_slow(queue: QueueState, host: HostPart = NO_PART) -> bool:
    """Return whether it is an alarm that batches take longer, than they did or than planned.

    Those that take longer than they did make answers late, or certainly take longer and will do so.
    """
    return is_enough(queue.lateness, queue.slowness) or breaks_itself(queue, host)


def is_enough(late: float, slower: float) -> bool:
    """Return whether the evidence of late answers and of slower batches together is an alarm."""
    return late >= 1.0 - SHARED * slower


def breaks_itself(queue: QueueState, host: HostPart) -> bool:
    """Return whether a server's own batch times certainly break the P99, whatever the host adds to them."""
    slower = queue.slowness >= 1.0 or host.cut
    return (slower and will_break(queue, host)) or breaks_as_measured(queue)


def suspicion(watch: Watch) -> float:
    """Return the strongest evidence of a broken promise; 1 is an alarm."""
    return max(max(queue.lateness, queue.slowness) for queue in watch.queues)


def sizes_unknown(watch: Watch, seen: ServerSeen) -> bool:
    """Return whether a verdict from batch times must wait for the number of inferences in a request.

    More of them make longer batches. Triton counts them, and its counts are read under suspicion only. A
    verdict from late answers needs no such count.
    """
    if any(queue.lateness >= 1.0 for queue in watch.queues):
        return False
    return any(queue.promise.endpoint not in seen.inferences for queue in watch.queues)


def will_break(queue: QueueState, host: HostPart) -> bool:
    """Return whether the queue model puts the P99 above the SLO at the server's own batch times and the rate.

    What the host adds to them is no server's fault. The rate counts up to the planned one: more traffic does
    not make a server slow.
    """
    promise, known = queue.promise, queue.batches.baseline
    usual_s = baseline.usual_s(known, promise.batch)
    rate_rps = min(queue.rates_rps[-1], promise.rate_rps)
    slower = batch_times.slowdown(queue.batches, host)
    if not usual_s or rate_rps <= 0.0 or slower <= 0.0:
        return False
    p99_s = rounded_p99_s(rate_rps, [slower * time_s for time_s in usual_s], baseline.spread(known))
    return 1000.0 * p99_s > promise.slo_ms


def breaks_as_measured(queue: QueueState) -> bool:
    """Return whether the P99 is above the SLO at the times that batches have taken lately.

    It does so whatever was usual: a server that was slow from its first batch on has no faster baseline. The
    planned P99 counts, in proportion to the queue model's at the measured and at the planned times: it knows
    of pools and dispersion. The host's part is left out. Batches that are all as fast as planned need no
    queue model, which takes milliseconds.
    """
    promise, known = queue.promise, queue.batches.baseline
    ratio, error = batch_times.lasting(queue.batches)
    ratio -= SURE * error
    if not promise.batch_ms or promise.p99_ms is None or ratio <= 0.0:
        return False
    measured_s = baseline.measured_s(known, len(promise.batch_ms))
    planned_s = [time_ms / 1000.0 for time_ms in promise.batch_ms]
    factor = ratio * _slower(measured_s, planned_s)
    times_s = [ratio * m if m else factor * p for m, p in zip(measured_s, planned_s, strict=True)]
    if all(t <= p for t, p in zip(times_s, planned_s, strict=True)):
        return False
    spread, rate_rps = baseline.spread(known), max(queue.rates_rps[-1], 1e-9)
    now_s = rounded_p99_s(min(promise.rate_rps, rate_rps), times_s, spread)
    then_s = rounded_p99_s(promise.rate_rps, planned_s, spread)
    least = MODEL_ERROR if any(queue.late.charts) else AHEAD
    return now_s * promise.p99_ms > least * promise.slo_ms * then_s


def slower_than_planned(queue: QueueState) -> float:
    """Return how many times their planned time batches usually take; 1 where that is not known."""
    planned_s = [time_ms / 1000.0 for time_ms in queue.promise.batch_ms]
    return _slower(baseline.measured_s(queue.batches.baseline, len(planned_s)), planned_s)


def _slower(measured_s: Sequence[float], planned_s: Sequence[float]) -> float:
    both = [(m, p) for m, p in zip(measured_s, planned_s, strict=True) if m]
    return sum(m for m, _ in both) / sum(p for _, p in both) if both else 1.0


def longer_than_planned(queue: QueueState) -> float:
    """Return how many times as long as planned batches certainly take; 1 where they do not."""
    ratio, error = batch_times.lasting(queue.batches)
    factor = ratio * slower_than_planned(queue)
    return factor if factor > 1.0 + SURE * error else 1.0

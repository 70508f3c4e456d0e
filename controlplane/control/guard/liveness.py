"""Whether a server still answers: how long silence is allowed, and when it counts as dead. Pure.

The reasons are in docs/design/faults.md.
"""

from __future__ import annotations

from controlplane.control.guard.effects import Cause
from controlplane.control.guard.rule import contention
from controlplane.control.guard.state import Limits, Watch
from controlplane.domain.observation import Health, HostSeen, ServerSeen

GONE = ServerSeen(Health.GONE)

HANG_SLOS = 2.0
"""A queue that keeps its promise answers within twice its SLO: a batch runs for less than the SLO."""

LONGER = 1.5
"""A time without an answer is longer than any before if it is longer by this factor."""

_CAUSES = {
    Health.GONE: Cause.CRASH,
    Health.FAILING: Cause.FAILING,
    Health.HUNG: Cause.HANG,
    Health.PAUSED: Cause.HANG,
}


def death(
    watch: Watch, seen: ServerSeen, limits: Limits, now_s: float, host: HostSeen | None = None
) -> Cause | None:
    """Return why the active server counts as dead; None if it does not."""
    if seen.health in _CAUSES:
        return _CAUSES[seen.health]
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

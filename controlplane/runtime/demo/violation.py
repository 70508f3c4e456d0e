"""A forced SLO violation and the guard's repair of it, as a client sees both.

Every workload is loaded at its planned rate. Then one server is slowed down without the controller's
knowledge.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Event
from controlplane.domain.plan import Partition, Placement
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.waiting import wait_until
from controlplane.report.tables.demo_table import Cut, Repair, Span
from controlplane.runtime.demo.clients import Seen
from controlplane.runtime.fleet.history import History

_BEFORE_S = 5.0
_AFTER_S = 5.0
_BACKLOG_S = 1.0
"""The time after a redirect in which the old server still answers its queue."""
_GUARDED_S = 30.0
_HARDER_S = 6.0
_HARDER = (0.5, 0.25, 0.125)
"""A server busy with other work's time on its core seems to need more of it: a cut for that may leave enough,
and breaks no promise. So a cut without a redirect for so long is made deeper, to these parts of the first."""
_SEED = 1
_HALF = 0.5
_OVERLOAD = 0.7
"""The part of the used capacity that a cut leaves: less than the workload needs, so its queue grows."""

Load = Callable[[Placement, Iterator[float]], Seen]
"""A client that sends requests for a workload at these times from now, until they end."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The workload whose server is slowed down, and the part of its speed that is left."""

    partition: Partition
    placement: Placement
    server: Server
    part: float


def covered(partition: Partition) -> bool:
    """Return whether the partition has a hot shadow with a larger share."""
    shadow = partition.shadow
    return shadow is not None and shadow.policy is ShadowPolicy.HOT and shadow.percent > partition.percent


def victim(
    placed: Sequence[tuple[Partition, Placement]], servers: dict[str, Server], busy: Mapping[str, float]
) -> Victim:
    """Return the busiest partition with a larger hot shadow. Raises EngineError where no partition has one.

    `servers` are the planned active servers that still serve, by partition; `busy` is the measured
    utilisation by workload.
    """
    candidates = [
        (partition, placement)
        for partition, placement in placed
        if covered(partition) and partition.id in servers
    ]
    if not candidates:
        raise EngineError("no partition has a larger shadow that could replace a slow server")
    partition, placement = max(candidates, key=lambda one: busy[one[1].name])
    part = min(_HALF, _OVERLOAD * busy[placement.name])
    return Victim(partition, placement, servers[partition.id], part)


def force(
    history: History,
    placed: Sequence[tuple[Partition, Placement]],
    hit: Victim,
    load: Load,
    slow_down: Callable[[float], object],
) -> Repair:
    """Load every workload, `slow_down` one server to a part of its speed, wait for the guard's redirect.

    Raises EngineError where the server cannot be slowed down, or where no redirect follows.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(len(placed)) as pool, contextlib.ExitStack() as at_end:
        at_end.callback(stop.set)  # also after an error: the clients end
        streams = np.random.default_rng(_SEED).spawn(len(placed))
        clients = {
            placement.endpoint: pool.submit(load, placement, _poisson(placement.requests_rps, random, stop))
            for (_, placement), random in zip(placed, streams, strict=True)
        }
        stop.wait(_BEFORE_S)
        cuts, moved = _cut(history, hit, slow_down)
        guarded = await_event(history, "notice", hit.partition.id, moved.at_s, "stands by")
        stop.wait(_AFTER_S)
        stop.set()
        seen = clients[hit.placement.endpoint].result()
    said = await_event(history, "notice", hit.partition.id, moved.at_s, "redirected to")
    return _repair(hit, seen, cuts, moved, said.reason, guarded)


def _cut(history: History, hit: Victim, slow_down: Callable[[float], object]) -> tuple[Sequence[Cut], Event]:
    """Slow the server down, deeper while nothing follows; return the cuts and the redirect.

    The cuts' times are since the epoch.
    """
    percent = hit.partition.percent * hit.part
    first_s = time.time()
    cuts = [Cut(first_s, percent)]
    slow_down(hit.part)
    for harder in _HARDER:
        with contextlib.suppress(EngineError):
            return cuts, await_event(history, "redirect", hit.partition.id, first_s, deadline_s=_HARDER_S)
        cuts.append(Cut(time.time(), harder * percent))
        with contextlib.suppress(EngineError):  # a redirect just now may have ended the server
            slow_down(harder * hit.part)
    left_s = _GUARDED_S - (len(cuts) - 1) * _HARDER_S
    return cuts, await_event(history, "redirect", hit.partition.id, first_s, deadline_s=left_s)


def _repair(hit: Victim, seen: Seen, cuts: Sequence[Cut], moved: Event, said: str, guarded: Event) -> Repair:
    first, *others = cuts
    cut_s = first.at_s
    followed = [cut for cut in others if cut.at_s <= moved.at_s][-1:]
    settled_s = moved.at_s + _BACKLOG_S
    first_s, last_s = float(seen.due_s.min()), float(seen.due_s.max())
    spans = (
        _span("before the cut", seen, first_s, cut_s, cut_s),
        _span("until redirected", seen, cut_s, moved.at_s, cut_s),
        _span("while the backlog ends", seen, moved.at_s, settled_s, cut_s),
        _span("served by the shadow", seen, settled_s, last_s, cut_s),
    )
    answered_s = (seen.due_s + seen.latency_ms / 1000.0)[seen.due_s >= moved.at_s]
    return Repair(
        workload=hit.placement.name,
        slo_ms=hit.placement.slo_ms,
        percent=hit.partition.percent,
        cut_percent=first.percent,
        redirected_s=moved.at_s - cut_s,
        reason=said,
        served_s=float(answered_s.min()) - cut_s,
        guarded_s=guarded.at_s - cut_s,
        shadow=guarded.reason,
        spans=spans,
        deeper=replace(followed[0], at_s=followed[0].at_s - cut_s) if followed else None,
    )


def _span(name: str, seen: Seen, begin_s: float, end_s: float, zero_s: float) -> Span:
    within = seen.latency_ms[(seen.due_s >= begin_s) & (seen.due_s < end_s)]
    failed = sum(begin_s <= at < end_s for at in seen.failed_s)
    p50, p99 = np.percentile(within, (50, 99)) if within.size else (None, None)
    return Span(name, begin_s - zero_s, end_s - zero_s, int(within.size) + failed, failed, p50, p99)


def _poisson(rate_rps: float, random: np.random.Generator, stop: threading.Event) -> Iterator[float]:
    due = 0.0
    while not stop.is_set():
        due += float(random.exponential(1.0 / rate_rps))
        yield due


def await_event(
    history: History,
    kind: str,
    subject: str,
    since_s: float,
    says: str = "",
    *,
    deadline_s: float = _GUARDED_S,
) -> Event:
    """Wait for an event that says this. Raises EngineError where none comes."""
    found: list[Event] = []

    def look() -> bool:
        found.extend(
            e
            for e in history.events(since_s=since_s)
            if e.kind == kind and e.subject == subject and says in e.reason
        )
        return bool(found)

    if not wait_until(look, deadline_s=deadline_s, interval_s=0.1):
        raise EngineError(f"{subject}: no {says or kind} within {_GUARDED_S:g} s")
    return found[0]

"""What the monitor knows: requests second by second and counted, routes, and the promises of the plan."""

from __future__ import annotations

import contextlib
import math
import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.domain.errors import TrisectError
from controlplane.domain.fleet import Backend, name_of
from controlplane.domain.observation import LatencyWindow
from controlplane.domain.plan import Plan
from controlplane.files.gateway import SlotsRecord, read_slots
from controlplane.files.reading import Remembered, exists
from controlplane.monitor.metrics import DURATION, LATE, MEASURED, OVERLOADED, REQUESTS, SIZE, Page
from controlplane.monitor.records import Losses, Record, Unlogged, parse, protocol_of

KEEP_S = 120
_SHORTEST_S = 1.0
"""The shortest window of a rate."""


@dataclass(slots=True)
class Second:
    """Requests that ended within one second, in the order of their lines; refused ones are only counted."""

    number: int
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    latency_ms: array[float] = field(default_factory=lambda: array("d"))
    errors_s: array[float] = field(default_factory=lambda: array("d"))
    refused: int = 0


class Windows:
    """Requests by endpoint in any window of the last minutes up to now, without abandoned ones.

    Latencies are stored one by one, since percentiles of percentiles are meaningless. A minute of thousands
    of requests a second needs a few megabytes.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, deque[Second]] = {}

    def add(self, record: Record) -> None:
        """Add an ended request. Lines may be slightly out of order."""
        if record.abandoned and not record.refused:
            return
        seconds = self._seconds.setdefault(record.endpoint, deque(maxlen=KEEP_S))
        number = int(record.ended_s)
        if not seconds or seconds[-1].number < number:
            seconds.append(Second(number))
        into = seconds[-1]
        if into.number != number:
            into = next((second for second in reversed(seconds) if second.number == number), into)
        if record.refused:
            into.refused += 1
            return
        into.ended_s.append(record.ended_s)
        into.latency_ms.append(record.latency_ms)
        if record.failed:
            into.errors_s.append(record.ended_s)

    def forget(self, now_s: float) -> None:
        """Drop endpoints without recent requests, and seconds to come: the clock was set back."""
        for seconds in self._seconds.values():
            while seconds and seconds[-1].number > now_s:
                seconds.pop()
        oldest = now_s - KEEP_S
        self._seconds = {e: s for e, s in self._seconds.items() if s and s[-1].number >= oldest}

    def by_endpoint(self, now_s: float, seconds: float) -> dict[str, LatencyWindow]:
        """Return the requests that ended within the last `seconds`, by endpoint."""
        return {endpoint: self._window(endpoint, now_s, seconds) for endpoint in sorted(self._seconds)}

    def _window(self, endpoint: str, now_s: float, length_s: float) -> LatencyWindow:
        since, stored = now_s - length_s, self._seconds[endpoint]
        ended, latencies, errors, refused = array("d"), array("d"), 0, 0
        for second in reversed(stored):
            if second.number < int(since):
                break
            ended.extend(second.ended_s)
            latencies.extend(second.latency_ms)
            errors += sum(since < at <= now_s for at in second.errors_s)
            refused += second.refused if since < second.number + 1 and second.number <= now_s else 0
        at_s = np.frombuffer(ended)
        every = np.frombuffer(latencies)[(at_s > since) & (at_s <= now_s)]
        ordered = np.sort(every)  # np.quantile takes five times as long for a short window
        # The smallest latencies that 50 % and 99 % of the requests do not exceed.
        p50, p99 = (
            float(ordered[math.ceil(part * len(every)) - 1]) if len(every) else None for part in (0.5, 0.99)
        )
        first_s = next((second.ended_s[0] for second in stored if second.ended_s), since)
        known_s = max(_SHORTEST_S, now_s - first_s)
        return LatencyWindow(endpoint, min(length_s, known_s), len(every), errors, p50, p99, refused)


@dataclass(frozen=True, slots=True)
class Promise:
    """An endpoint's strictest SLO in seconds, and its planned requests per second."""

    slo_s: float
    planned_rps: float


@dataclass(frozen=True, slots=True)
class Promises:
    """The promises by endpoint, how the plan was made, and its GPUs by type."""

    by_endpoint: Mapping[str, Promise] = field(default_factory=dict)
    made_by: tuple[str, str, str] | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan) -> Promises:
        """Return those of a plan; a pool's rates add up."""
        found: dict[str, Promise] = {}
        for _, _, placed in plan.placements():
            before = found.get(placed.endpoint, Promise(placed.slo_ms / 1e3, 0.0))
            found[placed.endpoint] = Promise(
                min(before.slo_s, placed.slo_ms / 1e3), before.planned_rps + placed.requests_rps
            )
        gpus: dict[str, int] = {}
        for gpu in plan.gpus:
            gpus[gpu.type] = gpus.get(gpu.type, 0) + 1
        return Promises(found, (plan.strategy, plan.rule.value, plan.latency_model), gpus)


_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_UNAVAILABLE = 14

Place = tuple[str, str]
"""Partition and role of a server."""


def placed(server: str) -> Place:
    """Partition and role, from a server's name (`fleet.partition.role.revision`)."""
    parts = server.split(".")
    return (".".join(parts[1:-2]), parts[-2]) if len(parts) >= 4 else (server, "")


class Durations:
    """One endpoint's durations: bins between fixed edges and the SLO, begun again where the SLO changes."""

    __slots__ = ("counts", "edges", "late", "requests", "slo_s", "total_s")

    def __init__(self, slo_s: float | None) -> None:
        self.late = 0
        self.requests = 0
        self._begin(slo_s)

    def _begin(self, slo_s: float | None) -> None:
        self.slo_s = slo_s
        self.edges = sorted({*_EDGES_S, *(() if slo_s is None else (slo_s,))})
        self.counts = [0] * (len(self.edges) + 1)
        self.total_s = 0.0

    def add(self, record: Record, slo_s: float | None) -> None:
        """Count an ended request; a failed one is late whatever it took. Skips abandoned and refused ones."""
        if slo_s != self.slo_s:
            self._begin(slo_s)
        if record.abandoned or record.refused:
            return
        seconds = record.latency_ms / 1e3
        self.counts[bisect_left(self.edges, seconds)] += 1
        self.total_s += seconds
        if slo_s is not None:
            self.requests += 1
            self.late += record.failed or seconds > slo_s


class Totals:
    """Counters by endpoint, partition and role; revisions of a server count together."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, Place, str, int, int | None, bool], list[int]] = {}
        self._durations: dict[str, Durations] = {}
        self._refused: Counter[str] = Counter()

    def add(self, record: Record, server: str, promises: Mapping[str, Promise]) -> None:
        """Count an ended request."""
        key = (record.endpoint, placed(server), record.sender, record.http, record.grpc, record.abandoned)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = [0, 0, 0]
        sums[0] += 1
        sums[1] += record.bytes_in
        sums[2] += record.bytes_out
        self._refused[record.endpoint] += record.refused
        promise = promises.get(record.endpoint)
        slo_s = promise.slo_s if promise is not None else None
        durations = self._durations.get(record.endpoint)
        if durations is None:
            durations = self._durations[record.endpoint] = Durations(slo_s)
        durations.add(record, slo_s)

    def requests(self) -> Counter[tuple[str, str, str, str, str]]:
        """By endpoint, partition, role, protocol and status (`abandoned` where the client left)."""
        counts: Counter[tuple[str, str, str, str, str]] = Counter()
        for (endpoint, place, sender, http, grpc, abandoned), (count, _, _) in self._sums.items():
            protocol = protocol_of(sender)
            # A call that HAProxy ends without a status of gRPC's reads UNAVAILABLE.
            status = http if protocol == "http" else grpc or (_UNAVAILABLE if http >= 500 else 0)
            code = "abandoned" if abandoned else str(status)
            counts[(endpoint, *place, protocol, code)] += count
        return counts

    def bytes(self) -> Counter[tuple[str, str, str, str]]:
        """By endpoint, partition, role and direction."""
        counts: Counter[tuple[str, str, str, str]] = Counter()
        for (endpoint, place, *_), (_, size, sent) in self._sums.items():
            counts[(endpoint, *place, "in")] += size
            counts[(endpoint, *place, "out")] += sent
        return counts

    def write(self, page: Page) -> None:
        """Add all counters to a page."""
        for labels, count in sorted(self.requests().items()):
            page.add(REQUESTS, count, *labels)
        for where, size in sorted(self.bytes().items()):
            page.add(SIZE, size, *where)
        for endpoint, count in sorted(self._refused.items()):
            page.add(OVERLOADED, count, endpoint)
        for endpoint, one in sorted(self._durations.items()):
            if one.slo_s is not None:
                page.add(LATE, one.late, endpoint)
                page.add(MEASURED, one.requests, endpoint)
        for endpoint, one in sorted(self._durations.items()):
            page.add_histogram(DURATION, one.edges, one.counts, one.total_s, endpoint)


_NO_SERVER = "none"


class ServedRoutes:
    """The routes, and the servers behind them."""

    def __init__(self, slots: Path) -> None:
        self._table = Remembered(slots, partial(read_slots, slots))
        self._taken: SlotsRecord | None = None
        self.present: tuple[Backend, ...] = ()
        self.endpoints: Mapping[str, Sequence[str]] = {}
        self.routes: Mapping[str, Sequence[str]] = {}

    def refresh(self) -> None:
        """Read the table again if it has changed."""
        table = self._taken
        with contextlib.suppress(OSError, TrisectError):
            table = self._table.get()
        if table is None or table is self._taken:
            return
        self._taken = table
        present = {backend.server: backend for slot in table.slots for backend in slot.route.servers}
        self.present = tuple(present.values())
        self.routes = {
            slot.endpoint: [member.server for member in slot.route.members]
            for slot in table.slots
            if not slot.draining
        }
        carried = table.carried()
        self.endpoints = {f"{p}_{index}": e for index, e in carried.items() if e for p in "hg"}


def _read_promises(plan: Path) -> Promises:
    from controlplane.files.plans import read_applied

    return Promises.of(read_applied(plan)) if exists(plan) else Promises()


class Monitor:
    """The monitor's data."""

    def __init__(self, served: ServedRoutes, plan: Path) -> None:
        self.served = served
        self.windows = Windows()
        self.losses = Losses()
        self.unlogged = Unlogged()
        self.totals = Totals()
        self.promises = Promises()
        self._plan = Remembered(plan, partial(_read_promises, plan))

    def refresh(self) -> None:
        """Read the routes and the plan again if they have changed; a broken plan leaves the last promises."""
        self.served.refresh()
        with contextlib.suppress(OSError, TrisectError):
            self.promises = self._plan.get()

    def take(self, line: bytes) -> None:
        """Count one line of the log."""
        record = parse(line)
        if record is None:
            return
        self.losses.count(record.sender, record.number)
        if record.endpoint:
            server = name_of(record.server) or _NO_SERVER
            self.windows.add(record.not_after(time.time()))
            self.totals.add(record, server, self.promises.by_endpoint)

    def answer(self, question: Mapping[str, Any]) -> Any:
        """Answer one query of `controlplane.monitor.client`."""
        match question:
            case {"windows": seconds}:
                found = self.windows.by_endpoint(time.time(), float(seconds))
                return [asdict(window) for window in found.values()]
            case {"counts": _}:
                losses, unlogged = self.losses, self.unlogged.total
                return {"received": losses.received, "lost": losses.lost, "unlogged": unlogged}
        return None

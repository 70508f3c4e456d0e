"""Counters of ended requests since the monitor started, and what the plan promises of them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.domain.plan import Plan
from controlplane.monitor.metrics import DURATION, LATE, MEASURED, OVERLOADED, REQUESTS, SIZE, Page
from controlplane.monitor.records import Record, protocol_of


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

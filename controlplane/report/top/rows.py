"""What `ctl top` shows of a fleet, as values: a row and two sparklines for each workload. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.fleet import ServerState
from controlplane.report.tables.status_table import Status, StatusRow, WorkloadRow

KEPT = 16
"""Looks in a sparkline."""
_BARS = "▁▂▃▄▅▆▇█"
_UNKNOWN = " "


class Order(StrEnum):
    """Orders of the rows; the most urgent workload comes first."""

    SPEC = "as in the plan"
    P99 = "P99 against SLO"
    RATE = "rate"
    ERRORS = "errors"
    NAME = "name"

    def next(self) -> Order:
        """Return the order after this one; after the last comes the first."""
        every = list(Order)
        return every[(every.index(self) + 1) % len(every)]


@dataclass(frozen=True, slots=True)
class Row:
    """One workload now, and its figures of the last looks, oldest first. Unknown figures are None."""

    workload: str
    endpoint: str
    slo_ms: float
    planned_rps: float
    rate_rps: float | None
    p99_ms: float | None
    errors: int | None
    served_by: str
    guard: str
    rates: tuple[float | None, ...]
    p99s: tuple[float | None, ...]

    @property
    def late(self) -> bool:
        """Whether the P99 is above the SLO."""
        return self.p99_ms is not None and self.p99_ms > self.slo_ms


def rows(status: Status, before: Sequence[Row]) -> tuple[Row, ...]:
    """Return the workloads of a status in its order; `before` has the rows of the last look."""
    last = {row.workload: row for row in before}
    return tuple(_row(status, workload, last.get(workload.workload)) for workload in status.workloads)


def _row(status: Status, seen: WorkloadRow, before: Row | None) -> Row:
    rates, p99s = ((), ()) if before is None else (before.rates, before.p99s)
    return Row(
        seen.workload,
        seen.endpoint,
        seen.slo_ms,
        seen.planned_rps,
        seen.rate_rps,
        seen.p99_ms,
        seen.errors,
        served_by="; ".join(_serving(status, seen)) or "no server",
        guard=", ".join(_phases(status, seen)) or "–",
        rates=(*rates, seen.rate_rps)[-KEPT:],
        p99s=(*p99s, seen.p99_ms)[-KEPT:],
    )


def _serving(status: Status, workload: WorkloadRow) -> Iterable[str]:
    for server in _servers(status, workload):
        state = "" if server.state == ServerState.RUNNING else f", {server.state}"
        yield f"{server.partition} {server.percent:g} % of {server.device}{state}"


def _servers(status: Status, workload: WorkloadRow) -> Iterable[StatusRow]:
    return (row for row in status.servers if row.routed and workload.endpoint in row.endpoints)


def _phases(status: Status, workload: WorkloadRow) -> Iterable[str]:
    mine = [row for row in status.guard if row.partition in workload.partitions]
    return dict.fromkeys(row.phase or "not watched" for row in mine)


_KEYS: Mapping[Order, Callable[[Row], tuple[float, str]]] = {
    Order.P99: lambda row: (-(row.p99_ms or 0.0) / row.slo_ms, row.workload),
    Order.RATE: lambda row: (-(row.rate_rps or 0.0), row.workload),
    Order.ERRORS: lambda row: (-(row.errors or 0), row.workload),
    Order.NAME: lambda row: (0.0, row.workload),
}


def ordered(found: Sequence[Row], order: Order) -> tuple[Row, ...]:
    """Return the rows in an order."""
    key = _KEYS.get(order)
    return tuple(found if key is None else sorted(found, key=key))


def sparkline(values: Sequence[float | None], top: float) -> str:
    """Draw values between 0 and `top` as bars, the newest last; a larger one has the full height."""
    bars = (_UNKNOWN if value is None else _bar(value / top if top > 0 else 0.0) for value in values)
    return "".join(bars).rjust(KEPT, _UNKNOWN)


def _bar(part: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(0, int(part * len(_BARS))))]


def companions(status: Status, workload: str) -> tuple[str, ...]:
    """Return the other workloads that a redirect of this one moves too: they share its partitions."""
    partitions = {p for row in status.workloads if row.workload == workload for p in row.partitions}
    sharing = (row.workload for row in status.workloads if partitions & set(row.partitions))
    return tuple(name for name in sharing if name != workload)

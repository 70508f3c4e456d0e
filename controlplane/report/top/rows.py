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
    """One workload as it was `seen` now, and its figures of the last looks, oldest first."""

    seen: WorkloadRow
    served_by: str
    guard: str
    rates: tuple[float | None, ...]
    p99s: tuple[float | None, ...]


def rows(status: Status, before: Sequence[Row]) -> tuple[Row, ...]:
    """Return the workloads of a status in its order; `before` has the rows of the last look."""
    last = {row.seen.workload: row for row in before}
    return tuple(_row(status, workload, last.get(workload.workload)) for workload in status.workloads)


def _row(status: Status, seen: WorkloadRow, before: Row | None) -> Row:
    rates, p99s = ((), ()) if before is None else (before.rates, before.p99s)
    return Row(
        seen,
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


_KEYS: Mapping[Order, Callable[[WorkloadRow], tuple[float, str]]] = {
    Order.P99: lambda seen: (-(seen.p99_ms or 0.0) / seen.slo_ms, seen.workload),
    Order.RATE: lambda seen: (-(seen.rate_rps or 0.0), seen.workload),
    Order.ERRORS: lambda seen: (-(seen.errors or 0), seen.workload),
    Order.NAME: lambda seen: (0.0, seen.workload),
}


def ordered(found: Sequence[Row], order: Order) -> tuple[Row, ...]:
    """Return the rows in an order."""
    key = _KEYS.get(order)
    return tuple(found if key is None else sorted(found, key=lambda row: key(row.seen)))


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

"""A running fleet as a table for a person, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.report.plan_table import number

_SHOWN_NAMES = 3

WINDOW_S = 60.0
"""What clients saw is shown of so long, or since the monitor runs."""


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One server, and what its workload sees. Unknown figures are None."""

    partition: str
    role: str
    state: str
    device: str
    percent: float
    enforced_by: str | None
    endpoints: tuple[str, ...]
    routed: bool
    http_port: int
    grpc_port: int
    slo_ms: float | None = None
    p99_ms: float | None = None
    planned_rps: float | None = None
    rate_rps: float | None = None
    errors: int | None = None


def status_table(rows: Sequence[StatusRow]) -> Table:
    """One line a server."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in (
        ("partition", False), ("role", False), ("state", False), ("device", False), ("share %", True),
        ("held by", False), ("endpoint", False), ("routed", False), ("rate/s", True), ("planned/s", True),
        ("P99 ms", True), ("SLO ms", True), ("errors", True),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row.partition,
            row.role,
            row.state,
            row.device,
            f"{row.percent:g}",
            row.enforced_by or "nothing",
            _few(row.endpoints),
            "yes" if row.routed else "no",
            *_figures(row),
        )
    return table


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One workload, what it was promised and what its clients see; of a pool all of it together."""

    workload: str
    endpoint: str
    partitions: tuple[str, ...]
    slo_ms: float
    planned_rps: float
    p99_ms: float | None = None
    rate_rps: float | None = None
    errors: int | None = None


def workload_table(rows: Sequence[WorkloadRow]) -> Table:
    """One line a workload."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("workload", "endpoint", "served by"):
        table.add_column(name, no_wrap=True)
    for name in ("rate/s", "planned/s", "P99 ms", "SLO ms", "errors"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.workload,
            row.endpoint,
            _few(row.partitions),
            *_figures(row),
        )
    return table


def _figures(row: StatusRow | WorkloadRow) -> tuple[str | Text, ...]:
    """What clients see beside what was planned, in the columns' order."""
    p99 = Text(f"{number(row.p99_ms)} !", style="red") if _late(row) else number(row.p99_ms)
    errors = "–" if row.errors is None else str(row.errors)
    return number(row.rate_rps), number(row.planned_rps), p99, number(row.slo_ms), errors


def _late(row: StatusRow | WorkloadRow) -> bool:
    return row.p99_ms is not None and row.slo_ms is not None and row.p99_ms > row.slo_ms


def _footnote(rows: Sequence[StatusRow | WorkloadRow]) -> str:
    """What the figures are of."""
    late = "; !: above its SLO" if any(map(_late, rows)) else ""
    return f"rate, P99 and errors are of the last {WINDOW_S:g} s{late}"


def _few(names: Sequence[str]) -> str:
    """A list that leaves room for the rest of its line."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_SHOWN_NAMES])} and {more} more"


@dataclass(frozen=True, slots=True)
class GuardRow:
    """How one partition is guarded. Times are seconds ago; None: unknown, or it never happened.

    `phase` is None where no controller watches.
    """

    partition: str
    phase: str | None = None
    phase_since_s: float | None = None
    shadow: str | None = None
    shadow_ready: bool = False
    failed_starts: int = 0
    breaker_open: bool = False
    retry_in_s: float | None = None
    redirected_s: float | None = None
    redirect: str | None = None
    said_s: float | None = None
    said: str | None = None


def guard_table(rows: Sequence[GuardRow]) -> Table:
    """One line a partition: its phase, its shadow, how starting goes, the last redirect, the last warning."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("partition", "guard", "shadow", "starts", "last redirect", "last warning"):
        table.add_column(name, no_wrap=name != "last warning")
    for row in rows:
        if row.phase is None:
            phase, shadow, starts = "not watched", "–", "–"
        else:
            phase = f"{row.phase} for {_age(row.phase_since_s)}"
            shadow = "none" if row.shadow is None else "ready" if row.shadow_ready else "not ready"
            starts = _starts(row)
        cause = (row.redirect or "").rpartition(": ")[2]
        redirect = "never" if row.redirect is None else f"{_age(row.redirected_s)} ago: {cause}"
        said = "–" if row.said is None else f"{_age(row.said_s)} ago: {row.said}"
        table.add_row(row.partition, phase, shadow, starts, redirect, said)
    return table


def _starts(row: GuardRow) -> str:
    if not row.failed_starts:
        return "fine"
    next_try = "" if row.retry_in_s is None else f", next in {_age(row.retry_in_s)}"
    return f"{'breaker open: ' if row.breaker_open else ''}{row.failed_starts} did not last{next_try}"


def _age(seconds: float | None) -> str:
    """A time span as people say it."""
    if seconds is None:
        return "–"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


@dataclass(frozen=True, slots=True)
class Status:
    """A fleet at one moment. `controller` is its pid, None where none runs.

    `trouble` says why the engine does not answer: then no server is known, and all else is.
    `history_trouble` says why nothing is known of what happened. `restarts` are the newest of each process
    of the gateway, oldest first: how many seconds ago, and which and why.
    """

    servers: tuple[StatusRow, ...]
    workloads: tuple[WorkloadRow, ...]
    guard: tuple[GuardRow, ...]
    controller: int | None
    trouble: str | None = None
    restarts: tuple[tuple[float, str], ...] = ()
    history_trouble: str | None = None


def status_view(status: Status) -> RenderableType:
    """The tables, and a word where nobody guards.

    Workloads have lines of their own only where servers serve several: else the servers' say it all.
    """
    parts: list[RenderableType] = [status_table(status.servers)]
    if status.trouble is not None:
        parts = [f"no server can be shown: {status.trouble}"]
    if any(len(row.endpoints) > 1 for row in status.servers):
        parts += ["", workload_table(status.workloads)]
    if status.servers:
        parts += ["", _footnote((*status.servers, *status.workloads))]
    if status.guard:
        parts += ["", guard_table(status.guard)]
    if status.history_trouble is not None:
        parts += ["", f"nothing that happened can be shown: {status.history_trouble}"]
    if status.restarts:
        parts += ["", *(f"gateway, {_age(ago_s)} ago: {told}" for ago_s, told in status.restarts)]
    if status.controller is None:
        parts += ["", "no controller runs: nothing is redirected or restarted (`ctl serve` starts one)"]
    return Group(*parts)


def status_document(fleet: str, status: Status) -> Mapping[str, Any]:
    """The JSON of `ctl status`."""
    return {
        "fleet": fleet,
        "controller": status.controller,
        "trouble": status.trouble,
        "history_trouble": status.history_trouble,
        "restarts": [{"seconds_ago": ago_s, "reason": told} for ago_s, told in status.restarts],
        "servers": [asdict(row) for row in status.servers],
        "workloads": [asdict(row) for row in status.workloads],
        "guard": [asdict(row) for row in status.guard],
    }

"""The tables of `ctl status`, its JSON, and the problems that scripts wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.domain.fleet import ServerState
from controlplane.domain.observation import RateSeen
from controlplane.domain.plan import Source
from controlplane.files.documents import plain
from controlplane.report.tables.terminal import table_of
from controlplane.report.words import number


@dataclass(frozen=True, slots=True)
class LoadView:
    """The load of a fleet. `following` says whether its plan follows the load, and otherwise why not."""

    following: str
    workloads: tuple[RateSeen, ...]


def load_table(view: LoadView) -> Table:
    """Return one line for each workload: the rates planned, seen and forecast, and how bursty they are."""
    table = table_of("workload, >planned/s, >seen/s, >forecast/s, arrivals")
    for rate in view.workloads:
        known = rate.level_rps is not None
        forecast = f"{number(rate.lower_rps)} to {number(rate.upper_rps)}" if known else "–"
        kind = "bursty" if rate.bursty else "Poisson"
        arrivals = f"{kind}, dispersion {rate.dispersion:.1f}" if known else "–"
        table.add_row(rate.workload, number(rate.planned_rps), number(rate.level_rps), forecast, arrivals)
    return table


_SHOWN_NAMES = 3

WINDOW_S = 60.0
"""The window of the shown rates, P99s and errors; shorter if the monitor started later."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """The batch of a model of a server, of those whose batch can change: in force, and the plan's."""

    model: str
    batch: int
    planned: int | None


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One server, with the figures of its workload. Unknown figures are None.

    `role` is the present one; `server` is its name in events, logs and engine, with the role of its start.
    """

    partition: str
    role: str
    state: str
    device: str
    percent: float
    enforced_by: str | None
    endpoints: tuple[str, ...]
    routed: bool
    http: str
    grpc: str
    slo_ms: float | None = None
    p99_ms: float | None = None
    planned_rps: float | None = None
    rate_rps: float | None = None
    errors: int | None = None
    batches: tuple[BatchRow, ...] = ()
    server: str = ""


def status_table(rows: Sequence[StatusRow]) -> Table:
    """Return one line for each server."""
    table = table_of(
        "partition, role, state, device, >share %, held by, endpoint, routed, >rate/s, >planned/s, >P99 ms, "
        ">SLO ms, >errors, ~server"
    )
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
            row.server,
        )
    return table


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One workload: its SLO and planned rate, and the measured ones, summed over its pool.

    `sources` are those of the plan's execution times; empty where the plan does not say. `refused` requests
    were beyond the planned rate in overload.
    """

    workload: str
    endpoint: str
    partitions: tuple[str, ...]
    slo_ms: float
    planned_rps: float
    p99_ms: float | None = None
    rate_rps: float | None = None
    errors: int | None = None
    sources: tuple[Source, ...] = ()
    refused: int | None = None


def workload_table(rows: Sequence[WorkloadRow]) -> Table:
    """Return one line for each workload."""
    table = table_of("workload, endpoint, served by, >rate/s, >planned/s, >P99 ms, >SLO ms, >errors")
    for row in rows:
        table.add_row(row.workload, row.endpoint, _few(row.partitions), *_figures(row))
    return table


def _figures(row: StatusRow | WorkloadRow) -> tuple[str | Text, ...]:
    """Return the measured figures and the planned ones in the order of the columns."""
    p99 = Text(f"{number(row.p99_ms)} !", style="red") if is_late(row) else number(row.p99_ms)
    errors = "–" if row.errors is None else str(row.errors)
    return number(row.rate_rps), number(row.planned_rps), p99, number(row.slo_ms), errors


def is_late(row: StatusRow | WorkloadRow) -> bool:
    """Return whether the P99 is known and above the SLO."""
    return row.p99_ms is not None and row.slo_ms is not None and row.p99_ms > row.slo_ms


def _few(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_SHOWN_NAMES])} and {more} more"


@dataclass(frozen=True, slots=True)
class GuardRow:
    """The controller's state for one partition. Times are seconds ago; None: unknown, or it never happened.

    `phase` is None where no controller runs. The last six fields are the plan's: what the shadow covers and
    the partition survives, what both take of the memory, the seconds of a redirect, and its policy.
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
    covers: float | None = None
    survives_gpu_loss: bool | None = None
    memory_mb: float | None = None
    shadow_memory_mb: float | None = None
    redirect_s: float | None = None
    policy: str | None = None


def guard_table(rows: Sequence[GuardRow]) -> Table:
    """Return one line for each partition: phase, shadow, starts, the last redirect, the last warning."""
    table = table_of("partition, guard, shadow, starts, last redirect, ~last warning")
    for row in rows:
        if row.phase is None:
            phase, shadow, starts = "not watched", "–", "–"
        else:
            phase = f"{row.phase} for {_age(row.phase_since_s)}"
            shadow = "none" if row.shadow is None else "ready" if row.shadow_ready else "not ready"
            shadow = f"{row.policy}, {shadow}" if row.policy and row.shadow else shadow
            shadow += f", {row.redirect_s:.1f} s" if row.redirect_s and row.shadow else ""
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
    """Format a duration in its largest suitable unit."""
    if seconds is None:
        return "–"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


@dataclass(frozen=True, slots=True)
class Restarted:
    """A restart of one of the gateway's processes: which one and why."""

    seconds_ago: float
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """A fleet at one moment. `controller` is its pid, None where none runs.

    `trouble` is the reason if the engine does not answer; the servers are unknown then. `history_trouble` is
    the reason if the history cannot be read. `load` is None where no controller has seen it. `restarts` has
    the latest restart of each gateway process, oldest first; `gateway_missing` names those that do not run.
    """

    servers: tuple[StatusRow, ...]
    workloads: tuple[WorkloadRow, ...]
    guard: tuple[GuardRow, ...]
    controller: int | None
    trouble: str | None = None
    restarts: tuple[Restarted, ...] = ()
    history_trouble: str | None = None
    load: LoadView | None = None
    gateway_missing: tuple[str, ...] = ()

    @property
    def gateway_down(self) -> str:
        """Which of the gateway's processes do not run, in words; empty where all do."""
        return f"gateway down: {', '.join(self.gateway_missing)} not running" if self.gateway_missing else ""


def status_view(status: Status) -> RenderableType:
    """Return the tables, and a warning if no controller runs.

    There is a table of workloads only if a server serves several.
    """
    parts: list[RenderableType] = []
    for block in (*_figures_seen(status), *_state(status)):
        parts += ["", *block]
    return Group(*parts[1:])


_Block = list[RenderableType]


def _figures_seen(status: Status) -> Iterator[_Block]:
    servers, workloads = status.servers, status.workloads
    known = status.trouble is None
    yield [status_table(servers) if known else f"the servers are unknown: {status.trouble}"]
    if any(len(row.endpoints) > 1 for row in servers):
        yield [workload_table(workloads)]
    if servers:
        rows: list[StatusRow | WorkloadRow] = [*servers, *workloads]
        late = "; !: above its SLO" if any(map(is_late, rows)) else ""
        yield [f"rate, P99 and errors are of the last {WINDOW_S:g} s{late}"]
    if refused := [f"{row.refused} of {row.workload}" for row in workloads if row.refused]:
        yield [f"refused in overload: {', '.join(refused)}"]
    batches = [
        f"{one.batch} of {one.model} on {row.partition} ({row.role}), planned {one.planned}"
        for row in servers
        for one in row.batches
        if one.batch != one.planned
    ]
    if batches:
        yield [f"other batches than planned: {'; '.join(batches)}"]
    sources = [
        f"{source} for {_few(named)}"
        for source in Source
        if (named := [row.workload for row in workloads if source in row.sources])
    ]
    if sources:
        yield [f"the plan's execution times: {'; '.join(sources)}"]


def _state(status: Status) -> Iterator[_Block]:
    if status.guard:
        yield [guard_table(status.guard)]
    if status.load is not None:
        yield [load_table(status.load), f"the plan follows the load: {status.load.following}"]
    if status.history_trouble is not None:
        yield [f"the history cannot be read: {status.history_trouble}"]
    if status.restarts:
        yield [f"gateway, {_age(one.seconds_ago)} ago: {one.reason}" for one in status.restarts]
    if status.gateway_down:
        yield [status.gateway_down]
    if status.controller is None:
        yield ["no controller runs: nothing is redirected or restarted (`ctl controller` starts one)"]


def status_document(fleet: str, status: Status) -> dict[str, Any]:
    """Return the JSON of `ctl status`."""
    return {"fleet": fleet, **plain(status)}


def problems(status: Status) -> tuple[str, ...]:
    """Return one line for each problem; empty for a fleet that serves and keeps its promises.

    A workload without requests in the window of the figures has no P99, which is no problem.
    """
    if status.trouble is not None:
        return (f"the servers are unknown: {status.trouble}",)
    served = {
        endpoint
        for row in status.servers
        if row.routed and row.state == ServerState.RUNNING
        for endpoint in row.endpoints
    }
    found = [
        f"workload {w.workload}: no running server answers {w.endpoint}"
        for w in status.workloads
        if w.endpoint not in served
    ]
    found += [
        f"workload {w.workload}: P99 {number(w.p99_ms)} ms is above its SLO of {number(w.slo_ms)} ms"
        for w in status.workloads
        if is_late(w)
    ]
    found += [
        f"partition {row.partition}: {row.failed_starts} starts failed, and none is tried again yet"
        for row in status.guard
        if row.breaker_open
    ]
    if status.gateway_down:
        found.append(status.gateway_down)
    if status.controller is None:
        found.append("no controller runs: nothing is redirected or restarted")
    return tuple(found)

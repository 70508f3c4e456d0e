"""The status of a fleet: the engine's servers, the plan, the routes and the clients' latencies."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane.control.guard.state import Phase
from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import Role, Server
from controlplane.domain.observation import Event, FleetStanding, Guarding, LatencyWindow, Level
from controlplane.domain.plan import Placement, Plan, Source
from controlplane.files.fleets import read_guarding
from controlplane.files.following import read_rates
from controlplane.ports import Gateway, Launcher, Telemetry
from controlplane.report.tables.status_table import (
    WINDOW_S,
    BatchRow,
    GuardRow,
    LoadView,
    Restarted,
    Status,
    StatusRow,
    WorkloadRow,
)
from controlplane.runtime.fleet import controller_process
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import History, restarts

_WARNINGS = (Level.WARNING.value, Level.CRITICAL.value)
_LEVELS = (Level.INFO.value, *_WARNINGS)


def status_rows(
    launcher: Launcher,
    gateway: Gateway,
    fleet: str,
    plan: Plan | None,
    windows: Mapping[str, LatencyWindow],
) -> list[StatusRow]:
    """Return a row for each server, by name. An endpoint's figures are in the rows of its route's servers.

    Rates count inferences, as in a plan.
    """
    routes = gateway.routes()
    led_to = {
        name: {e for e, route in routes.items() if name in {m.server for m in route.members}}
        for name in {m.server for route in routes.values() for m in route.members}
    }
    promised: dict[str, Placement] = {}
    rates: dict[str, float] = {}
    batches: dict[str, int] = {}
    for _, partition, placement in plan.placements() if plan is not None else ():
        promised[placement.endpoint] = placement
        rates[placement.endpoint] = rates.get(placement.endpoint, 0.0) + placement.rate_rps
        for model in partition.models:
            if model.model == placement.model:
                batches[placement.endpoint] = model.batch
    servers = launcher.servers(fleet)
    served = {server.spec.labels.partition for server in servers if server.name in led_to}
    rows = []
    for server in servers:
        role = server.spec.labels.role
        if server.spec.labels.partition in served:  # a redirect changes the role
            role = Role.ACTIVE if server.name in led_to else Role.SHADOW
        routed = frozenset(led_to.get(server.name, ()))
        rows.append(_row(server, role, routed, promised, rates, windows, batches))
    return rows


def workload_rows(plan: Plan | None, windows: Mapping[str, LatencyWindow]) -> list[WorkloadRow]:
    """Return a row for each workload, in the plan's order; rates count inferences, as in a plan."""
    placed: dict[str, list[tuple[str, Placement]]] = {}
    for _, partition, placement in plan.placements() if plan is not None else ():
        placed.setdefault(placement.name, []).append((partition.id, placement))
    rows = []
    for name, its in placed.items():
        first, known = its[0][1], {one.predicted.source for _, one in its}
        row = WorkloadRow(
            name,
            first.endpoint,
            tuple(partition for partition, _ in its),
            first.slo_ms,
            planned_rps=sum((one.rate_rps for _, one in its), 0.0),
            sources=tuple(source for source in Source if source in known),
        )
        if (seen := windows.get(row.endpoint)) is not None:
            rate_rps = seen.requests * first.client_batch / seen.seconds
            row = replace(
                row, p99_ms=seen.p99_ms, rate_rps=rate_rps, errors=seen.errors, refused=seen.refused
            )
        rows.append(row)
    return rows


def guard_rows(
    plan: Plan | None,
    told: Sequence[Guarding],
    redirects: Mapping[str, Event],
    warnings: Mapping[str, Event],
    now_s: float,
) -> list[GuardRow]:
    """Return a row for each planned partition. `told` is the controller's last report, empty without one."""
    guarding = {one.partition: one for one in told}
    rows = []
    for _, partition in plan.partitions() if plan is not None else ():
        survives, memory_mb = partition.survives_gpu_loss, partition.memory_mb
        row = GuardRow(partition.id, survives_gpu_loss=survives, memory_mb=memory_mb)
        if (shadow := partition.shadow) is not None:
            row = replace(row, covers=shadow.covers, shadow_memory_mb=shadow.memory_mb)
            row = replace(row, policy=shadow.policy.value, redirect_s=shadow.redirect_s)
        if (known := guarding.get(partition.id)) is not None:
            row = replace(
                row,
                phase=known.phase,
                phase_since_s=now_s - known.since_s,
                shadow=known.standby,
                shadow_ready=known.standby_ready,
                failed_starts=known.failed_starts,
                breaker_open=known.breaker_open,
                retry_in_s=None if known.retry_at_s is None else max(0.0, known.retry_at_s - now_s),
            )
        if (moved := redirects.get(partition.id)) is not None:
            row = replace(row, redirected_s=now_s - moved.at_s, redirect=moved.reason)
        if (said := warnings.get(partition.id)) is not None:
            row = replace(row, said_s=now_s - said.at_s, said=said.reason)
        rows.append(row)
    return rows


def fleet_status(fleet: Fleet, plan: Plan | None, telemetry: Telemetry, window_s: float = WINDOW_S) -> Status:
    """Return a fleet's present status and the figures of `window_s`. Raises InputError for broken files."""
    controller = controller_process.pid(fleet.files)
    again = {event.subject: event for event in restarts(fleet.files)}
    windows: Mapping[str, LatencyWindow] = {}
    with contextlib.suppress(GatewayError):  # without the gateway's monitor no latency is known
        windows = telemetry.windows(window_s)
    servers: Sequence[StatusRow] = ()
    redirects, warnings = dict[str, Event](), dict[str, Event]()
    trouble = history_trouble = None
    try:
        servers = status_rows(fleet.launcher, fleet.gateway, fleet.name, plan, windows)
    except EngineError as error:
        trouble = str(error)
    try:
        history = History(fleet.files.history)
        redirects, warnings = history.latest("redirect", _LEVELS), history.latest("notice", _WARNINGS)
    except EngineError as error:
        history_trouble = str(error)
    told = read_guarding(fleet.files.guarding) if controller is not None else ()
    seen = read_rates(fleet.files.rates) if controller is not None else None
    return Status(
        servers=tuple(servers),
        workloads=tuple(workload_rows(plan, windows)),
        guard=tuple(guard_rows(plan, told, redirects, warnings, fleet.clock.wall())),
        controller=controller,
        trouble=trouble,
        restarts=tuple(
            Restarted(fleet.clock.wall() - one.at_s, f"{one.subject} {one.reason}")
            for one in sorted(again.values(), key=lambda one: one.at_s)
        ),
        history_trouble=history_trouble,
        load=None if seen is None else LoadView(seen.following, seen.rates),
        gateway_missing=fleet.gateway.missing(),
    )


def _row(
    server: Server,
    role: Role,
    routed: frozenset[str],
    promised: Mapping[str, Placement],
    rates: Mapping[str, float],
    windows: Mapping[str, LatencyWindow],
    planned: Mapping[str, int],
) -> StatusRow:
    seen = {e: windows[e] for e in sorted(routed) if e in windows}
    inferences = {e: w.requests * (promised[e].client_batch if e in promised else 1) for e, w in seen.items()}
    slos = [promised[e].slo_ms for e in routed if e in promised]
    p99s = [w.p99_ms for w in seen.values() if w.p99_ms is not None]
    return StatusRow(
        partition=server.spec.labels.partition,
        role=role.value,
        state=server.state.value,
        device=server.spec.device,
        percent=server.spec.percent,
        enforced_by=server.enforced_by,
        endpoints=server.spec.endpoints,
        routed=bool(routed),
        http=f"{server.host}:{server.http_port}",
        grpc=f"{server.host}:{server.grpc_port}",
        slo_ms=min(slos, default=None),
        p99_ms=max(p99s, default=None),
        planned_rps=sum(rates[e] for e in routed if e in rates) if routed else None,
        rate_rps=sum(inferences[e] / w.seconds for e, w in seen.items()) if seen else None,
        errors=sum(w.errors for w in seen.values()) if seen else None,
        batches=tuple(BatchRow(name, batch, planned.get(name)) for name, batch in server.spec.batches),
        server=server.name,
    )


_TROUBLES = {
    Phase.DOWN: ("PartitionDown", "no server answers"),
    Phase.EXHAUSTED: ("Exhausted", "late, and no shadow is left"),
    Phase.LATE: ("Late", "requests are late"),
    Phase.EXPOSED: ("WithoutShadow", "no shadow stands by"),
}
"""The worst first."""
_NAMED = 3


def standing(plan: Plan, guarding: Sequence[Guarding], redirects: int) -> FleetStanding:
    """Return how a fleet with this plan stands; a partition without a state is not ready yet."""
    planned = {partition.id: partition for _, partition in plan.partitions()}
    states = {one.partition: one.phase for one in guarding if one.partition in planned}
    covers = [p.shadow.covers or 1.0 if p.shadow is not None else 1.0 for p in planned.values()]
    trouble, message = None, "every partition is served as planned"
    for phase, (word, text) in _TROUBLES.items():
        found = [
            name
            for name, seen in states.items()
            if seen == phase and not (phase is Phase.EXPOSED and planned[name].shadow is None)
        ]
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            trouble, message = word, f"{', '.join(found[:_NAMED])}{more}: {text}"
            break
    return FleetStanding(
        ready=sum(phase != Phase.DOWN for phase in states.values()),
        partitions=len(planned),
        gpus=len(plan.gpus),
        redirects=redirects,
        covers=min(covers, default=1.0),
        trouble=trouble,
        message=message,
    )

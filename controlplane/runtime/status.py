"""What a fleet looks like now: the engine's servers beside the plan, the routes and what clients see."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import LatencyWindow
from controlplane.domain.plan import Placement, Plan
from controlplane.ports import Gateway, Launcher, Telemetry
from controlplane.report.status_table import StatusRow

WINDOW_S = 60.0


def seen_windows(telemetry: Telemetry) -> Mapping[str, LatencyWindow]:
    """What clients saw within the last minute; nothing where the gateway's monitor is away."""
    try:
        return telemetry.windows(WINDOW_S)
    except GatewayError:
        return {}


def status_rows(
    launcher: Launcher,
    gateway: Gateway,
    fleet: str,
    plan: Plan | None,
    windows: Mapping[str, LatencyWindow],
) -> list[StatusRow]:
    """One row a server, in the order of its name. Figures of an endpoint stand at the servers it leads to."""
    routes = gateway.routes()
    led_to = {
        name: {e for e, route in routes.items() if name in {m.server for m in route.members}}
        for name in {m.server for route in routes.values() for m in route.members}
    }
    promised: dict[str, Placement] = {}
    rates: dict[str, float] = {}
    for _, _, placement in plan.placements() if plan is not None else ():
        promised[placement.endpoint] = placement
        rates[placement.endpoint] = rates.get(placement.endpoint, 0.0) + placement.rate_rps
    return [
        _row(server, frozenset(led_to.get(server.name, ())), promised, rates, windows)
        for server in launcher.servers(fleet)
    ]


def _row(
    server: Server,
    routed: frozenset[str],
    promised: Mapping[str, Placement],
    rates: Mapping[str, float],
    windows: Mapping[str, LatencyWindow],
) -> StatusRow:
    seen = [windows[e] for e in sorted(routed) if e in windows]
    slos = [promised[e].slo_ms for e in routed if e in promised]
    p99s = [w.p99_ms for w in seen if w.p99_ms is not None]
    return StatusRow(
        partition=server.spec.labels.partition,
        role=server.spec.labels.role.value,
        state=server.state.value,
        device=server.spec.device,
        percent=server.spec.percent,
        enforced_by=server.enforced_by,
        endpoints=server.spec.endpoints,
        routed=bool(routed),
        http_port=server.http_port,
        grpc_port=server.grpc_port,
        slo_ms=min(slos, default=None),
        p99_ms=max(p99s, default=None),
        planned_rps=sum(rates[e] for e in routed if e in rates) if routed else None,
        rate_rps=sum(w.requests / w.seconds for w in seen) if seen else None,
        errors=sum(w.errors for w in seen) if seen else None,
    )

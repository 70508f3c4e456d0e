from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import build
import pytest

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Role, Route, Server, ServerState
from controlplane.domain.observation import Guarding, LatencyWindow
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel, Shadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.fleets import FleetFiles
from controlplane.report.tables.status_table import problems
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet.execute import backend
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.status import fleet_status, standing, status_rows, workload_rows


def server(revision: str, role: Role, state: ServerState = ServerState.RUNNING) -> Server:
    made = build.spec("W", models=("w",), role=role, revision=revision, percent=30.0)
    return build.server(made, revision, state)


class Running:
    """Engine and gateway at once: these servers, and a route to those of `routed`."""

    def __init__(self, servers: tuple[Server, ...], routed: tuple[Server, ...]) -> None:
        self._servers, self._routed = servers, routed

    def servers(self, fleet: str) -> tuple[Server, ...]:
        return self._servers

    def routes(self) -> dict[str, Route]:
        return {"w": Route(tuple(map(backend, self._routed)))} if self._routed else {}

    def missing(self) -> tuple[str, ...]:
        return ("haproxy", "supervisor")


PLANNED, SHADOW, NEXT = server("a", Role.ACTIVE), server("b", Role.SHADOW), server("c", Role.SHADOW)


@pytest.mark.parametrize(
    ("servers", "routed", "roles"),
    [
        ((PLANNED, SHADOW), (PLANNED,), ["active", "shadow"]),
        ((PLANNED, SHADOW), (SHADOW,), ["shadow", "active"]),  # turned over by hand
        ((SHADOW, NEXT), (SHADOW,), ["active", "shadow"]),  # the planned one crashed
        ((PLANNED, SHADOW), (), ["active", "shadow"]),  # not routed yet
    ],
)
def test_the_role_shown_is_what_a_server_does_now(
    servers: tuple[Server, ...], routed: tuple[Server, ...], roles: list[str]
) -> None:
    running = cast(Any, Running(servers, routed))
    rows = status_rows(running, running, "f", None, {})
    assert [row.role for row in rows] == roles
    assert [row.routed for row in rows] == [s in routed for s in servers]


def test_rates_count_inferences_as_the_plan_does() -> None:
    placement = Placement("W", "w", "m", 80.0, 50.0, client_batch=8)
    partition = Partition("p", 30.0, (ServedModel("m", 8),), (placement,))
    plan = Plan("joint", Rule.P99, "ours", (PlannedGpu("cpu-0", "cpu", (partition,)),))
    windows = {"w": LatencyWindow("w", 10.0, 90, 0, 20.0, 30.0, refused=7)}
    running = cast(Any, Running((PLANNED,), (PLANNED,)))
    (row,) = status_rows(running, running, "f", plan, windows)
    (workload,) = workload_rows(plan, windows)
    assert (row.rate_rps, row.planned_rps) == (72.0, 80.0)
    assert (workload.rate_rps, workload.planned_rps, workload.refused) == (72.0, 80.0, 7)


class NoMonitor:
    def windows(self, seconds: float) -> dict[str, Any]:
        raise GatewayError("the gateway's monitor does not answer")


def test_a_broken_history_hides_what_happened_and_nothing_else(tmp_path: Path) -> None:
    files = FleetFiles(tmp_path, "f")
    files.directory.mkdir()
    files.history.write_text("no database" * 100)
    running = cast(Any, Running((PLANNED,), (PLANNED,)))
    fleet = Fleet(files, running, running, SystemClock(), lambda line: None)
    status = fleet_status(fleet, None, cast(Any, NoMonitor()))
    assert [row.role for row in status.servers] == ["active"]
    assert status.trouble is None
    assert "delete it to start again" in str(status.history_trouble)
    assert status.gateway_down == "gateway down: haproxy, supervisor not running"
    assert status.gateway_down in problems(status)


STANDBY = Shadow(ShadowPolicy.HOT, "cpu-0", 5.0, 25.0)
PLAN = build.plan(*(build.partition(name, 20.0, shadow=STANDBY) for name in ("a", "b", "c")), gpu="cpu-0")
RESTS = Guarding("a", "guarded", 1.0, "s", True, 0, False, None)


def state(name: str, phase: str) -> Guarding:
    return replace(RESTS, partition=name, phase=phase)


@pytest.mark.parametrize(
    ("phases", "ready", "trouble"),
    [
        (("guarded", "guarded", "guarded"), 3, None),
        (("guarded", "settling", "guarded"), 3, None),
        (("exposed", "guarded", "guarded"), 3, "WithoutShadow"),
        (("exposed", "late", "guarded"), 3, "Late"),
        (("exposed", "late", "down"), 2, "PartitionDown"),
        (("guarded", "guarded"), 2, None),
    ],
)
def test_the_worst_trouble_is_named(phases: tuple[str, ...], ready: int, trouble: str | None) -> None:
    found = standing(PLAN, [state(n, p) for n, p in zip("abc", phases, strict=False)], 4)
    assert (found.ready, found.partitions, found.gpus, found.redirects) == (ready, 3, 1, 4)
    assert found.trouble == trouble


def test_a_fleet_is_as_covered_as_its_least_covered_partition() -> None:
    (gpu,) = PLAN.gpus

    def with_covers(*factors: float) -> float:
        parts = [
            replace(part, shadow=replace(part.shadow, covers=factor)) if part.shadow else part
            for part, factor in zip(gpu.partitions, factors, strict=True)
        ]
        return standing(replace(PLAN, gpus=(replace(gpu, partitions=tuple(parts)),)), [], 0).covers

    assert with_covers(1.3, 1.2, 1.5) == 1.2
    assert standing(replace(PLAN, gpus=()), [], 0).covers == 1.0

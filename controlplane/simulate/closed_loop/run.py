"""The closed loop: requests, faults, the controller's looks and its decisions, on simulated time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from controlplane.control.converge.actions import Actual, Commit, Start, Unload, converge
from controlplane.control.converge.desired import Desired, Rendered, desired_fleet
from controlplane.control.guard import decide
from controlplane.control.guard.effects import DrainAndStop, Effect, Ending, Launch, Load, Redirect, Report
from controlplane.control.guard.state import GuardState, Limits, PlacedServer, guarded_partitions
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role
from controlplane.domain.plan import Partition, Plan, PlannedGpu
from controlplane.latency.protocol import LatencyModel
from controlplane.simulate.closed_loop.faults import Fault, Happened, Kind, Outcome, WorkloadSeen, repairs
from controlplane.simulate.closed_loop.fleet import SimulatedFleet
from controlplane.simulate.engine import Settings
from controlplane.simulate.network import Conditions

LOOK_S = 0.2
"""The controller's."""
START_S = 5.0
"""From a launch to a server that stands by; Triton with small models takes 2 to 9 s (docs/results)."""
LOAD_S = 1.0
"""For the models of a warm shadow, where the plan does not say how long they take."""
_AFTER_S = 60.0
"""How long the last requests are waited for."""


def run(
    plan: Plan,
    truth: Mapping[str, LatencyModel],
    settings: Settings,
    conditions: Conditions,
    faults: Sequence[Fault] = (),
    *,
    guard: bool = True,
) -> Outcome:
    """Serve a plan for `settings.seconds` while faults happen; without `guard` only the gateway reacts.

    The fleet is started by the actions of `converge`, and changed by the effects of the guard. Raises
    InputError for a fault after the end.
    """
    for fault in faults:
        if fault.at_s >= settings.seconds:
            raise InputError(f"{fault} is after the end, {settings.seconds:g} s", field="--fault")
    fleet = SimulatedFleet(plan, truth, settings, conditions)
    state = _deploy(plan, fleet)
    happened: list[Happened] = []
    due = sorted(faults, key=lambda fault: fault.at_s)
    for look in range(1, math.ceil((settings.seconds + _AFTER_S) / LOOK_S) + 1):
        while due and due[0].at_s <= fleet.now_s:
            _hit(fleet, due.pop(0))
        answers = fleet.advance(look * LOOK_S)
        if not guard:
            continue
        seen = fleet.seen(answers)
        state, effects = decide.tick(state, seen)
        fleet.route(decide.routes(state, seen))
        for effect in effects:
            _carry_out(effect, fleet)
            happened += _happened(effect, fleet.now_s)
    fleet.close()
    workloads = _workloads(plan, fleet)
    found = repairs(plan, faults, workloads, tuple(happened), math.ceil(settings.seconds))
    return Outcome(workloads, found, tuple(happened))


def _deploy(plan: Plan, fleet: SimulatedFleet) -> GuardState:
    """Start the plan's servers by the actions of `converge`; return the guard's first state."""
    contents = [p.id for _, p in plan.partitions()] + [g.shared.id for g in plan.gpus if g.shared is not None]
    desired = desired_fleet(
        plan,
        fleet="simulated",
        plan_hash="",
        rendered={name: Rendered(name, "", turns=False) for name in contents},
        devices={gpu.id: gpu.id for gpu in plan.gpus},
    )
    for action in converge(desired, Actual((), {})):
        match action:
            case Start(spec):
                fleet.start(spec.name, spec.labels.partition, spec.device, spec.percent, 0.0)
            case Unload(server, _):
                fleet.unload(server)
            case Commit(routes):
                fleet.route(routes)
    placed = {partition.id: _placed(desired, gpu, partition) for gpu, partition in plan.partitions()}
    return decide.begin(guarded_partitions(plan, desired), placed, Limits())


def _placed(desired: Desired, gpu: PlannedGpu, partition: Partition) -> tuple[PlacedServer, ...]:
    """The servers of a partition, the active one first."""
    shared = gpu.shared.id if gpu.shared is not None and partition in gpu.sharers else None
    own = [spec for spec in desired.servers.values() if spec.labels.partition in (partition.id, shared)]
    own.sort(key=lambda spec: spec.labels.role is not Role.ACTIVE)
    return tuple(
        PlacedServer(s.name, s.device, s.percent, 0.0, shared=s.labels.partition == shared) for s in own
    )


def _hit(fleet: SimulatedFleet, fault: Fault) -> None:
    match fault.kind:
        case Kind.SLOW:
            fleet.slow(fault.subject, fault.factor)
        case Kind.SLOWER:
            fleet.slow_model(fault.subject, fault.factor)
        case Kind.CRASH:
            fleet.crash(fault.subject)
        case Kind.LOST:
            fleet.lose(fault.subject)


def _carry_out(effect: Effect, fleet: SimulatedFleet) -> None:
    match effect:
        case Launch(partition, server, gpu, percent):
            fleet.start(server, partition, gpu, percent, START_S)
        case Load(server):
            fleet.load(server, LOAD_S)
        case DrainAndStop(server, ending):
            fleet.stop(server, at_once=ending is Ending.AT_ONCE)


def _happened(effect: Effect, now_s: float) -> list[Happened]:
    match effect:
        case Redirect(partition, _, target, cause):
            return [Happened(now_s, partition, f"{cause}: redirected to {target}", redirect=True)]
        case Report(_, subject, reason):
            return [Happened(now_s, subject, reason)]
    return []


def _workloads(plan: Plan, fleet: SimulatedFleet) -> tuple[WorkloadSeen, ...]:
    partitions: dict[str, list[str]] = {}
    for _, partition, placement in plan.placements():
        partitions.setdefault(placement.name, []).append(partition.id)
    return tuple(
        WorkloadSeen(s.name, s.slo_ms, tuple(partitions[s.name]), fleet.sent[i], fleet.late[i])
        for i, s in enumerate(fleet.part.streams)
    )

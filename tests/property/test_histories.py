"""Whatever happened to a fleet, one undisturbed apply ends in the fleet that its plan means.

Histories of edits, kills, cut-short commands, redirects and rollbacks on the product's own apply, executor,
controller and guard; only the host is a fake. `make soak` goes through 10,000 of them.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_host import Program
from fleet_world import World, world
from guard_invariants import validate_state
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from controlplane.control.converge.desired import as_moved, stands_for
from controlplane.control.guard.effects import Topic
from controlplane.domain.fleet import ServerState
from controlplane.domain.plan import (
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Rule,
    ServedModel,
    Shadow,
    SharedShadow,
)
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.plans import plan_hash
from controlplane.runtime.fleet.execute import observe
from controlplane.runtime.fleet.fleet import redirect as by_hand


@dataclass(frozen=True)
class Wish:
    """One workload, as its spec and a planner would have it."""

    gpu: int
    pooled: bool
    percent: float
    policy: ShadowPolicy
    away: bool
    batch: int
    slo_ms: float
    rate_rps: float
    renamed: bool
    joins: bool


wishes = st.builds(
    Wish,
    gpu=st.integers(0, 1),
    pooled=st.booleans(),
    percent=st.sampled_from([20.0, 30.0]),
    policy=st.sampled_from(
        [one for one in ShadowPolicy if one is not ShadowPolicy.AUTO]
    ),  # a plan has chosen
    away=st.booleans(),
    batch=st.sampled_from([1, 4]),
    slo_ms=st.sampled_from([50.0, 80.0]),
    rate_rps=st.sampled_from([10.0, 15.0]),
    renamed=st.booleans(),
    joins=st.booleans(),
)
wish_lists = st.lists(st.none() | wishes, min_size=1, max_size=3)

FIRST = Wish(0, False, 20.0, ShadowPolicy.HOT, False, 1, 50.0, 10.0, False, False)
SHARED_PERCENT = 40.0
CROWDED: list[Wish | None] = [FIRST, FIRST, replace(FIRST, pooled=True, percent=30.0, away=True)]
"""A shadow of the pool has no room: the controller ends it at its first look."""


def plan_of(wanted: list[Wish | None]) -> Plan:
    """A plan for workloads `a`, `b`, `c`; one that joins shares the queue of the one before."""
    parts: list[tuple[int, Partition]] = []
    for name, wish in zip("abc", wanted, strict=False):
        if wish is None:
            continue
        endpoint = f"{name}-renamed" if wish.renamed else name
        placement = Placement(name, endpoint, "echo", wish.rate_rps, wish.slo_ms)
        if wish.joins and parts and len(parts[-1][1].id) == 1:
            gpu, last = parts.pop()
            parts.append((gpu, replace(last, workloads=(*last.workloads, placement))))
            continue
        where = {f"{name}-1": 0, f"{name}-2": 1} if wish.pooled else {name: wish.gpu}
        for part, gpu in where.items():
            shares = wish.policy is ShadowPolicy.SHARED
            other = 1 - gpu if wish.away and not shares else gpu
            percent = SHARED_PERCENT if shares else wish.percent + 10.0
            shadow = Shadow(wish.policy, f"cpu-{other}", percent - wish.percent, percent)
            model = ServedModel("echo", wish.batch)
            parts.append((gpu, Partition(part, wish.percent, (model,), (placement,), shadow=shadow)))
    gpus = tuple(gpu_of(g, tuple(p for at, p in parts if at == g)) for g in (0, 1))
    return Plan("by-hand", Rule.P99, "ours", gpus)


def gpu_of(number: int, partitions: tuple[Partition, ...]) -> PlannedGpu:
    """With one shadow for all whose shadow is shared."""
    gpu = PlannedGpu(f"cpu-{number}", "cpu", partitions)
    return replace(gpu, shared=SharedShadow(f"{gpu.id}.shared", SHARED_PERCENT)) if gpu.sharers else gpu


Step = Callable[[World], None]
fuses = st.none() | st.integers(0, 30)


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, tuple[Any, ...]]:
    """One thing that happens: its name, and what it needs."""
    kind = draw(st.sampled_from(sorted(HAPPENS)))
    return kind, tuple(draw(one) for one in HAPPENS[kind][1:])


def edit(world: World, wanted: list[Wish | None], fuse: int | None, rename: bool, failing: int) -> None:
    plan = plan_of(wanted)
    world.host.failing_starts = failing
    world.command(lambda: world.apply(plan, rename=rename), fuse)
    world.host.failing_starts = 0


def other_terms(world: World, slo_ms: float, fuse: int | None) -> None:
    """An edit of SLOs and rates alone."""
    before = world.fleet.files.plan()
    if before is not None:
        world.command(lambda: world.apply(with_terms(before, slo_ms)), fuse)


def with_terms(plan: Plan, slo_ms: float) -> Plan:
    def changed(partition: Partition) -> Partition:
        workloads = tuple(replace(p, slo_ms=slo_ms, rate_rps=slo_ms / 5) for p in partition.workloads)
        return replace(partition, workloads=workloads)

    gpus = tuple(replace(gpu, partitions=tuple(map(changed, gpu.partitions))) for gpu in plan.gpus)
    return replace(plan, gpus=gpus)


def again(world: World, fuse: int | None) -> None:
    before = world.fleet.files.plan()
    if before is not None:
        world.command(lambda: world.apply(before), fuse)


def rollback(world: World, fuse: int | None) -> None:
    world.command(lambda: world.fleet.apply(world.fleet.previous()), fuse)


def redirect(world: World, workload: str, fuse: int | None) -> None:
    world.command(lambda: by_hand(world.fleet, [workload], world.settings_kept()), fuse)


def kill(world: World, which: int) -> None:
    alive = sorted(name for name in world.host.servers if world.host.running(name))
    if alive:
        world.host.kill(alive[which % len(alive)])


def kill_controller(world: World) -> None:
    world.end_controller()


def kill_gateway(world: World) -> None:
    world.host.gateway_runs = False


def reboot(world: World) -> None:
    world.end_controller()
    world.host.gateway_runs = False
    world.host.servers.clear()


def look(world: World, looks: int, seconds: float, fuse: int | None) -> None:
    for _ in range(looks):
        world.tick(seconds, fuse)


def touch(world: World, when: int) -> None:
    """New weights under the same name."""
    os.utime(world.models / "echo" / "1" / "model.py", (when, when))


def other_output(world: World) -> None:
    world.output = 1 - world.output


def older(world: World) -> None:
    """As if an older version had started what runs: it rendered to a folder named by the plan."""
    for name, server in world.host.servers.items():
        path = Path(world.settings_kept().output) / "f" / "e9f4" / server.spec.labels.partition
        if Path(server.spec.repository).is_dir() and not path.exists():
            shutil.copytree(server.spec.repository, path, symlinks=True)
            world.host.servers[name] = replace(server, spec=replace(server.spec, repository=str(path)))


HAPPENS: dict[str, tuple[Any, ...]] = {
    "edit": (edit, wish_lists, fuses, st.booleans(), st.integers(0, 2)),
    "other terms": (other_terms, st.sampled_from([100.0, 200.0]), fuses),
    "again": (again, fuses),
    "rollback": (rollback, fuses),
    "redirect": (redirect, st.sampled_from("abc"), fuses),
    "kill": (kill, st.integers(0, 11)),
    "kill again": (kill, st.integers(0, 11)),
    "kill controller": (kill_controller,),
    "kill gateway": (kill_gateway,),
    "reboot": (reboot,),
    "look": (look, st.integers(1, 4), st.sampled_from([0.2, 1.1, 6.0]), fuses),
    "look again": (look, st.integers(1, 4), st.sampled_from([0.2, 1.1, 6.0]), fuses),
    "touch": (touch, st.integers(1, 9)),
    "other output": (other_output,),
    "older": (older,),
}

WARM: list[Wish | None] = [replace(FIRST, percent=30.0, policy=ShadowPolicy.WARM)]
KILLED_BEFORE_UNLOAD = [("kill controller", ()), ("edit", (WARM, 9, True, 0))]

KILLED_AFTER_START = [("kill", (1,)), ("look", (1, 0.2, None)), ("again", (11,))]
"""The apply starts the shadow that the controller is about to replace, and is killed."""

ALONE_WITH_WARM_SHADOW = [
    ("edit", (WARM, None, True, 0)),
    ("kill controller", ()),
    ("again", (None,)),
    ("kill", (0,)),
    ("look", (4, 6.0, None)),
]
"""The active server dies before the next controller's first look: the warm shadow has no models loaded."""

histories = st.lists(steps(), min_size=1, max_size=14)


def converges(history: list[tuple[str, tuple[Any, ...]]], last: list[Wish | None] | None) -> None:
    """Let it all happen, apply `last` (else the present plan) undisturbed, and look at what runs."""
    with world() as here:
        edit(here, [FIRST], None, True, 0)
        for kind, given_ in history:
            HAPPENS[kind][0](here, *given_)
        plan = here.fleet.files.plan() if last is None else plan_of(last)
        assert plan is not None
        with here.host.running_as(Program()):
            here.apply_last(plan)
        here.serve()
        is_as_planned(here, plan)
        with here.host.running_as(Program()):
            assert here.apply_last(plan).actions == (), "a second apply has nothing to do"
        for _ in range(40):
            here.tick(1.9)
            assert here.controller is not None
            if here.controller.state is not None:
                validate_state(here.controller.state)
        is_guarded(here, plan)
        assert here.host.wrong == []


def is_as_planned(here: World, plan: Plan) -> None:
    """Every endpoint is served at its planned revision, or where it was redirected to; no more runs."""
    fleet = here.fleet
    desired = fleet.desired(plan, here.settings)
    actual = observe(fleet.launcher, fleet.gateway, "f")
    specs = {s.name: s.spec for s in actual.servers}
    assert all(s.state is ServerState.RUNNING for s in actual.servers)
    assert set(actual.routes) == set(desired.routes) == set(here.host.routes)
    for endpoint, route in desired.routes.items():
        planned = [desired.servers[name] for name in route.members]
        present = [specs[name] for name in actual.routes[endpoint].members]
        assert len(planned) == len(present)
        assert all(any(stands_for(p, one, desired) for p in present) for one in planned)
        for name in actual.routes[endpoint].members:
            here.host.infer(here.host.servers[name], endpoint)
    wanted = as_moved(desired, specs.values(), actual.routes)
    assert set(specs) == set(wanted.servers), "nothing is missing or left over"
    assert fleet.files.plan() is not None
    assert plan_hash(cast(Plan, fleet.files.plan())) == plan_hash(plan)
    read = {s.repository for s in (*specs.values(), *desired.servers.values())}
    assert {str(p) for p in here.directory.glob("out*/f/[!.]*/*")} == read, (
        "no repository is missing or left over"
    )


def is_guarded(here: World, plan: Plan) -> None:
    """The controller has changed no route, and something stands by wherever that is planned and has room."""
    assert here.controller is not None
    state = here.controller.state
    assert state is not None
    running = {name for name in here.host.servers if here.host.running(name)}
    seated = set()
    for watch in state.watches.values():
        assert not watch.down
        seated |= {placed.server for placed in (watch.active, watch.standby) if placed is not None}
        if watch.partition.policy is not ShadowPolicy.NONE:
            waits = here.host.clock.now_s < watch.launches.retry_at_s
            assert watch.standby is not None or waits or Topic.NO_ROOM in watch.reported
        if watch.partition.policy is ShadowPolicy.WARM and watch.standby is not None:
            warm = here.controller._workers.server(watch.standby.server)
            assert warm is None or not here.host.loaded[warm.name], (
                "a warm shadow holds no memory for its models"
            )
    named = {here.controller._workers.server(name) for name in seated}
    assert running == {server.name for server in named if server is not None}
    for endpoint, route in here.host.routes.items():
        for member in route.members:
            here.host.infer(here.host.servers[member.server], endpoint)


@given(histories, st.none() | wish_lists)
@example([("kill controller", ())], CROWDED)
@example(KILLED_BEFORE_UNLOAD, WARM)
@example(KILLED_AFTER_START, None)
@example(ALONE_WITH_WARM_SHADOW, None)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_history_ends_in_the_planned_fleet(history: list[Any], last: list[Wish | None] | None) -> None:
    converges(history, last)


@pytest.mark.soak
@given(histories, st.none() | wish_lists)
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_ten_thousand_histories_end_in_the_planned_fleet(
    history: list[Any], last: list[Wish | None] | None
) -> None:
    converges(history, last)

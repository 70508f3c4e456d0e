"""Whatever runs and whatever should run: no prefix of the actions leaves a served endpoint unserved,
and converging again after a crash anywhere ends in the desired fleet."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from build import server
from hypothesis import given
from hypothesis import strategies as st

from controlplane.control.converge.actions import (
    Action,
    Actual,
    Commit,
    Drain,
    Prove,
    Remove,
    SetBatches,
    Start,
    Stop,
    Unload,
    converge,
    destroy,
)
from controlplane.control.converge.desired import Desired, NamedRoute, Rendered, desired_fleet
from controlplane.domain.fleet import Server, ServerState
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


@dataclass
class World:
    """The smallest engine and gateway that can hold a fleet."""

    servers: dict[str, Server] = field(default_factory=dict)
    routes: dict[str, NamedRoute] = field(default_factory=dict)
    proved: set[str] = field(default_factory=set)

    def actual(self) -> Actual:
        return Actual(tuple(self.servers.values()), dict(self.routes))

    def serves(self, endpoint: str) -> bool:
        route = self.routes.get(endpoint)
        return route is not None and all(self._alive(m) for m in route.members)

    def _alive(self, name: str) -> bool:
        return name in self.servers and self.servers[name].state is ServerState.RUNNING

    def run_all(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self.run(action)

    def run(self, action: Action) -> None:
        match action:
            case Remove(name):
                assert self.servers.pop(name).state is ServerState.EXITED
            case Start(spec):
                self.servers[spec.name] = server(spec)
            case Prove(name, endpoints):
                assert set(endpoints) <= set(self.servers[name].spec.endpoints)
                self.proved.add(name)
            case Unload(name, _):
                assert self._alive(name)
            case SetBatches(name, batches):
                assert self._alive(name)
                present = self.servers[name]
                self.servers[name] = replace(present, spec=replace(present.spec, batches=batches))
            case Commit(routes):
                for route in routes.values():
                    for name in (*route.members, *([route.backup] if route.backup else [])):
                        assert self._alive(name), "a route leads only to what runs"
                self.routes = dict(routes)
            case Drain(name) | Stop(name):
                led_to = {m for r in self.routes.values() for m in (*r.members, r.backup)}
                assert name not in led_to, "nothing is stopped that a route leads to"
                if isinstance(action, Stop):
                    del self.servers[name]


shares = st.sampled_from([20.0, 30.0, 40.0])
policies = st.sampled_from(list(ShadowPolicy))


@st.composite
def fleets(draw: st.DrawFn) -> Desired:
    partitions = []
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True)):
        percent = draw(shares)
        shadow = Shadow(draw(policies), "cpu-0", 10, percent + 10) if draw(st.booleans()) else None
        pooled = draw(st.booleans())
        for part in [f"{name}-1", f"{name}-2"] if pooled else [name]:
            placement = Placement(name, name, "m", 1, 10)
            partitions.append(Partition(part, percent, (ServedModel("m", 1),), (placement,), shadow=shadow))
    shared = SharedShadow("shared", draw(shares)) if draw(st.booleans()) else None
    gpu = PlannedGpu("cpu-0", "cpu", tuple(partitions), shared=shared)
    plan = Plan("igniter", Rule.P99, "igniter", (gpu,))
    content = draw(st.sampled_from(["x", "y"]))
    batches = (("m", draw(st.integers(1, 3))),)
    names = (*(p.id for p in partitions), "shared")
    rendered = {name: Rendered(f"/r/{name}", content, False, batches) for name in names}
    return desired_fleet(plan, fleet="f", plan_hash="h", rendered=rendered, devices={"cpu-0": "cpu-0"})


def converged(desired: Desired) -> World:
    world = World()
    world.run_all(converge(desired, world.actual()))
    return world


@given(fleets(), fleets(), st.integers(0, 60))
def test_a_crash_after_any_prefix_still_serves_and_then_converges(
    before: Desired, after: Desired, crash: int
) -> None:
    world = converged(before)
    served = [e for e in before.routes if e in after.routes]
    for action in converge(after, world.actual())[:crash]:
        world.run(action)
        assert all(world.serves(e) for e in served)
    for action in converge(after, world.actual()):
        world.run(action)
        assert all(world.serves(e) for e in served)
    assert {n: s.spec.batches for n, s in world.servers.items()} == {
        n: s.batches for n, s in after.servers.items()
    }
    assert world.routes == dict(after.routes)
    assert converge(after, world.actual()) == ()


@given(fleets(), fleets(), st.randoms(), st.integers(0, 60))
def test_changes_of_batches_may_come_at_any_place_whatever_is_killed_then(
    before: Desired, after: Desired, random: Random, crash: int
) -> None:
    world, expected = converged(before), converged(before)
    planned = converge(after, world.actual())
    expected.run_all(planned)
    actions = [a for a in planned if not isinstance(a, SetBatches)]
    for change in (a for a in planned if isinstance(a, SetBatches)):
        ends = [i for i, a in enumerate(actions) if isinstance(a, Stop) and a.server == change.server]
        actions.insert(random.randint(0, min(ends, default=len(actions))), change)
    world.run_all(actions[:crash])
    world.run_all(actions[crash:] if random.random() < 0.5 else converge(after, world.actual()))
    assert (world.servers, world.routes) == (expected.servers, expected.routes)


@given(fleets(), st.integers(1, 3))
def test_a_plan_that_differs_in_batches_alone_touches_no_server_and_no_route(
    desired: Desired, batch: int
) -> None:
    world = converged(desired)
    batches = (("m", batch),)
    servers = {name: replace(spec, batches=batches) for name, spec in desired.servers.items()}
    actions = converge(replace(desired, servers=servers), world.actual())
    assert all(isinstance(a, SetBatches) for a in actions)
    assert {a.server for a in actions if isinstance(a, SetBatches)} == {
        name for name, spec in desired.servers.items() if spec.batches != batches
    }


@given(fleets())
def test_the_same_plan_twice_does_nothing(desired: Desired) -> None:
    world = converged(desired)
    assert converge(desired, world.actual()) == ()


@given(fleets())
def test_everything_routed_answered_a_real_inference_first(desired: Desired) -> None:
    world = World()
    for action in converge(desired, world.actual()):
        world.run(action)
        if isinstance(action, Commit):
            led_to = {m for r in action.routes.values() for m in (*r.members, r.backup) if m}
            assert led_to <= world.proved


@given(fleets(), fleets())
def test_only_what_changed_is_touched(before: Desired, after: Desired) -> None:
    world = converged(before)
    same = set(before.servers) & set(after.servers)
    touched = {
        a.spec.name if isinstance(a, Start) else a.server
        for a in converge(after, world.actual())
        if not isinstance(a, Commit | SetBatches)
    }
    routed_before = {m for r in before.routes.values() for m in (*r.members, r.backup)}
    assert not touched & same & routed_before


@given(fleets(), st.data())
def test_dead_servers_are_removed_and_replaced(desired: Desired, data: st.DataObject) -> None:
    world = converged(desired)
    for name in data.draw(st.sets(st.sampled_from(sorted(world.servers)))) if world.servers else ():
        world.servers[name] = replace(world.servers[name], state=ServerState.EXITED)
    world.run_all(converge(desired, world.actual()))
    assert all(s.state is ServerState.RUNNING for s in world.servers.values())
    assert set(world.servers) == set(desired.servers)


@given(fleets())
def test_destroy_leaves_nothing(desired: Desired) -> None:
    world = converged(desired)
    world.run_all(destroy(world.actual()))
    assert world == World(proved=world.proved)

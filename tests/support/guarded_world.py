"""A fleet under the guard: servers that do what its effects say, checked after each tick."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from guard_invariants import validate_state

from controlplane.control.guard import decide, observe
from controlplane.control.guard.effects import (
    Cause,
    DrainAndStop,
    Launch,
    Load,
    OpenBreaker,
    Redirect,
    Refuse,
)
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import (
    GuardedPartition,
    GuardState,
    Limits,
    PlacedServer,
    overdrawn,
    percent_in_use,
)
from controlplane.domain.observation import Answer, FleetSeen, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy

TICK_S = 0.25
DEAD = {Cause.CRASH, Cause.HANG, Cause.FAILING, Cause.IMPAIRED}
GPUS = ("g0", "g1")


@dataclass
class Machine:
    """One server of the fleet the guard is let loose on."""

    gpu: str
    health: Health
    slow: bool = False
    hung: bool = False
    owed: int = 0
    ready_in: int = 0


@dataclass
class World:
    """Servers that do what the effects say, and break when the test says."""

    partitions: tuple[GuardedPartition, ...]
    state: GuardState
    machines: dict[str, Machine]
    thorough: GuardState
    """The state of a guard that looks at every partition in each tick."""
    now_s: float = 0.0
    silent: set[str] = field(default_factory=set)
    crowded: set[str] = field(default_factory=set)
    broken_starts: bool = False
    held: bool = False
    """Another command works on the fleet: what is decided cannot be done."""
    active: dict[str, str] = field(default_factory=dict)
    redirected_s: dict[str, float] = field(default_factory=dict)
    launches_s: list[tuple[str, float]] = field(default_factory=list)
    breakers: list[OpenBreaker] = field(default_factory=list)
    lost: list[Answer] = field(default_factory=list)
    """Requests that failed in a server since the tick before."""
    refused: list[Refuse] = field(default_factory=list)

    def tick(self) -> None:
        self.now_s += TICK_S
        before = self.state
        seen = FleetSeen(self.now_s, (*self.answers(), *self.lost), self.servers())
        self.lost = []
        all_due = replace(self.thorough, due_s={})
        if self.held:
            self.state = observe.observe(before, seen)
            self.thorough = observe.observe(all_due, seen)
            validate_state(self.state)
            return
        self.state, effects = decide.tick(before, seen)
        self.thorough, thoroughly = decide.tick(all_due, seen)
        validate_state(self.state)
        assert effects == thoroughly
        assert decide.routes(self.state, seen) == decide.routes(self.thorough, seen)
        begun = {effect.server for effect in effects if isinstance(effect, Launch)}
        assert not any(isinstance(effect, DrainAndStop) and effect.server in begun for effect in effects)
        # Who leaves a dead server takes its shadow whatever the account says, in the same tick too.
        died = any(isinstance(e, Redirect) and e.cause in DEAD for e in effects)
        for effect in effects:
            match effect:
                case Redirect(partition, source, target, cause):
                    assert self.active[partition] == source
                    assert self.machines[target].health is Health.READY
                    if cause not in DEAD:
                        assert self.now_s >= self.redirected_s.get(partition, -math.inf) + Limits().settle_s
                        assert (
                            died
                            or cause is Cause.SHARE
                            or not overdrawn(self.used, self.state.watches[partition].active.gpu)
                        )
                    self.active[partition] = target
                    self.redirected_s[partition] = self.now_s
                case DrainAndStop(server, _):
                    assert server not in self.active.values(), "stopped a server that is routed to"
                    self.machines.pop(server, None)
                case Launch(partition, server, gpu, percent, _):
                    assert server not in self.machines
                    assert 0 < percent <= 100
                    self.launches_s.append((partition, self.now_s))
                    self.machines[server] = Machine(gpu, Health.STARTING, ready_in=3)
                case Load(server):
                    self.machines[server] = Machine(self.machines[server].gpu, Health.STARTING, ready_in=1)
                case OpenBreaker():
                    self.breakers.append(effect)
                case Refuse():
                    self.refused.append(effect)
        self.check(seen)
        for machine in self.machines.values():
            if machine.health is Health.STARTING:
                machine.ready_in -= 1
                if machine.ready_in <= 0:
                    machine.health = Health.GONE if self.broken_starts else Health.READY

    def heal(self) -> None:
        self.broken_starts = False
        self.crowded.clear()
        for machine in self.machines.values():
            machine.slow = machine.hung = False
            if machine.health in (Health.FAILING, Health.IMPAIRED):
                machine.health = Health.READY

    @property
    def used(self) -> dict[str, float]:
        return percent_in_use(self.state.watches.values())

    def check(self, seen: FleetSeen) -> None:
        routes = decide.routes(self.state, seen)
        for partition in self.partitions:
            watch = self.state.watches[partition.id]
            assert watch.active.server == self.active[partition.id]
            assert routes[partition.id].members == (watch.active.server,)
            assert {routes[endpoint] for endpoint in partition.endpoints} == {routes[partition.id]}, (
                "torn apart"
            )
            standby = watch.standby and self.machines.get(watch.standby.server)
            active = seen.servers.get(watch.active.server)
            if active is None or active.health in (Health.GONE, Health.FAILING, Health.IMPAIRED):
                # Dead and routed to: only because nothing of it lives.
                assert standby is None or standby.health is not Health.READY
                holding = self.machines.items() if partition.shared else ()
                assert not any(n.startswith("g0.shared") and m.health is Health.READY for n, m in holding)
            if standby is not None and standby.health is Health.READY and active is not None:
                assert routes[partition.id].backup is not None
        # A server that is neither active nor a standby has been stopped: nothing is left behind.
        seated = {s.server for w in self.state.watches.values() for s in (w.active, w.standby) if s}
        alive = {name for name, m in self.machines.items() if m.health is not Health.GONE}
        assert alive <= seated
        for gpu in GPUS:
            if overdrawn(self.used, gpu):
                assert any(
                    self.now_s >= at for p, at in self.redirected_s.items() if self.state.watches[p]
                ), "overdrawn with no redirect ever"

    def servers(self) -> dict[str, ServerSeen]:
        return {
            name: ServerSeen(m.health, in_flight=m.owed)
            for name, m in self.machines.items()
            if m.health is not Health.GONE
        }

    def answers(self) -> Sequence[Answer]:
        ended = []
        for partition in self.partitions:
            machine = self.machines.get(self.active[partition.id])
            if machine is None or machine.health is not Health.READY or partition.id in self.silent:
                continue
            if machine.hung:
                machine.owed += 10
                continue
            machine.owed = 0
            promise = partition.promises[0]
            rate = promise.rate_rps * (2.0 if partition.id in self.crowded else 1.0)
            late = machine.slow or partition.id in self.crowded
            count = int(rate * TICK_S)
            for i in range(count):
                at = self.now_s - TICK_S * (1.0 - (i + 1) / count)
                took = promise.slo_ms * (3.0 if late else 0.4)
                endpoint = promise.endpoints[i % len(promise.endpoints)]
                ended.append(Answer(at, took, False, endpoint, self.active[partition.id]))
        return ended


def world(percents: Sequence[float], policy: ShadowPolicy, elsewhere: bool) -> World:
    spare = min(10.0, 100.0 - sum(percents))
    partitions, placed_servers, machines = [], {}, {}
    for i, percent in enumerate(percents):
        name = f"W{i}"
        is_shared = policy is ShadowPolicy.SHARED
        shadow_gpu = "g1" if elsewhere and not is_shared else "g0"
        # The one server has the same share for all, which fits whichever of them it serves.
        most = max(*percents, 100.0 - sum(percents) + min(percents))
        # Every other one serves two workloads through one queue.
        promise = Promise(name, 50.0, 100.0, aliases=(f"{name}b",) if i % 2 else ())
        partitions.append(
            GuardedPartition(
                name,
                "g0",
                percent,
                (promise,),
                policy,
                shadow_gpu,
                0.0 if policy is ShadowPolicy.NONE else 10.0,
                shared=("g0.shared", most) if is_shared else None,
            )
        )
        active, shadow = (
            PlacedServer(f"{name}.a", "g0", percent),
            PlacedServer("g0.shared", "g0", most, shared=True)
            if is_shared
            else PlacedServer(f"{name}.s", shadow_gpu, percent + spare),
        )
        machines[active.server] = Machine("g0", Health.READY)
        if policy is ShadowPolicy.NONE:
            placed_servers[name] = (active,)
            continue
        placed_servers[name] = (active, shadow)
        loaded = (ShadowPolicy.HOT, ShadowPolicy.SHARED)
        standing = Health.READY if policy in loaded else Health.UNLOADED
        machines[shadow.server] = Machine(shadow_gpu, standing)
    begun = decide.begin(tuple(partitions), placed_servers, Limits())
    made = World(tuple(partitions), begun, machines, begun)
    made.active = {w.id: f"{w.id}.a" for w in partitions}
    return made

"""Over any mix of long requests, streams, refusals and faults no answer is cut, and a hang is found."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.control.guard import deaths, decide
from controlplane.control.guard.effects import DrainAndStop, Ending, Launch
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, GuardState, Limits, PlacedServer
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import (
    Backend,
    InFlight,
    Labels,
    Role,
    Server,
    ServerSpec,
    ServerState,
    ShareUsage,
)
from controlplane.domain.observation import Answer, FleetSeen, Health, ModelStatistics, ServerSeen
from controlplane.domain.workload import ShadowPolicy
from controlplane.runtime.controller import workers
from controlplane.runtime.controller.probes import Reading
from controlplane.runtime.controller.workers import Drain

TICK_S = 0.25
LONG_TICK_S = 1.0
SILENT_S = 0.75
"""How long a process has to answer nothing until the observer calls it hung."""
GRACE_S = 2.0
LIMITS = Limits()


@dataclass
class Request:
    """One request: when it comes, how long its server works on it, and what it is or what comes of it."""

    at_s: float
    takes_s: float
    kind: str = "plain"


@dataclass
class Machine:
    """A Triton with one instance: requests wait in line, streams of tokens run beside them."""

    name: str
    waiting: list[Request] = field(default_factory=list)
    streams: list[Request] = field(default_factory=list)
    worked_s: float = 0.0
    fault: str = ""
    silent_s: float = 0.0
    drain: Drain | None = None
    failures: int = 0
    answers: int = 0
    told: int = 0

    @property
    def open(self) -> int:
        return len(self.waiting) + len(self.streams)

    def would_answer(self) -> bool:
        return self.open > 0 and not self.fault

    def work(self, now_s: float, tick_s: float) -> list[Request]:
        """Work for one tick; return what was answered."""
        if self.fault:
            return []
        self.answers += len(self.streams)  # a token each
        done = [one for one in self.streams if now_s >= one.at_s + one.takes_s]
        self.streams = [one for one in self.streams if one not in done]
        self.worked_s += tick_s
        while self.waiting and self.worked_s >= self.waiting[0].takes_s:
            self.worked_s -= self.waiting[0].takes_s
            done.append(self.waiting.pop(0))
        if not self.waiting:
            self.worked_s = 0.0
        failed = sum(one.kind == "failed" for one in done)
        self.failures, self.answers = self.failures + failed, self.answers + len(done) - failed
        return done

    def counters(self) -> Reading:
        if self.fault == "process":
            error = EngineError("no answer in time")
            error.__cause__ = TimeoutError()
            return Reading(0.0, None, error)
        counted = ModelStatistics("w", self.answers, 0, self.answers, self.failures, 0, 0, {})
        return Reading(0.0, {"w": counted})


@dataclass
class World:
    """One partition with a shadow: the guard, its servers, and what carries out its decisions."""

    slo_ms: float
    longest_ms: float | None = None
    tick_s: float = TICK_S
    state: GuardState = field(init=False)
    machines: dict[str, Machine] = field(default_factory=dict)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        promise = Promise("w", self.slo_ms, 1.0, longest_ms=self.longest_ms)
        partition = GuardedPartition("W", "g", 30.0, (promise,), ShadowPolicy.HOT, "g", 10.0)
        placed_servers = (PlacedServer("W.a", "g", 30.0), PlacedServer("W.s", "g", 40.0))
        self.state = decide.begin((partition,), {"W": placed_servers}, LIMITS)
        self.machines = {name: Machine(name) for name in ("W.a", "W.s")}

    @property
    def active(self) -> Machine:
        return self.machines[self.state.watches["W"].active.server]

    def seen(self, machine: Machine) -> ServerSeen:
        stopped = machine.fault == "process" and machine.open > 0
        machine.silent_s = machine.silent_s + self.tick_s if stopped else 0.0
        health = Health.HUNG if machine.silent_s >= SILENT_S else Health.READY
        progressed, machine.told = machine.answers > machine.told, machine.answers
        return ServerSeen(health, len(machine.waiting), streaming=len(machine.streams), progressed=progressed)

    def tick(self, arriving: list[Request]) -> None:
        self.now_s += self.tick_s
        active, answers = self.active, []
        for request in arriving:
            if request.kind == "refused":
                answers.append(Answer(self.now_s, 1.0, False, "w", active.name, refused=True))
            else:
                (active.streams if request.kind == "stream" else active.waiting).append(request)
        for machine in self.machines.values():
            known = "" if machine.drain else machine.name
            answers += [
                Answer(self.now_s, 1000.0 * (self.now_s - one.at_s), one.kind == "failed", "w", known)
                for one in machine.work(self.now_s, self.tick_s)
            ]
        servers = {name: self.seen(m) for name, m in self.machines.items() if not m.drain}
        self.state, effects = decide.tick(self.state, FleetSeen(self.now_s, tuple(answers), servers))
        for effect in effects:
            if isinstance(effect, Launch):
                self.machines[effect.server] = Machine(effect.server)
            if isinstance(effect, DrainAndStop):
                self.machines[effect.server].drain = self.drain(effect)
        self.stop_what_has_drained()

    def drain(self, how: DrainAndStop) -> Drain:
        labels = Labels("f", "p", "W", Role.ACTIVE, how.server)
        spec = ServerSpec(labels, "/r", ("w",), "g", 30.0)
        server = Server("1", spec, ServerState.RUNNING, "127.0.0.1", 9, 9, 9)
        host: Any = self
        return Drain(server, how, host, host, self.now_s - how.silent_s)

    def in_flight(self, backend: Backend) -> InFlight:
        """As the gateway."""
        machine = self.machines[backend.server.removeprefix("f.W.active.")]
        return InFlight(len(machine.waiting), len(machine.streams))

    def usage(self, server: Server) -> ShareUsage:
        """As the launcher: a process that hangs uses no time."""
        return ShareUsage(None, None, 1.0)

    def has_found(self, machine: Machine) -> bool:
        """Whether the guard has left the machine, or would if another stood by."""
        return self.active is not machine or self.state.watches["W"].down

    def stop_what_has_drained(self) -> None:
        """As `runtime/controller/workers.py` does."""
        for machine in [m for m in self.machines.values() if m.drain]:
            assert machine.drain is not None
            waits = machine.drain.how.ending in (Ending.DRAINED, Ending.HUNG)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(workers, "read_counters", lambda *_, of=machine: of.counters())
                if waits and machine.drain.may_answer(self.now_s, GRACE_S):
                    continue
            assert not machine.would_answer(), f"{machine.name} ended with {machine.open} requests"
            del self.machines[machine.name]


lengths = st.one_of(st.floats(0.01, 0.3), st.floats(0.5, 5.0), st.floats(5.0, 55.0))
requests = st.lists(
    st.tuples(
        st.one_of(st.floats(0.0, 0.5), st.floats(0.0, 20.0)),
        lengths,
        st.sampled_from(["plain", "plain", "stream", "refused", "failed"]),
    ),
    min_size=1,
    max_size=30,
)


def arrivals(drawn: list[tuple[float, float, str]]) -> list[Request]:
    at_s, found = 0.0, []
    for gap_s, takes_s, kind in drawn:
        at_s += gap_s
        found.append(Request(at_s, takes_s, kind))
    return found


def serve(world: World, coming: list[Request], until_s: float) -> None:
    while world.now_s < until_s:
        world.tick([one for one in coming if world.now_s < one.at_s <= world.now_s + world.tick_s])


@settings(max_examples=60)
@given(requests, st.sampled_from([50.0, 1000.0, 60_000.0]), st.booleans())
def test_no_server_is_ended_that_would_have_answered(
    drawn: list[tuple[float, float, str]], slo_ms: float, pauses: bool
) -> None:
    world, coming = World(slo_ms), arrivals(drawn)
    serve(world, coming, coming[-1].at_s + (90.0 if pauses else 5.0))


@settings(max_examples=10)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(0.0, 5.0), st.floats(0.0, 700.0)),
            st.one_of(st.floats(0.1, 5.0), st.floats(600.0, 1500.0)),
            st.sampled_from(["plain", "plain", "stream"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_server_is_ended_that_takes_as_long_as_its_spec_says(
    drawn: list[tuple[float, float, str]],
) -> None:
    world, coming = World(1000.0, longest_ms=1_500_000.0, tick_s=LONG_TICK_S), arrivals(drawn)
    serve(world, coming, coming[-1].at_s + sum(one.takes_s for one in coming) + 10.0)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.01, 0.3), st.just("plain")), max_size=20),
    st.sampled_from([50.0, 1000.0]),
    st.integers(3, 9),
)
def test_where_no_answer_took_long_a_hang_is_found_soon(
    drawn: list[tuple[float, float, str]], slo_ms: float, owed: int
) -> None:
    world, coming = World(slo_ms), arrivals(drawn)
    serve(world, coming, coming[-1].at_s if coming else 0.0)
    hangs = world.active
    hangs.fault, began_s = "model", world.now_s
    new = [Request(began_s, 0.05) for _ in range(owed)]
    while not world.has_found(hangs):
        world.tick(new)
        new = []
        assert world.now_s - began_s <= max(1.0, 2.0 * slo_ms / 1000.0) + LIMITS.settle_s + 2.0 * TICK_S


@settings(max_examples=30)
@given(requests, st.sampled_from([50.0, 1000.0]), st.integers(1, 6))
def test_a_model_that_hangs_and_refuses_is_found(
    drawn: list[tuple[float, float, str]], slo_ms: float, owed: int
) -> None:
    world, coming = World(slo_ms), arrivals(drawn)
    serve(world, coming, coming[-1].at_s)
    hangs = world.active
    hangs.fault, began_s = "model", world.now_s
    new = [Request(began_s, 0.05) for _ in range(owed)]
    while not world.has_found(hangs):
        world.tick([*new, Request(world.now_s, 0.0, "refused")])
        new = []
        most_s = deaths.LONGER * LIMITS.overdue_s + LIMITS.settle_s + 2.0 * TICK_S
        assert world.now_s - began_s <= most_s


@settings(max_examples=60)
@given(requests, st.sampled_from([50.0, 1000.0]), st.sampled_from(["process", "model"]), st.integers(1, 6))
def test_each_true_hang_is_found(
    drawn: list[tuple[float, float, str]], slo_ms: float, fault: str, owed: int
) -> None:
    world, coming = World(slo_ms), arrivals(drawn)
    serve(world, coming, coming[-1].at_s)
    hangs = world.active
    hangs.fault = fault
    began_s = world.now_s
    new = [Request(began_s, 0.05) for _ in range(owed)]
    watch = world.state.watches["W"]
    longest_s = deaths.overdue_s(watch, LIMITS)
    while not world.has_found(hangs) and world.now_s < began_s + 3.0 * longest_s:
        world.tick(new)
        new = []
    found_s = world.now_s - began_s if world.has_found(hangs) else math.inf
    settling_s = LIMITS.settle_s + 2.0 * TICK_S
    if fault == "process":
        assert found_s <= SILENT_S + 2.0 * TICK_S
    elif owed >= LIMITS.due:
        # What the model once took counts, also where it was learned after the fault.
        patience_s = deaths.patience_s(world.state.watches["W"], LIMITS)
        assert found_s <= 2.0 * max(patience_s, deaths.patience_s(watch, LIMITS)) + settling_s
    else:
        assert found_s <= longest_s + settling_s

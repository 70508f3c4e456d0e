"""Over any mix of long requests, streams, refusals and faults no answer is cut, and a hang is found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.control.guard import decisions, signals
from controlplane.control.guard.sequential import Promise
from controlplane.control.guard.state import (
    DrainAndStop,
    Ending,
    GuardedPartition,
    GuardState,
    Launch,
    Limits,
    PlacedServer,
)
from controlplane.domain.observation import Answer, FleetSeen, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy

pytestmark = pytest.mark.unit

TICK_S = 0.25
SILENT_S = 0.75
"""How long a process has to answer nothing until the observer calls it hung."""
LIMITS = Limits()


@dataclass
class Request:
    """One request: when it comes, how long its server works on it, and whether it is a stream of tokens."""

    at_s: float
    takes_s: float
    stream: bool = False
    refused: bool = False


@dataclass
class Machine:
    """A Triton with one instance: requests wait in line, streams run beside them."""

    name: str
    waiting: list[Request] = field(default_factory=list)
    streams: list[Request] = field(default_factory=list)
    worked_s: float = 0.0
    fault: str = ""
    silent_s: float = 0.0
    ends: DrainAndStop | None = None
    answered_s: float = 0.0

    @property
    def open(self) -> int:
        return len(self.waiting) + len(self.streams)

    def would_answer(self) -> bool:
        return self.open > 0 and not self.fault

    def work(self, now_s: float) -> list[Request]:
        """Work for one tick; return what was answered."""
        if self.fault:
            return []
        done = [one for one in self.streams if now_s >= one.at_s + one.takes_s]
        self.streams = [one for one in self.streams if one not in done]
        self.worked_s += TICK_S
        while self.waiting and self.worked_s >= self.waiting[0].takes_s:
            self.worked_s -= self.waiting[0].takes_s
            done.append(self.waiting.pop(0))
        if not self.waiting:
            self.worked_s = 0.0
        if done:
            self.answered_s = now_s
        return done


@dataclass
class World:
    """One partition with a shadow: the guard, its servers, and what carries out its decisions."""

    slo_ms: float
    state: GuardState = field(init=False)
    machines: dict[str, Machine] = field(default_factory=dict)
    now_s: float = 0.0
    left_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        partition = GuardedPartition(
            "W", "g", 30.0, (Promise("w", self.slo_ms, 1.0),), ShadowPolicy.HOT, "g", 10.0
        )
        placed_servers = (PlacedServer("W.a", "g", 30.0), PlacedServer("W.s", "g", 40.0))
        self.state = decisions.begin((partition,), {"W": placed_servers}, LIMITS)
        self.machines = {name: Machine(name) for name in ("W.a", "W.s")}

    @property
    def active(self) -> Machine:
        return self.machines[self.state.watches["W"].active.server]

    def seen(self, machine: Machine) -> ServerSeen:
        stopped = machine.fault == "process" and machine.open > 0
        machine.silent_s = machine.silent_s + TICK_S if stopped else 0.0
        health = Health.HUNG if machine.silent_s >= SILENT_S else Health.READY
        return ServerSeen(health, len(machine.waiting), streaming=len(machine.streams))

    def tick(self, arriving: list[Request]) -> None:
        self.now_s += TICK_S
        active, answers = self.active, []
        for request in arriving:
            if request.refused:
                answers.append(Answer(self.now_s, 1.0, False, "w", active.name, refused=True))
            else:
                (active.streams if request.stream else active.waiting).append(request)
        for machine in self.machines.values():
            known = "" if machine.ends else machine.name
            answers += [
                Answer(self.now_s, 1000.0 * (self.now_s - one.at_s), False, "w", known)
                for one in machine.work(self.now_s)
            ]
        servers = {name: self.seen(m) for name, m in self.machines.items() if not m.ends}
        self.state, effects = decisions.tick(self.state, FleetSeen(self.now_s, tuple(answers), servers))
        for effect in effects:
            if isinstance(effect, Launch):
                self.machines[effect.server] = Machine(effect.server)
            if isinstance(effect, DrainAndStop):
                leaving = self.machines[effect.server]
                leaving.ends, leaving.answered_s = effect, self.now_s - effect.silent_s
                self.left_s[effect.server] = self.now_s
        self.stop_what_has_drained()

    def has_found(self, machine: Machine) -> bool:
        """Whether the guard has left the machine, or would if another stood by."""
        return machine.name in self.left_s or self.state.watches["W"].down

    def stop_what_has_drained(self) -> None:
        """As `runtime/controller/draining.py` does."""
        for machine in [m for m in self.machines.values() if m.ends]:
            assert machine.ends is not None
            late = self.now_s - machine.answered_s > machine.ends.patience_s
            drains = machine.ends.ending in (Ending.DRAINED, Ending.HUNG)
            kept = machine.ends.ending is Ending.DRAINED and bool(machine.streams)
            if drains and machine.open and (kept or not late) and machine.fault != "process":
                continue
            assert not machine.would_answer(), f"{machine.name} ended with {machine.open} requests"
            del self.machines[machine.name]


lengths = st.one_of(st.floats(0.01, 0.3), st.floats(0.5, 5.0), st.floats(5.0, 55.0))
requests = st.lists(
    st.tuples(
        st.one_of(st.floats(0.0, 0.5), st.floats(0.0, 20.0)),
        lengths,
        st.sampled_from(["plain", "plain", "stream", "refused"]),
    ),
    min_size=1,
    max_size=30,
)


def arrivals(drawn: list[tuple[float, float, str]]) -> list[Request]:
    at_s, found = 0.0, []
    for gap_s, takes_s, kind in drawn:
        at_s += gap_s
        found.append(Request(at_s, takes_s, kind == "stream", kind == "refused"))
    return found


@settings(max_examples=60)
@given(requests, st.sampled_from([50.0, 1000.0, 60_000.0]), st.booleans())
def test_no_server_is_ended_that_would_have_answered(
    drawn: list[tuple[float, float, str]], slo_ms: float, pauses: bool
) -> None:
    world, coming = World(slo_ms), arrivals(drawn)
    end_s = coming[-1].at_s + (90.0 if pauses else 5.0)
    while world.now_s < end_s:
        world.tick([one for one in coming if world.now_s < one.at_s <= world.now_s + TICK_S])


@settings(max_examples=60)
@given(requests, st.sampled_from([50.0, 1000.0]), st.sampled_from(["process", "model"]), st.integers(1, 6))
def test_each_true_hang_is_found(
    drawn: list[tuple[float, float, str]], slo_ms: float, fault: str, owed: int
) -> None:
    world, coming = World(slo_ms), arrivals(drawn)
    while world.now_s < coming[-1].at_s:
        world.tick([one for one in coming if world.now_s < one.at_s <= world.now_s + TICK_S])
    hangs = world.active
    hangs.fault = fault
    began_s = world.now_s
    new = [Request(began_s, 0.05) for _ in range(owed)]
    watch = world.state.watches["W"]
    longest_s = signals.overdue_s(watch, LIMITS)
    while not world.has_found(hangs) and world.now_s < began_s + 3.0 * longest_s:
        world.tick(new)
        new = []
    found_s = world.now_s - began_s if world.has_found(hangs) else math.inf
    settling_s = LIMITS.settle_s + 2.0 * TICK_S
    if fault == "process":
        assert found_s <= SILENT_S + 2.0 * TICK_S
    elif owed >= LIMITS.due:
        # What the model once took counts, also where it was learned after the fault.
        patience_s = signals.patience_s(world.state.watches["W"], LIMITS)
        assert found_s <= 2.0 * max(patience_s, signals.patience_s(watch, LIMITS)) + settling_s
    else:
        assert found_s <= longest_s + settling_s

"""A guard on its own: servers that do what its effects say, and what it sees of them, a tick at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from guard_invariants import validate_state

from controlplane.control.guard import decide
from controlplane.control.guard.effects import Cause, DrainAndStop, Effect, Launch, Redirect, Report
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import GuardedPartition, GuardState, Limits, Phase, PlacedServer, phase
from controlplane.domain.observation import Answer, FleetSeen, Health, HostSeen, Level, ServerSeen
from controlplane.domain.workload import ShadowPolicy

TICK_S = 0.2
LIMITS = Limits()
READY, STARTING = ServerSeen(Health.READY), ServerSeen(Health.STARTING)
CONTENDED = HostSeen(waiting=0.9)
T = TypeVar("T")


def partition(name: str = "W1", percent: float = 40.0, rate: float = 100.0, **of: Any) -> GuardedPartition:
    """A partition of one workload with an SLO of 50 ms; `of` changes its promise."""
    promise = replace(Promise(name, slo_ms=50.0, rate_rps=rate, execution_ms=20.0), **of)
    return GuardedPartition(name, "g0", percent, (promise,), ShadowPolicy.HOT, "g0", 10.0)


ALONE = replace(partition(), policy=ShadowPolicy.NONE, step_percent=0.0)


@dataclass
class Bench:
    """Feeds one guard, a tick at a time."""

    state: GuardState
    servers: dict[str, ServerSeen]
    now_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)
    host: HostSeen | None = None
    answers: list[Answer] = field(default_factory=list)
    """More answers of the next tick."""

    def tick(
        self, ticks: int = 1, *, late: Sequence[str] = (), rate: float = 100.0, took_ms: float = 20.0
    ) -> list[Effect]:
        """Every ready active server answers at `rate`; those named in `late` at three times the SLO."""
        fresh: list[Effect] = []
        for _ in range(ticks):
            answers, self.answers = self.answers, []
            for watch in self.state.watches.values():
                name = watch.active.server
                if name not in self.servers or self.servers[name].health is not Health.READY:
                    continue
                count = round(rate * TICK_S)
                for i in range(count):
                    took = 150.0 if watch.partition.id in late else took_ms
                    at = self.now_s + TICK_S * (i + 1) / count
                    answers.append(Answer(at, took, False, watch.partition.promises[0].endpoint, name))
            self.now_s += TICK_S
            seen = FleetSeen(self.now_s, tuple(answers), dict(self.servers), self.host)
            self.state, done = decide.tick(self.state, seen)
            validate_state(self.state)
            fresh += done
            for effect in done:
                if isinstance(effect, Launch):
                    self.servers[effect.server] = STARTING
                if isinstance(effect, DrainAndStop):
                    self.servers.pop(effect.server, None)
        self.effects += fresh
        return fresh

    def rest(self, seconds: float, *, rate: float = 100.0) -> list[Effect]:
        """Let the time pass; what starts is ready in the next tick."""
        begun = len(self.effects)
        for _ in range(round(seconds / TICK_S)):
            self.tick(rate=rate)
            self.ready()
        return self.effects[begun:]

    def ready(self, now: ServerSeen = READY) -> None:
        self.servers = {n: now if s.health is Health.STARTING else s for n, s in self.servers.items()}

    def moved(self) -> list[Cause]:
        return [redirect.cause for redirect in of(Redirect, self.effects)]

    def said(self, level: Level = Level.WARNING) -> str:
        return " | ".join(one.reason for one in of(Report, self.effects) if one.level is level)

    def phase(self, partition: str = "W1") -> Phase:
        return phase(self.state.watches[partition], self.now_s)

    def active(self, partition: str = "W1") -> str:
        return self.state.watches[partition].active.server

    def standbys(self) -> list[str | None]:
        return [w.standby.server if w.standby else None for w in self.state.watches.values()]

    def routes(self) -> dict[str, tuple[str, ...]]:
        found = decide.routes(self.state, FleetSeen(self.now_s, (), self.servers))
        return {endpoint: route.members for endpoint, route in found.items()}


def bench(*kept: GuardedPartition, standby: bool = True) -> Bench:
    placed, servers = {}, {}
    for one in kept or (partition(),):
        placed[one.id] = (PlacedServer(f"{one.id}.a", one.gpu, one.percent),)
        if standby and one.policy is not ShadowPolicy.NONE:
            placed[one.id] += (PlacedServer(f"{one.id}.s", one.shadow_gpu, one.percent + 10.0),)
        servers.update({server.server: READY for server in placed[one.id]})
    made = Bench(decide.begin(kept or (partition(),), placed, LIMITS), servers)
    made.tick()
    return made


def sharing(percent: float = 20.0) -> Bench:
    """Three partitions with one shadow of 40 %."""
    kept = tuple(
        replace(partition(name, percent), policy=ShadowPolicy.SHARED, shared=("standby", 40.0))
        for name in ("W1", "W2", "W3")
    )
    standby = PlacedServer("standby.0", "g0", 40.0, shared=True)
    placed = {one.id: (PlacedServer(f"{one.id}.a", "g0", percent), standby) for one in kept}
    servers = {name: READY for name in ("standby.0", *(f"{one.id}.a" for one in kept))}
    made = Bench(decide.begin(kept, placed, LIMITS), servers)
    made.tick(60)
    return made


def of(kind: type[T], effects: Sequence[Effect]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def ends(effects: Sequence[Effect], server: str = "W1.a") -> DrainAndStop:
    (found,) = (one for one in of(DrainAndStop, effects) if one.server == server)
    return found


def targets(effects: Sequence[Effect]) -> list[str]:
    return [redirect.target for redirect in of(Redirect, effects)]

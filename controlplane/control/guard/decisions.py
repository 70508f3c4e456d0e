"""Decide what to do where a prediction was wrong or a server died. Pure.

`tick(state, seen)` returns the next state and the effects in the order they must happen: `signals.hear`
reads the answers, `decide` acts on them. The state table is in docs/design/faults.md. Three rules:

* a partition with a live server has a route to it: a dead active server is left at once for a live one;
* between two redirects of a partition lies its settling time, unless the server it left is dead;
* no share has two owners: a shadow that no longer fits is replaced by one that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard import sequential, service, signals, starts
from controlplane.control.guard.host import contention, starves
from controlplane.control.guard.state import (
    Cause,
    DrainAndStop,
    Effect,
    Ending,
    GuardedPartition,
    GuardState,
    Launch,
    Launches,
    Limits,
    Load,
    OpenBreaker,
    PlacedServer,
    Probe,
    Redirect,
    Say,
    Topic,
    Watch,
    fits,
    overdrawn,
    room_percent,
    used_percent,
)
from controlplane.domain.device import noun_of
from controlplane.domain.observation import FleetSeen, Health, Level, ServerSeen
from controlplane.domain.workload import ShadowPolicy

_ENDINGS = {
    Cause.SLOW: Ending.DRAINED,
    Cause.SHARE: Ending.DRAINED,
    # It may have been a pause. If not, its end tells those who wait that they wait in vain.
    Cause.HANG: Ending.GRACE,
    Cause.IMPAIRED: Ending.REFUSED,
    # What it refuses is lost; what waits in it is sent to the shadow when it ends.
    Cause.FAILING: Ending.AT_ONCE,
    Cause.CRASH: Ending.AT_ONCE,
}


def begin(
    partitions: tuple[GuardedPartition, ...],
    placed_servers: Mapping[str, tuple[PlacedServer, ...]],
    limits: Limits,
    generation: int = 0,
) -> GuardState:
    """The first state: of each partition's servers the first is active, the second stands by.

    This is also how a controller that was killed goes on: what runs and what is routed says it all.
    Servers started from now on are numbered from `generation`, so that no name is given twice.
    """
    watches = {}
    for partition in partitions:
        active, *others = placed_servers[partition.id]
        watches[partition.id] = Watch(
            partition,
            active,
            tuple(sequential.fresh(p) for p in partition.promises),
            tuple((p.rate_rps,) * len(signals.MEMORIES) for p in partition.promises),
            tuple(service.Service() for _ in partition.promises),
            standby=others[0] if others else None,
            generation=generation,
        )
    return GuardState(watches, limits=limits)


def routes(state: GuardState, seen: FleetSeen) -> dict[str, NamedRoute]:
    """Endpoint -> who answers and who backs them up, as the state has it."""
    members: dict[str, list[str]] = {}
    backups: dict[str, str] = {}
    for watch in state.watches.values():
        for endpoint in watch.partition.endpoints:
            members.setdefault(endpoint, []).append(watch.active.server)
            if watch.standby is not None and _health(seen, watch.standby) is Health.READY:
                backups.setdefault(endpoint, watch.standby.server)
    return {e: NamedRoute(tuple(names), backups.get(e)) for e, names in members.items()}


def tick(state: GuardState, seen: FleetSeen) -> tuple[GuardState, tuple[Effect, ...]]:
    """One look at the fleet: the next state, and what to do now, in order."""
    return decide(signals.hear(state, seen), seen)


def decide(state: GuardState, seen: FleetSeen) -> tuple[GuardState, tuple[Effect, ...]]:
    """What to do about what was heard."""
    watches = dict(state.watches)
    turn = _Turn(replace(state, watches=watches), seen, watches, used_percent(watches.values()))
    turn.lost_gpus()
    for partition in state.watches:
        turn.decide(partition)
    return turn.state, tuple(turn.effects)


@dataclass(slots=True)
class _Turn:
    """The state and the effects of one tick while its partitions are gone through.

    `watches` are the state's own: they are written here and nowhere else until the tick is over. `used` is
    what they own of each GPU.
    """

    state: GuardState
    seen: FleetSeen
    watches: dict[str, Watch]
    used: dict[str, float]
    effects: list[Effect] = field(default_factory=list)

    def set(self, partition: str, watch: Watch) -> None:
        moved = watch.active.server != self.watches[partition].active.server
        self.watches[partition] = watch
        if moved:
            self.used = used_percent(self.watches.values())

    def decide(self, partition: str) -> None:
        """One row of the table: what stands by first, since what is done depends on it."""
        watch = self._standby_lives(self.state.watches[partition])
        now, limits = self.seen.now_s, self.state.limits
        active = self.seen.servers.get(watch.active.server, signals.GONE)
        cause = signals.death(watch, active, limits, now)
        if cause is not None:
            watch = self._dead(watch, cause, active)
        elif active.health is Health.IMPAIRED:
            watch = self._impaired(watch, active)
        else:
            watch = self._alive(watch, active)
        self.set(partition, self._upkeep(watch))

    def lost_gpus(self) -> None:
        """A fault of a GPU takes every server on it: one event, however many died."""
        died: dict[str, list[str]] = {}
        for watch in self.watches.values():
            for placed in (watch.active, watch.standby):
                if placed is None or died.get(placed.gpu) == []:
                    continue
                # The first that lives settles it for its GPU.
                gone = _health(self.seen, placed) is Health.GONE
                died[placed.gpu] = [*died.get(placed.gpu, []), watch.partition.id] if gone else []
        lost = frozenset(gpu for gpu, partitions in died.items() if len(partitions) > 1)
        for gpu in sorted(lost - self.state.lost_gpus):
            reason = f"all {len(died[gpu])} servers died: a fault of the whole {noun_of(gpu)}"
            # A partition's servers are asked the same.
            one = len(set(died[gpu])) == 1
            self._say(Level.CRITICAL, gpu, f"{reason}, or of what they were asked" if one else reason)
        if lost != self.state.lost_gpus:
            self.state = replace(self.state, lost_gpus=lost)

    def _standby_lives(self, watch: Watch) -> Watch:
        placed = watch.standby
        if placed is None:
            return watch
        now, health = self.seen.now_s, _health(self.seen, placed)
        if health in (Health.READY, Health.UNLOADED) and placed.since_s > now:
            watch = replace(watch, standby=replace(placed, since_s=now))
            self._say(
                Level.INFO,
                watch.partition.id,
                f"{placed.server} stands by with {placed.percent:g} % of {placed.gpu}",
            )
        if health in (Health.GONE, Health.FAILING, Health.IMPAIRED):
            reason = self.seen.servers.get(placed.server, signals.GONE).reason or str(health)
            if placed.gpu not in self.state.lost_gpus:
                self._say(Level.WARNING, watch.partition.id, f"shadow {placed.server} lost: {reason}")
            self.effects.append(DrainAndStop(placed.server, Ending.AT_ONCE))
            served = not watch.down and _health(self.seen, watch.active) is not Health.GONE
            launches = self._failed(watch, placed, served=served)
            if health is not Health.FAILING:
                watch = self._died(watch, placed)
            watch = replace(watch, standby=None, launches=launches)
        return watch

    def _died(self, watch: Watch, placed: PlacedServer) -> Watch:
        """Two that die at once may have died of one request: whoever dies over it, it is sent to the next."""
        now, within_s = self.seen.now_s, self.state.limits.settle_s
        if placed.since_s > now:
            return watch  # it never served
        if now - watch.died_s <= within_s and placed.gpu not in self.state.lost_gpus:
            reason = f"two servers died within {within_s:g} s: what they were asked may crash every server"
            self._say(Level.CRITICAL, watch.partition.id, reason)
        return replace(watch, died_s=now)

    def _failed(self, watch: Watch, placed: PlacedServer, *, served: bool) -> Launches:
        """The book of starts after `placed` died."""
        now, limits = self.seen.now_s, self.state.limits
        book = starts.failed(watch.launches, now - placed.since_s, now, limits, served=served)
        if book.open and not watch.launches.open:
            self.effects.append(OpenBreaker(watch.partition.id, book.retry_at_s))
            short = f"{book.failures} starts in a row did not live {limits.stable_s:g} s"
            reason = f"{short}; the next try is in {book.retry_at_s - now:g} s"
            self._say(Level.CRITICAL, watch.partition.id, reason)
        return book

    def _dead(self, watch: Watch, cause: Cause, active: ServerSeen) -> Watch:
        if self._usable(watch):
            return self._redirect(watch, cause, active)
        if not watch.down:
            reason = f"{cause}{f' ({active.reason})' if active.reason else ''}, and nothing stands by"
            if watch.active.gpu not in self.state.lost_gpus:
                self._say(Level.CRITICAL, watch.partition.id, f"{watch.active.server}: {reason}")
            standby_starts = watch.standby is not None
            book = watch.launches if standby_starts else self._failed(watch, watch.active, served=False)
            if cause is Cause.CRASH:
                watch = self._died(watch, watch.active)
            watch = replace(watch, down=True, launches=book)
        return self._wake(watch)

    def _impaired(self, watch: Watch, active: ServerSeen) -> Watch:
        """Left as soon as something else can answer; until then it is not called dead: some it may answer."""
        if self._usable(watch):
            return self._redirect(watch, Cause.IMPAIRED, active)
        watch = self._tell(watch, Topic.ERRORS, Level.WARNING, f"{active.reason}, and nothing stands by")
        return self._wake(self._probe(watch))

    def _probe(self, watch: Watch) -> Watch:
        now = self.seen.now_s
        if now - watch.probed_s <= self.state.limits.probe_s:
            return watch
        self.effects.append(Probe(watch.active.server))
        return replace(watch, probed_s=now)

    def _alive(self, watch: Watch, active: ServerSeen) -> Watch:
        now, limits = self.seen.now_s, self.state.limits
        if active.health is Health.READY:
            if watch.down:
                self._say(Level.INFO, watch.partition.id, f"{watch.active.server} answers again")
                watch = replace(watch, down=False)
            if watch.active.since_s > now:
                watch = replace(watch, active=replace(watch.active, since_s=now))
            if watch.launches.failures and starts.proven(watch, limits, now):
                watch = replace(watch, launches=Launches())
        if watch.failed_in_a_row >= limits.failed_in_a_row:
            reason = f"{watch.failed_in_a_row} failed requests in a row"
            watch = self._tell(self._probe(watch), Topic.ERRORS, Level.WARNING, reason)
        if now < watch.settled_s:
            return watch
        if watch.broken_s is not None:
            return self._broken(watch, active)
        if overdrawn(self.used, watch.active.gpu) and self._gives_back(watch):
            return self._redirect(watch, Cause.SHARE, active)
        return self._calm(watch)

    def _broken(self, watch: Watch, active: ServerSeen) -> Watch:
        """The SLO is broken and the server lives: too much traffic, a contended host, or a slow server."""
        if self.seen.now_s - watch.alarm_s > self.state.limits.calm_s:
            return self._calm(_forget(watch))
        assert watch.broken_s is not None
        young = self.seen.now_s - watch.broken_s < self.state.limits.sizes_s
        if young and (signals.sizes_unknown(watch, active) or self._cause_unknown(active)):
            return watch
        overrun = signals.over_plan(watch, active)
        if overrun is not None:
            watch = self._tell(watch, Topic.TRAFFIC, Level.WARNING, f"more traffic than planned: {overrun}")
            return _forget(watch)
        if starves(self.seen.host, active):
            reason = (
                f"{self._slowness(watch, active)}; it does not use up its share: a larger one is no faster"
            )
            return _forget(self._tell(watch, Topic.HOST, Level.WARNING, reason))
        standby = watch.standby
        if standby is not None and standby.percent > watch.active.percent and fits(self.used, watch, standby):
            if self._usable(watch):
                return self._redirect(watch, Cause.SLOW, active)
            reason = f"{self._slowness(watch, active)}; its shadow is not ready yet"
            return self._wake(self._tell(watch, Topic.WAITING, Level.WARNING, reason))
        larger = self._next_server(watch)
        if larger is not None and larger.percent > watch.active.percent:
            if standby is not None:
                self.effects.append(DrainAndStop(standby.server, Ending.AT_ONCE))
            reason = f"{self._slowness(watch, active)}; a shadow with {larger.percent:g} % comes next"
            return self._tell(replace(watch, standby=None), Topic.WAITING, Level.WARNING, reason)
        gpu = watch.active.gpu
        way_out = (
            "leave a core to the gateway and clients, or move them or other work away; then plan it anew"
            if contention(self.seen.host)
            else f"plan it anew, with a lower rate, a longer SLO or more {noun_of(gpu)}s"
        )
        share = f"its {watch.active.percent:g} % of {gpu} is all there is"
        reason = f"{self._slowness(watch, active)}; {share}: {way_out}"
        return _forget(self._tell(watch, Topic.EXHAUSTED, Level.CRITICAL, reason))

    def _cause_unknown(self, active: ServerSeen) -> bool:
        """Whether the host is contended, and it is not known whether the server uses up its share."""
        return bool(contention(self.seen.host)) and active.throttled is None

    def _slowness(self, watch: Watch, active: ServerSeen) -> str:
        """The evidence against a slow server, and against the host where that is contended."""
        return "; ".join(filter(None, (signals.slowness(watch, active), contention(self.seen.host))))

    def _calm(self, watch: Watch) -> Watch:
        """What was said stops being true once nothing spoke for it for a while."""
        if not watch.told:
            return watch
        now, limits = self.seen.now_s, self.state.limits
        kept = {
            topic: at
            for topic, at in watch.told.items()
            if topic is Topic.NO_ROOM or now - max(at, watch.alarm_s) < limits.calm_s
        }
        if len(kept) == len(watch.told):
            return watch
        if Topic.EXHAUSTED in watch.told and Topic.EXHAUSTED not in kept:
            self._say(Level.INFO, watch.partition.id, f"no sign of a broken SLO for {limits.calm_s:g} s")
        return replace(watch, told=kept)

    def _redirect(self, watch: Watch, cause: Cause, active: ServerSeen) -> Watch:
        now, target = self.seen.now_s, watch.standby
        assert target is not None
        self.effects.append(Redirect(watch.partition.id, watch.active.server, target.server, cause))
        died = cause in (Cause.CRASH, Cause.HANG, Cause.FAILING, Cause.IMPAIRED)
        self.effects.append(DrainAndStop(watch.active.server, _ENDINGS[cause]))
        if watch.active.gpu not in self.state.lost_gpus:
            said = self._slowness(watch, active) if cause is Cause.SLOW else active.reason
            level = Level.INFO if cause is Cause.SHARE else Level.WARNING
            share = f"{target.percent:g} % of {target.gpu}"
            reason = f"{cause}{f' ({said})' if said else ''}: redirected to {target.server}, {share}"
            self._say(level, watch.partition.id, reason)
        launches = self._failed(watch, watch.active, served=True) if died else watch.launches
        if cause in (Cause.CRASH, Cause.IMPAIRED) and not watch.down:
            watch = self._died(watch, watch.active)
        moved = replace(
            _forget(watch),
            active=target,
            services=tuple(service.Service() for _ in watch.services),
            standby=None,
            down=False,
            heard_s=now,
            settled_s=now + self.state.limits.settle_s,
            in_flight=0,
            failed_in_a_row=0,
            launches=launches,
            told={},
        )
        self.set(watch.partition.id, moved)
        if overdrawn(self.used, target.gpu):
            self._say(Level.WARNING, target.gpu, "shares overlap until a smaller server has taken over")
        return moved

    def _upkeep(self, watch: Watch) -> Watch:
        """Have something stand by that fits; where the active server is dead, have something start."""
        self.set(watch.partition.id, watch)
        now, standby = self.seen.now_s, watch.standby
        if standby is not None and not watch.down and not fits(self.used, watch, standby):
            self.effects.append(DrainAndStop(standby.server, Ending.AT_ONCE))
            watch = replace(watch, standby=None)
        if watch.standby is not None or now < watch.launches.retry_at_s:
            return watch
        lame = watch.down or _health(self.seen, watch.active) is Health.IMPAIRED
        if watch.partition.policy is ShadowPolicy.NONE and not lame:
            return watch
        placed = self._next_server(watch)
        if placed is None:
            reason = "no share is free for a shadow: nothing covers a fault"
            return self._tell(watch, Topic.NO_ROOM, Level.WARNING, reason)
        attempt = watch.launches.failures + 1
        self.effects.append(Launch(watch.partition.id, placed.server, placed.gpu, placed.percent, attempt))
        told: dict[Topic, float] = {m: at for m, at in watch.told.items() if m is not Topic.NO_ROOM}
        return replace(watch, standby=placed, generation=watch.generation + 1, told=told)

    def _next_server(self, watch: Watch) -> PlacedServer | None:
        """The next larger share, or the same where no more is free; after a death, its own."""
        partition, active = watch.partition, watch.active
        gpus = [active.gpu]
        if partition.shadow_gpu != partition.gpu:
            other = partition.gpu if active.gpu == partition.shadow_gpu else partition.shadow_gpu
            gpus = [other, active.gpu]
        step = 0.0 if watch.down else partition.step_percent
        for gpu in gpus:
            if gpu in self.state.lost_gpus and gpu != gpus[-1]:
                continue
            percent = min(active.percent + step, room_percent(self.used, watch, gpu))
            if percent >= min(active.percent, partition.percent) - 1e-6:
                name = f"{partition.id}.{watch.generation + 1}"
                return PlacedServer(name, gpu, percent)
        return None

    def _gives_back(self, watch: Watch) -> bool:
        standby = watch.standby
        return (
            self._usable(watch)
            and standby is not None
            and (standby.gpu != watch.active.gpu or standby.percent < watch.active.percent)
            and fits(self.used, watch, standby)
        )

    def _usable(self, watch: Watch) -> bool:
        return watch.standby is not None and _health(self.seen, watch.standby) is Health.READY

    def _wake(self, watch: Watch) -> Watch:
        if watch.standby is not None and _health(self.seen, watch.standby) is Health.UNLOADED:
            self.effects.append(Load(watch.standby.server))
        return watch

    def _tell(self, watch: Watch, topic: Topic, level: Level, reason: str) -> Watch:
        at = watch.told.get(topic)
        if at is not None and self.seen.now_s - at < self.state.limits.repeat_s:
            return watch
        self._say(level, watch.partition.id, reason)
        return replace(watch, told={**watch.told, topic: self.seen.now_s})

    def _say(self, level: Level, subject: str, reason: str) -> None:
        self.effects.append(Say(level, subject, reason))


def _forget(watch: Watch) -> Watch:
    """After something was done about it: the evidence starts anew."""
    return replace(
        watch,
        broken_s=None,
        evidence=tuple(sequential.restart(e) for e in watch.evidence),
        services=tuple(service.restart(s) for s in watch.services),
    )


def _health(seen: FleetSeen, placed: PlacedServer) -> Health:
    return seen.servers.get(placed.server, signals.GONE).health

"""Decide what to do where a prediction was wrong or a server died. Pure.

`tick(state, seen)` returns the next state and the effects in their order: `attention.observe` weighs the
answers, `decide` acts on the evidence. The state table is in docs/design/faults.md. Three rules:

* a partition with a live server has a route to it: a dead active server is left at once for a live one;
* between two redirects of a partition lies its settling time, unless the server it left is dead;
* no share has two owners: a shadow that no longer fits is replaced by one that does. After a death the larger
  shadow only lends its share: a server of the share that the partition owns takes over from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard import attention, culprits, sequential, service, signals, starts
from controlplane.control.guard.host import contention, starves
from controlplane.control.guard.slo_window import KEPT_S, SloWindow, is_kept
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
    Refuse,
    Report,
    Share,
    Topic,
    Watch,
    exceeds,
    fits,
    overdrawn,
    owned_percent,
    room_percent,
    used_percent,
)
from controlplane.domain.device import noun_of
from controlplane.domain.observation import FleetSeen, Health, Level, ServerSeen
from controlplane.domain.workload import ShadowPolicy

_ENDINGS = {
    Cause.SLOW: Ending.DRAINED,
    Cause.SHARE: Ending.DRAINED,
    Cause.ENDING: Ending.DRAINED,
    # It may have been a pause, or a long request. If not, its end closes the connections of those that wait.
    Cause.HANG: Ending.HUNG,
    Cause.IMPAIRED: Ending.REFUSED,
    # It refuses requests, which are lost; those that still wait in it go to the shadow when it ends.
    Cause.FAILING: Ending.AT_ONCE,
    Cause.CRASH: Ending.AT_ONCE,
}

_STANDBY_ENDINGS = {
    # One that had lent its share may still owe answers.
    Health.READY: Ending.DRAINED,
    Health.ENDING: Ending.DRAINED,
    Health.HUNG: Ending.HUNG,
    Health.PAUSED: Ending.HUNG,
    Health.IMPAIRED: Ending.REFUSED,
}
"""How a shadow ends; at once where its health is another."""


_KEPT_TOPICS = (Topic.NO_ROOM, Topic.SLO)
"""Conditions that end by what ends them, not by time."""


def begin(
    partitions: tuple[GuardedPartition, ...],
    placed_servers: Mapping[str, tuple[PlacedServer, ...]],
    limits: Limits,
    generation: int = 0,
    owned: Mapping[str, Share] = MappingProxyType({}),
) -> GuardState:
    """Return the first state: of each partition's servers the first is active, the second stands by.

    A new controller begins so too, from the servers and routes that it finds. Servers started from now on are
    numbered from `generation`, so that no name is used twice. `owned` are the shares of partitions whose
    active server has another one, lent after a death.
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
            tuple(SloWindow() for _ in partition.promises),
            standby=others[0] if others else None,
            owned=owned.get(partition.id),
            generation=generation,
        )
    return GuardState(watches, limits=limits)


def routes(state: GuardState, seen: FleetSeen) -> dict[str, NamedRoute]:
    """Return endpoint -> its active server and its backup, according to the state."""
    members: dict[str, list[str]] = {}
    backups: dict[str, str] = {}
    for watch in state.watches.values():
        for endpoint in watch.partition.endpoints:
            members.setdefault(endpoint, []).append(watch.active.server)
            if watch.standby is not None and _health(seen, watch.standby) is Health.READY:
                backups.setdefault(endpoint, watch.standby.server)
    return {e: NamedRoute(tuple(names), backups.get(e)) for e, names in members.items()}


def tick(state: GuardState, seen: FleetSeen) -> tuple[GuardState, tuple[Effect, ...]]:
    """Return the next state after one observation of the fleet, and the effects, in order."""
    return decide(attention.observe(state, seen), seen)


def decide(state: GuardState, seen: FleetSeen) -> tuple[GuardState, tuple[Effect, ...]]:
    """Return the state and the effects that follow from the evidence in `state`; it itself if none is due."""
    due = attention.due(state, seen.now_s)
    if state.due_s and not due:
        return state, ()
    watches = dict(state.watches)
    owned = owned_percent(watches.values())
    turn = _Turn(replace(state, watches=watches), seen, watches, used_percent(watches.values()), owned)
    if state.lost_gpus or any(turn.has_lost(watches[partition]) for partition in due):
        turn.lost_gpus()
    for partition, watch in state.watches.items():
        if partition in due or turn.is_concerned(watch):
            turn.decide(partition)
    return replace(turn.state, due_s={**state.due_s, **turn.next_looks()}), tuple(turn.effects)


@dataclass(slots=True)
class _Turn:
    """The state and the effects of one tick, partition by partition.

    `watches` is the state's own mapping and changes only here during the tick. `used` is the percentage of
    each GPU that active servers have, `owned` what partitions own, `moved` the GPUs of which one of them
    changed, `decided` the partitions so far, `failed_gpus` those on which the servers of several
    partitions died at once.
    """

    state: GuardState
    seen: FleetSeen
    watches: dict[str, Watch]
    used: dict[str, float]
    owned: dict[str, float]
    effects: list[Effect] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    decided: list[str] = field(default_factory=list)
    failed_gpus: frozenset[str] = frozenset()

    def set(self, partition: str, watch: Watch) -> None:
        before = self.watches[partition]
        self.watches[partition] = watch
        if watch.active.server != before.active.server or watch.share != before.share:
            self.used, self.owned = used_percent(self.watches.values()), owned_percent(self.watches.values())
            self.moved |= {before.active.gpu, before.share.gpu, watch.active.gpu, watch.share.gpu}

    def is_concerned(self, watch: Watch) -> bool:
        """Return whether a share has moved on a GPU of this partition: what fitted there may fit no more."""
        if not self.moved:
            return False
        return any(one.gpu in self.moved for one in (watch.active, watch.standby) if one is not None)

    def has_lost(self, watch: Watch) -> bool:
        """Return whether a server of this partition is gone."""
        placed_servers = (one for one in (watch.active, watch.standby) if one is not None)
        return any(_health(self.seen, one) is Health.GONE for one in placed_servers)

    def next_looks(self) -> dict[str, float]:
        """Return when those partitions are looked at again of which that may have changed."""
        limits = self.state.limits
        found = {p: attention.next_look_s(self.watches[p], self.seen, limits) for p in self.decided}
        concerned = (p for p, watch in self.watches.items() if self.is_concerned(watch))
        return {**found, **dict.fromkeys(concerned, attention.AT_ONCE)}

    def decide(self, partition: str) -> None:
        """Apply the table of docs/design/faults.md to one partition, its shadow first."""
        self.decided.append(partition)
        watch = self._standby_lives(self.state.watches[partition])
        now, limits = self.seen.now_s, self.state.limits
        active = self.seen.servers.get(watch.active.server, signals.GONE)
        cause = signals.death(watch, active, limits, now, self.seen.host)
        if cause is not None:
            watch = self._dead(watch, cause, active)
        elif active.health is Health.IMPAIRED:
            watch = self._left(watch, Cause.IMPAIRED, active)
        elif active.health is Health.ENDING:
            watch = self._left(watch, Cause.ENDING, active)
        else:
            watch = self._alive(watch, active)
        self.set(partition, self._upkeep(self._accuse(watch)))

    def lost_gpus(self) -> None:
        """Report a GPU whose servers are all gone, once, however many they are."""
        died: dict[str, list[str]] = {}
        for watch in self.watches.values():
            for placed in (watch.active, watch.standby):
                if placed is None or placed.since_s > self.seen.now_s or died.get(placed.gpu) == []:
                    continue  # what never was ready shows nothing
                # One living server shows that its GPU works.
                gone = _health(self.seen, placed) is Health.GONE
                died[placed.gpu] = [*died.get(placed.gpu, []), watch.partition.id] if gone else []
        lost = frozenset(gpu for gpu, partitions in died.items() if len(partitions) > 1)
        self.failed_gpus = frozenset(gpu for gpu in lost if len(set(died[gpu])) > 1)
        for gpu in sorted(lost - self.state.lost_gpus):
            reason = f"all {len(died[gpu])} servers died: a fault of the whole {noun_of(gpu)}"
            # The servers of one partition get the same requests.
            one = len(set(died[gpu])) == 1
            self._report(Level.CRITICAL, gpu, f"{reason}, or a request that crashes them" if one else reason)
        if lost != self.state.lost_gpus:
            self.state = replace(self.state, lost_gpus=lost)

    def _standby_lives(self, watch: Watch) -> Watch:
        placed = watch.standby
        if placed is None:
            return watch
        now, health = self.seen.now_s, _health(self.seen, placed)
        if health in (Health.READY, Health.UNLOADED) and placed.since_s > now:
            watch = replace(watch, standby=replace(placed, since_s=now))
            self._report(
                Level.INFO,
                watch.partition.id,
                f"{placed.server} stands by with {placed.percent:g} % of {placed.gpu}",
            )
        if health not in (Health.READY, Health.UNLOADED, Health.STARTING):
            reason = self.seen.servers.get(placed.server, signals.GONE).reason or str(health)
            if placed.gpu not in self.state.lost_gpus:
                self._report(Level.WARNING, watch.partition.id, f"shadow {placed.server} lost: {reason}")
            self._end_standby(watch, placed)
            served = not watch.down and _health(self.seen, watch.active) is not Health.GONE
            launches = self._failed(watch, placed, served=served)
            if health in (Health.GONE, Health.IMPAIRED):
                watch = self._died(watch, placed, whole=health is Health.GONE)
            watch = replace(watch, standby=None, launches=launches)
        return watch

    def _died(self, watch: Watch, placed: PlacedServer, *, whole: bool) -> Watch:
        """Report two deaths shortly after each other: HAProxy sends a request again after a crash."""
        now, within_s = self.seen.now_s, self.state.limits.settle_s
        if placed.since_s > now or placed.gpu in self.failed_gpus:
            return watch  # it has served no request, or no request ended it
        if watch.ending and placed.server == watch.active.server:
            return watch
        if now - watch.died_s <= within_s and placed.gpu not in self.state.lost_gpus:
            reason = f"two servers died within {within_s:g} s: one of their requests may crash every server"
            self._report(Level.CRITICAL, watch.partition.id, reason)
        return culprits.died(replace(watch, died_s=now), now, self.state.limits, whole=whole)

    def _accuse(self, watch: Watch) -> Watch:
        """Have requests refused that were open at each of several deaths; then the next start is at once."""
        now, limits = self.seen.now_s, self.state.limits
        found = culprits.accusation(watch, now, limits) if watch.deaths else None
        if found is None:
            return watch
        self.effects.append(Refuse(watch.partition.id, found.accused, found.refused_s))
        deaths = "a server" if found.deaths == 1 else f"{found.deaths} servers"
        within = f" within {now - found.since_s:.1f} s" if found.deaths > 1 else ""
        way_out = f"`ctl limit remove {found.accused.endpoint}` ends that"
        what = (
            f"its requests are refused for {found.refused_s:g} s ({way_out})"
            if found.refused_s
            else "from now on such a request is not sent to a second server"
        )
        reason = f"{deaths} died{within}, each with a request open for {found.accused}: {what}"
        self._report(Level.CRITICAL, watch.partition.id, reason)
        accused = culprits.accused(watch, found, now)
        return replace(accused, launches=Launches()) if found.refused_s else accused

    def _failed(self, watch: Watch, placed: PlacedServer, *, served: bool) -> Launches:
        """Return the record of starts after `placed` died."""
        now, limits = self.seen.now_s, self.state.limits
        book = starts.failed(watch.launches, now - placed.since_s, now, limits, served=served)
        if book.open and not watch.launches.open:
            self.effects.append(OpenBreaker(watch.partition.id, book.retry_at_s))
            short = f"{book.failures} servers in a row did not live {limits.loop_s:g} s"
            reason = f"{short}; the next try is in {book.retry_at_s - now:g} s"
            self._report(Level.CRITICAL, watch.partition.id, reason)
        return book

    def _dead(self, watch: Watch, cause: Cause, active: ServerSeen) -> Watch:
        if self._usable(watch):
            return self._redirect(watch, cause, active)
        if not watch.down:
            reason = f"{cause}{f' ({active.reason})' if active.reason else ''}, and nothing stands by"
            if watch.active.gpu not in self.state.lost_gpus:
                self._report(Level.CRITICAL, watch.partition.id, f"{watch.active.server}: {reason}")
            book = self._failed(watch, watch.active, served=False)
            if cause is Cause.CRASH:
                watch = self._died(watch, watch.active, whole=True)
            watch = replace(watch, down=True, launches=book)
        return self._wake(watch)

    def _left(self, watch: Watch, cause: Cause, active: ServerSeen) -> Watch:
        """Redirect as soon as another server is ready; until then it may still answer some requests."""
        watch = replace(watch, ending=cause is Cause.ENDING)
        if self._usable(watch):
            return self._redirect(watch, cause, active)
        watch = self._report_once(
            watch, Topic.ERRORS, Level.WARNING, f"{active.reason}, and nothing stands by"
        )
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
                self._report(Level.INFO, watch.partition.id, f"{watch.active.server} answers again")
                watch = replace(watch, down=False)
            if watch.ending:
                watch = replace(watch, ending=False)
            if watch.active.since_s > now:
                watch = replace(watch, active=replace(watch.active, since_s=now))
            if watch.launches.failures and starts.proven(watch, limits, now):
                watch = replace(watch, launches=Launches())
        if active.failing >= limits.failed_in_a_row:
            reason = f"{active.failing} failed requests in a row"
            watch = self._report_once(self._probe(watch), Topic.ERRORS, Level.WARNING, reason)
        if watch.refused_s == now:
            reason = "requests are refused by the model's own queue policy: its queue is full or too slow"
            watch = self._report_once(watch, Topic.REFUSED, Level.WARNING, reason)
        watch = self._report_slo(watch, active)
        if now < watch.settled_s:
            return watch
        if watch.broken_s is not None:
            return self._broken(watch, active)
        if watch.owned is not None or overdrawn(self.used, watch.active.gpu):
            if self._gives_back(watch):
                return self._redirect(watch, Cause.SHARE, active)
            if watch.owned is not None:
                watch = self._wake(watch)
        return self._calm(watch)

    def _report_slo(self, watch: Watch, active: ServerSeen) -> Watch:
        """Report a P99 that was above its SLO, and its end, whatever the rule decides."""
        now, since_s = self.seen.now_s, watch.reported.get(Topic.SLO, math.inf)
        if now - since_s >= KEPT_S and all(is_kept(window, now) for window in watch.windows):
            self._report(Level.INFO, watch.partition.id, "the P99 is within the SLO again")
            windows = tuple(SloWindow() for _ in watch.windows)
            return replace(watch, reported=watch.reported_but(Topic.SLO), windows=windows)
        found = signals.broken(watch)
        if found is None:
            return watch
        overrun = signals.over_plan(watch, active)
        traffic = f"more traffic than planned: {overrun}" if overrun else ""
        causes = (traffic, signals.longer_than_planned(watch), contention(self.seen.host))
        cause = "; ".join(filter(None, causes)) or "the cause is not known"
        return self._report_once(watch, Topic.SLO, Level.WARNING, f"{found}; {cause}")

    def _broken(self, watch: Watch, active: ServerSeen) -> Watch:
        """Decide on a broken SLO of a living server: too much traffic, a contended host, or a slow server."""
        if self.seen.now_s - watch.alarm_s > self.state.limits.calm_s:
            return self._calm(_forget(watch))
        assert watch.broken_s is not None
        young = self.seen.now_s - watch.broken_s < self.state.limits.sizes_s
        if young and (signals.sizes_unknown(watch, active) or self._cause_unknown(active)):
            return watch
        overrun = signals.over_plan(watch, active)
        if overrun is not None:
            watch = self._report_once(
                watch, Topic.TRAFFIC, Level.WARNING, f"more traffic than planned: {overrun}"
            )
            return _forget(watch)
        if starves(self.seen.host, watch.unexplained) and not signals.certainly_slower(watch):
            reason = f"{self._slowness(watch, active)}; other work has its core: a larger share is no faster"
            return _forget_late(self._report_once(watch, Topic.HOST, Level.WARNING, reason))
        if watch.owned is not None:
            # Even the larger share that the shadow lends is too small.
            watch = replace(watch, owned=None)
            self.set(watch.partition.id, watch)
        standby = watch.standby
        larger_standby = standby is not None and standby.percent > watch.active.percent
        if standby is not None and larger_standby and fits(self.used, watch.active, standby):
            if self._usable(watch):
                return self._redirect(watch, Cause.SLOW, active)
            reason = f"{self._slowness(watch, active)}; its shadow is not ready yet"
            return self._wake(self._report_once(watch, Topic.WAITING, Level.WARNING, reason))
        larger = self._next_server(watch)
        if larger is not None and larger.percent > watch.active.percent:
            if standby is not None:
                self._end_standby(watch, standby)
            reason = f"{self._slowness(watch, active)}; a shadow with {larger.percent:g} % comes next"
            return self._report_once(replace(watch, standby=None), Topic.WAITING, Level.WARNING, reason)
        gpu = watch.active.gpu
        way_out = (
            "leave a core to the gateway and clients, or move them or other work away; then plan it anew"
            if contention(self.seen.host)
            else f"plan it anew, with a lower rate, a longer SLO or more {noun_of(gpu)}s"
        )
        share = f"its {watch.active.percent:g} % of {gpu} is all there is"
        reason = f"{self._slowness(watch, active)}; {share}: {way_out}"
        return _forget(self._report_once(watch, Topic.EXHAUSTED, Level.CRITICAL, reason))

    def _cause_unknown(self, active: ServerSeen) -> bool:
        """Return whether the host is contended, and what delays the server is not known."""
        return bool(contention(self.seen.host)) and active.delays is None

    def _slowness(self, watch: Watch, active: ServerSeen) -> str:
        """Return the evidence of a slow server and of a contended host, in words."""
        return "; ".join(filter(None, (signals.slowness(watch, active), contention(self.seen.host))))

    def _calm(self, watch: Watch) -> Watch:
        """End reported conditions of which there was no sign for a while."""
        if not watch.reported:
            return watch
        now, limits = self.seen.now_s, self.state.limits
        kept = {
            topic: at
            for topic, at in watch.reported.items()
            if topic in _KEPT_TOPICS or now - max(at, watch.alarm_s) < limits.calm_s
        }
        if len(kept) == len(watch.reported):
            return watch
        if Topic.EXHAUSTED in watch.reported and Topic.EXHAUSTED not in kept:
            self._report(Level.INFO, watch.partition.id, f"no sign of a broken SLO for {limits.calm_s:g} s")
        return replace(watch, reported=kept)

    def _redirect(self, watch: Watch, cause: Cause, active: ServerSeen) -> Watch:
        now, target = self.seen.now_s, watch.standby
        assert target is not None
        self.effects.append(Redirect(watch.partition.id, watch.active.server, target.server, cause))
        died = cause in (Cause.CRASH, Cause.HANG, Cause.FAILING, Cause.IMPAIRED)
        # A shadow that lent its share stands by again; one that is warm would keep its models loaded.
        lent = watch.owned is not None and cause is Cause.SHARE and watch.partition.policy is ShadowPolicy.HOT
        if not lent:
            self.effects.append(self._ending(watch, cause, active.sequences))
        if watch.active.gpu not in self.state.lost_gpus:
            evidence = active.reason
            if cause is Cause.SLOW:
                evidence = self._slowness(watch, active)
            elif cause is Cause.HANG and not evidence:
                evidence = signals.silence(watch, active, self.seen.now_s)
            level = Level.INFO if cause is Cause.SHARE else Level.WARNING
            share = f"{target.percent:g} % of {target.gpu}"
            reason = f"{cause}{f' ({evidence})' if evidence else ''}: redirected to {target.server}, {share}"
            self._report(level, watch.partition.id, reason)
        counts = died and not watch.down  # one that was down was counted then
        launches = self._failed(watch, watch.active, served=True) if counts else watch.launches
        if cause in (Cause.CRASH, Cause.IMPAIRED) and not watch.down:
            watch = self._died(watch, watch.active, whole=cause is Cause.CRASH)
        moved = replace(
            _forget(watch),
            active=target,
            owned=self._lent(watch, target) if died or cause is Cause.ENDING else None,
            services=tuple(service.Service() for _ in watch.services),
            unexplained=1.0,
            standby=watch.active if lent else None,
            down=False,
            ending=False,
            answered_s=now,
            worked_s=now,
            settled_s=now + self.state.limits.settle_s,
            in_flight=0,
            launches=launches,
            reported={t: at for t, at in watch.reported.items() if t is Topic.SLO},
        )
        self.set(watch.partition.id, moved)
        if overdrawn(self.used, target.gpu):
            self._report(Level.WARNING, target.gpu, "shares overlap until a smaller server has taken over")
        return moved

    def _ending(self, watch: Watch, cause: Cause, sequences: int) -> DrainAndStop:
        """Return how the active server ends that is left for this cause."""
        if cause is not Cause.HANG:
            patience_s = signals.drain_s(watch, self.state.limits)
            return DrainAndStop(watch.active.server, _ENDINGS[cause], patience_s)
        patience_s = signals.overdue_s(watch, self.state.limits, sequences)
        silent_s = self.seen.now_s - watch.worked_s
        return DrainAndStop(watch.active.server, _ENDINGS[cause], patience_s, silent_s)

    def _end_standby(self, watch: Watch, standby: PlacedServer) -> None:
        ending = _STANDBY_ENDINGS.get(_health(self.seen, standby), Ending.AT_ONCE)
        patience_s = signals.drain_s(watch, self.state.limits)
        self.effects.append(DrainAndStop(standby.server, ending, patience_s))

    def _upkeep(self, watch: Watch) -> Watch:
        """Launch a shadow that fits, or a successor of a dead active server."""
        self.set(watch.partition.id, watch)
        now, standby = self.seen.now_s, watch.standby
        if standby is not None and not watch.down and not fits(self.owned, watch.share, standby):
            self._end_standby(watch, standby)
            watch = replace(watch, standby=None)
        if watch.standby is not None or now < watch.launches.retry_at_s:
            return watch
        serves_badly = watch.down or _health(self.seen, watch.active) in (Health.IMPAIRED, Health.ENDING)
        if watch.partition.policy is ShadowPolicy.NONE and not serves_badly:
            return watch
        placed = self._next_server(watch)
        if placed is None:
            reason = "no share is free for a shadow: nothing covers a fault"
            return self._report_once(watch, Topic.NO_ROOM, Level.WARNING, reason)
        attempt = watch.launches.failures + 1
        self.effects.append(Launch(watch.partition.id, placed.server, placed.gpu, placed.percent, attempt))
        reported = watch.reported_but(Topic.NO_ROOM)
        return replace(watch, standby=placed, generation=watch.generation + 1, reported=reported)

    def _next_server(self, watch: Watch) -> PlacedServer | None:
        """Return a server of the next larger share; of its own where no more is free, or after a death."""
        partition, active, share = watch.partition, watch.active, watch.share
        gpus = [active.gpu]
        if partition.shadow_gpu != partition.gpu:
            other = partition.gpu if active.gpu == partition.shadow_gpu else partition.shadow_gpu
            gpus = [other, active.gpu]
        step = 0.0 if watch.down or watch.owned is not None else partition.step_percent
        for gpu in gpus:
            if gpu in self.state.lost_gpus and gpu != gpus[-1]:
                continue
            percent = min(share.percent + step, room_percent(self.owned, share, gpu))
            if percent >= min(share.percent, partition.percent) - 1e-6:
                name = f"{partition.id}.{watch.generation + 1}"
                return PlacedServer(name, gpu, percent)
        return None

    def _lent(self, watch: Watch, target: PlacedServer) -> Share | None:
        """Return the share that a partition goes on to own after `target` took over from a dead server."""
        share = watch.share
        if share.gpu in self.state.lost_gpus:
            share = Share(target.gpu, share.percent)
        return share if exceeds(target, share) else None

    def _gives_back(self, watch: Watch) -> bool:
        standby = watch.standby
        if standby is None or not self._usable(watch):
            return False
        if not exceeds(watch.active, Share(standby.gpu, standby.percent)):
            return False
        if watch.owned is not None:
            # Another partition may have moved to its GPU in this very tick.
            return fits(self.owned, watch.share, standby)
        return fits(self.used, watch.active, standby)

    def _usable(self, watch: Watch) -> bool:
        return watch.standby is not None and _health(self.seen, watch.standby) is Health.READY

    def _wake(self, watch: Watch) -> Watch:
        if watch.standby is not None and _health(self.seen, watch.standby) is Health.UNLOADED:
            self.effects.append(Load(watch.standby.server))
        return watch

    def _report_once(self, watch: Watch, topic: Topic, level: Level, reason: str) -> Watch:
        at = watch.reported.get(topic)
        if at is not None and self.seen.now_s - at < self.state.limits.repeat_s:
            return watch
        self._report(level, watch.partition.id, reason)
        return replace(watch, reported={**watch.reported, topic: self.seen.now_s})

    def _report(self, level: Level, subject: str, reason: str) -> None:
        self.effects.append(Report(level, subject, reason))


def _forget(watch: Watch) -> Watch:
    """Return the watch with no evidence against its server: something was done about it."""
    return replace(_forget_late(watch), services=tuple(service.restart(s) for s in watch.services))


def _forget_late(watch: Watch) -> Watch:
    """Return the watch with the evidence of batch times alone: something else made the answers late."""
    return replace(watch, broken_s=None, evidence=tuple(sequential.restart(e) for e in watch.evidence))


def _health(seen: FleetSeen, placed: PlacedServer) -> Health:
    return seen.servers.get(placed.server, signals.GONE).health

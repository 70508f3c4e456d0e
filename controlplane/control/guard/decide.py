"""Decide what to do where a prediction was wrong or a server died. Pure.

`tick(state, seen)` returns the next state and the effects in their order: `observe` weighs the answers,
`decide` acts on the evidence. The state table is in docs/design/faults.md. Three rules:

* a partition with a live server has a route to it: a dead active server is left at once for a live one;
* between two redirects of a partition lies its settling time, unless the server it left is dead;
* no share has two owners: a shadow that no longer fits is replaced by one that does. After a death the larger
  shadow only lends its share: a server of the share that the partition owns takes over from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from controlplane.control import batches
from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard import deaths, learning, queues, rule, standbys
from controlplane.control.guard.batch_times import BatchTimes
from controlplane.control.guard.effects import Cause, DrainAndStop, Effect, Ending, Learn, Redirect, Topic
from controlplane.control.guard.observe import AT_ONCE, Tick, due, health, next_look_s, observe, resumed
from controlplane.control.guard.queues import KEPT_S, SloWindow, is_kept
from controlplane.control.guard.rule import Verdict, contention, over_plan
from controlplane.control.guard.state import (
    GuardedPartition,
    GuardState,
    Launches,
    Limits,
    PlacedServer,
    Rebatched,
    Share,
    Watch,
    overdrawn,
)
from controlplane.domain.device import noun_of
from controlplane.domain.observation import FleetSeen, Health, Level

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

_DEATHS = (Cause.CRASH, Cause.HANG, Cause.FAILING, Cause.IMPAIRED)

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
            tuple(map(queues.begin, partition.promises)),
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
            if watch.standby is not None and health(seen, watch.standby) is Health.READY:
                backups.setdefault(endpoint, watch.standby.server)
    return {e: NamedRoute(tuple(names), backups.get(e)) for e, names in members.items()}


def tick(state: GuardState, seen: FleetSeen) -> tuple[GuardState, tuple[Effect, ...]]:
    """Return the next state after one observation of the fleet, and the effects, in order."""
    return decide(observe(state, seen), seen)


def decide(state: GuardState, seen: FleetSeen) -> tuple[GuardState, tuple[Effect, ...]]:
    """Return the state and the effects that follow from the evidence in `state`; it itself if none is due."""
    looked_at = due(state, seen.now_s)
    if state.due_s and not looked_at:
        return state, ()
    tick = Tick(state, seen)
    servers = (placed for partition in looked_at for placed in tick.watches[partition].servers)
    if state.lost_gpus or any(tick.health(placed) is Health.GONE for placed in servers):
        deaths.find_lost_gpus(tick)
    for partition, watch in state.watches.items():
        if partition in looked_at or tick.is_concerned(watch):
            _decide(tick, tick.watches[partition])
    for error in tick.errors:
        _move_together(tick, error)
    looks_s = {p: next_look_s(tick.watches[p], seen, state.limits) for p in tick.decided}
    looks_s |= {p: AT_ONCE for p, watch in tick.watches.items() if tick.is_concerned(watch)}
    return replace(tick.state, due_s={**state.due_s, **looks_s}), tuple(tick.effects)


def _decide(tick: Tick, watch: Watch) -> None:
    """Apply the table of docs/design/faults.md to one partition, its shadow first."""
    tick.decided.append(watch.partition.id)
    watch = standbys.look_after(tick, watch)
    active = tick.active(watch)
    cause = deaths.death(tick, watch)
    if cause is not None:
        watch = _dead(tick, watch, cause)
    elif active.health is Health.IMPAIRED:
        watch = _left(tick, watch, Cause.IMPAIRED)
    elif active.health is Health.ENDING:
        watch = _left(tick, watch, Cause.ENDING)
    else:
        watch = _alive(tick, watch)
    tick.set(standbys.upkeep(tick, deaths.accuse(tick, watch)))


def _dead(tick: Tick, watch: Watch, cause: Cause) -> Watch:
    if standbys.successor(tick, watch) is not None:
        return _redirect(tick, watch, cause)
    if not watch.down:
        active = tick.active(watch)
        reason = f"{cause}{f' ({active.reason})' if active.reason else ''}, and nothing stands by"
        if watch.active.gpu not in tick.state.lost_gpus:
            tick.report(Level.CRITICAL, watch.partition.id, f"{watch.active.server}: {reason}")
        book = deaths.record_failure(tick, watch, watch.active, served=False)
        if cause is Cause.CRASH:
            watch = deaths.record_death(tick, watch, watch.active, whole=True)
        watch = replace(watch, down=True, launches=book)
    return tick.wake(watch)


def _left(tick: Tick, watch: Watch, cause: Cause) -> Watch:
    """Redirect as soon as another server is ready; until then it may still answer some requests."""
    watch = replace(watch, ending=cause is Cause.ENDING)
    if standbys.successor(tick, watch) is not None:
        return _redirect(tick, watch, cause)
    reason = f"{tick.active(watch).reason}, and nothing stands by"
    watch = tick.report_once(watch, Topic.ERRORS, Level.WARNING, reason)
    return tick.wake(tick.probe(watch))


def _alive(tick: Tick, watch: Watch) -> Watch:
    active, limits = tick.active(watch), tick.state.limits
    if active.health is Health.READY:
        if watch.down:
            tick.report(Level.INFO, watch.partition.id, f"{watch.active.server} answers again")
        if watch.down or watch.ending or watch.active.since_s > tick.now_s:
            began_s = min(watch.active.since_s, tick.now_s)
            watch = replace(watch, down=False, ending=False, active=replace(watch.active, since_s=began_s))
        if watch.launches.failures and deaths.are_proven(watch, limits, tick.now_s):
            watch = replace(watch, launches=Launches())
    if active.failing >= limits.failed_in_a_row:
        reason = f"{active.failing} failed requests in a row"
        watch = tick.report_once(tick.probe(watch), Topic.ERRORS, Level.WARNING, reason)
    if watch.refused_s == tick.now_s:
        reason = "requests are refused by the model's own queue policy: its queue is full or too slow"
        watch = tick.report_once(watch, Topic.REFUSED, Level.WARNING, reason)
    watch = _report_slo(tick, watch)
    if tick.now_s < watch.settled_s:
        return watch
    borrowed = watch.active.shared  # for as long as a server of its own starts
    verdict = Verdict.KEPT if borrowed else rule.verdict(watch, active, tick.seen.host, tick.now_s, limits)
    if verdict is not Verdict.KEPT:
        return _broken(tick, watch, verdict)
    watch = batches.change_back(tick, watch)
    if borrowed or watch.owned is not None or overdrawn(tick.used, watch.active.gpu):
        if standbys.gives_back(tick, watch):
            return _redirect(tick, watch, Cause.SHARE)
        if watch.owned is not None:
            watch = tick.wake(watch)
    return _calm(tick, watch)


def _report_slo(tick: Tick, watch: Watch) -> Watch:
    """Report a P99 that was above its SLO, and its end, whatever the rule decides."""
    since_s = watch.reported.get(Topic.SLO, math.inf)
    if tick.now_s - since_s >= KEPT_S and all(is_kept(queue.window, tick.now_s) for queue in watch.queues):
        tick.report(Level.INFO, watch.partition.id, "the P99 is within the SLO again")
        fresh = tuple(queue._replace(window=SloWindow()) for queue in watch.queues)
        return replace(watch, reported=watch.reported_but(Topic.SLO), queues=fresh)
    reason = rule.broken_slo(watch, tick.active(watch), tick.seen.host)
    return watch if reason is None else tick.report_once(watch, Topic.SLO, Level.WARNING, reason)


def _broken(tick: Tick, watch: Watch, verdict: Verdict) -> Watch:
    if verdict is Verdict.WAIT:
        return watch
    if verdict is Verdict.PAST:
        return _calm(tick, _forget(watch))
    if verdict is Verdict.TRAFFIC:
        reason = f"more traffic than planned: {over_plan(watch.queues, tick.active(watch))}"
        watch = batches.change(tick, watch, reason)
        return _forget(tick.report_once(watch, Topic.TRAFFIC, Level.WARNING, reason))
    slowness = rule.slowness(watch, tick.active(watch), tick.seen.host)
    if verdict is Verdict.SLOW:
        watch = _learned(tick, watch)
    if verdict is Verdict.HOST:
        reason = f"{slowness}; other work has its core: a larger share is no faster"
        watch = tick.report_once(watch, Topic.HOST, Level.WARNING, reason)
        return replace(watch, broken_s=None, queues=tuple(map(queues.restart_late, watch.queues)))
    if watch.owned is not None:
        # Even the larger share that the shadow lends is too small.
        watch = replace(watch, owned=None)
        tick.set(watch)
    standby = watch.standby
    if standbys.can_cure(tick, watch):
        if tick.is_covered(watch):
            return _redirect(tick, watch, Cause.SLOW, slowness)
        reason = f"{slowness}; its shadow is not ready yet"
        return tick.wake(tick.report_once(watch, Topic.WAITING, Level.WARNING, reason))
    larger = standbys.next_server(tick, watch)
    if larger is not None and larger.percent > watch.active.percent:
        if standby is not None:
            standbys.end(tick, watch, standby)
        reason = f"{slowness}; a shadow with {larger.percent:g} % comes next"
        return tick.report_once(replace(watch, standby=None), Topic.WAITING, Level.WARNING, reason)
    watch = batches.change(tick, watch, slowness)
    if watch.rebatched.at_s == tick.now_s:
        return watch
    reason = f"{slowness}; {_way_out(tick, watch)}"
    return _forget(tick.report_once(watch, Topic.EXHAUSTED, Level.CRITICAL, reason))


def _learned(tick: Tick, watch: Watch) -> Watch:
    """Report a model that is slower than planned on all its servers, and have that learned."""
    watch = replace(watch, slower=learning.slower(watch, tick.now_s))
    error = learning.model_error(watch, tick.watches.values(), tick.state.learned)
    if error is None:
        return watch
    tick.errors.append(error)
    learned = {**tick.state.learned, (error.model, error.gpu_type): error.factor}
    tick.state = replace(tick.state, learned=learned)
    tick.effects.append(error)
    short = learning.uncovered((w.partition for w in tick.watches.values()), error)
    cured = (
        f"; no shadow of {', '.join(short)} covers that, so nothing that stands by cures it" if short else ""
    )
    reason = f"{error}{cured}; a plan with the learned times is proposed"
    tick.report(Level.WARNING, watch.partition.id, reason)
    return watch


def _move_together(tick: Tick, error: Learn) -> None:
    """Redirect all partitions of a model whose P99 this error breaks, the worst first, in one commit."""
    on_planned_share = [
        resumed(watch, tick.now_s)
        for watch in tick.watches.values()
        if watch.partition.gpu_type == error.gpu_type
        and tick.now_s >= watch.settled_s
        and tick.active(watch).health is Health.READY
        and watch.active.percent <= watch.partition.percent
        and tick.is_covered(watch)
        and not watch.active.shared
    ]
    overruns = [(learning.overrun(watch, error), watch) for watch in on_planned_share]
    for over, watch in sorted(overruns, key=lambda one: -one[0]):
        if over > 1.0 and standbys.can_cure(tick, watch):
            tick.decided.append(watch.partition.id)
            tick.set(standbys.upkeep(tick, _redirect(tick, watch, Cause.SLOW, str(error))))


def _way_out(tick: Tick, watch: Watch) -> str:
    gpu = watch.active.gpu
    way_out = (
        "leave a core to the gateway and clients, or move them or other work away; then plan it anew"
        if contention(tick.seen.host)
        else f"plan it anew, with a lower rate, a longer SLO or more {noun_of(gpu)}s"
    )
    return f"its {watch.active.percent:g} % of {gpu} is all there is: {way_out}"


def _calm(tick: Tick, watch: Watch) -> Watch:
    """End reported conditions of which there was no sign for a while."""
    calm_s = tick.state.limits.calm_s
    kept = {
        topic: at_s
        for topic, at_s in watch.reported.items()
        if topic in _KEPT_TOPICS or tick.now_s - max(at_s, watch.alarm_s) < calm_s
    }
    if len(kept) == len(watch.reported):
        return watch
    if Topic.EXHAUSTED in watch.reported and Topic.EXHAUSTED not in kept:
        tick.report(Level.INFO, watch.partition.id, f"no sign of a broken SLO for {calm_s:g} s")
    return replace(watch, reported=kept)


def _redirect(tick: Tick, watch: Watch, cause: Cause, evidence: str = "") -> Watch:
    """Move the route to the shadow. Without `evidence` the reason is what was seen of the active server.

    Where a shared one takes over from a dead server, the partition's own goes on starting.
    """
    now, target = tick.now_s, standbys.successor(tick, watch)
    assert target is not None
    starting = watch.standby if watch.standby != target else None
    tick.effects.append(Redirect(watch.partition.id, watch.active.server, target.server, cause))
    died = cause in _DEATHS
    stays = cause is Cause.SHARE and standbys.stands_by_again(watch)
    if stays:
        watch = batches.restore(tick, watch)
    else:
        standbys.leave(tick, watch, _ending(tick, watch, cause))
    if watch.active.gpu not in tick.state.lost_gpus:
        active = tick.active(watch)
        silence = rule.silence(watch, active, tick.now_s) if cause is Cause.HANG else ""
        evidence = evidence or active.reason or silence
        share = f"{target.percent:g} % of {target.gpu}"
        reason = f"{cause}{f' ({evidence})' if evidence else ''}: redirected to {target.server}, {share}"
        tick.report(Level.INFO if cause is Cause.SHARE else Level.WARNING, watch.partition.id, reason)
    launches = watch.launches
    if died and not watch.down:  # one that was down was counted then
        launches = deaths.record_failure(tick, watch, watch.active, served=True)
    if cause in (Cause.CRASH, Cause.IMPAIRED) and not watch.down:
        watch = deaths.record_death(tick, watch, watch.active, whole=cause is Cause.CRASH)
    forgotten = _forget(watch)
    moved = replace(
        forgotten,
        active=target,
        owned=standbys.lent(tick, watch, target) if died or cause is Cause.ENDING else None,
        queues=tuple(
            queue._replace(batches=BatchTimes(), promise=promise)
            for queue, promise in zip(forgotten.queues, watch.partition.promises, strict=True)
        ),
        rebatched=Rebatched(),
        unexplained=1.0,
        standby=watch.active if stays else starting,
        down=False,
        ending=False,
        answered_s=now,
        worked_s=now,
        settled_s=now + tick.state.limits.settle_s,
        failed_s=now if cause is Cause.FAILING else watch.failed_s,
        in_flight=0,
        launches=launches,
        reported={t: at for t, at in watch.reported.items() if t is Topic.SLO},
    )
    tick.set(moved)
    if overdrawn(tick.used, target.gpu):
        tick.report(Level.WARNING, target.gpu, "shares overlap until a smaller server has taken over")
    return moved


def _ending(tick: Tick, watch: Watch, cause: Cause) -> DrainAndStop:
    limits, server = tick.state.limits, watch.active.server
    if cause is not Cause.HANG:
        return DrainAndStop(server, _ENDINGS[cause], deaths.drain_s(watch, limits))
    patience_s = deaths.overdue_s(watch, limits, tick.active(watch).sequences)
    return DrainAndStop(server, _ENDINGS[cause], patience_s, tick.now_s - watch.worked_s)


def _forget(watch: Watch) -> Watch:
    """Return the watch with no evidence against its server: something was done about it."""
    return replace(watch, broken_s=None, queues=tuple(map(queues.restart, watch.queues)))

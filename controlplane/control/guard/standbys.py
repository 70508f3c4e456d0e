"""Shadows: their life, the next one's share, and the share that one gives back. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from controlplane.control.guard import deaths
from controlplane.control.guard.effects import DrainAndStop, Ending, Launch, Topic
from controlplane.control.guard.observe import Tick
from controlplane.control.guard.state import (
    Launches,
    PlacedServer,
    Share,
    Watch,
    differs,
    exceeds,
    fits,
    room_percent,
)
from controlplane.domain.observation import GONE, Health, Level
from controlplane.domain.workload import ShadowPolicy

_ENDINGS = {
    # One that had lent its share may still owe answers.
    Health.READY: Ending.DRAINED,
    Health.ENDING: Ending.DRAINED,
    Health.HUNG: Ending.HUNG,
    Health.PAUSED: Ending.HUNG,
    Health.IMPAIRED: Ending.REFUSED,
}
"""How a shadow ends; at once where its health is another."""


def look_after(tick: Tick, watch: Watch) -> Watch:
    """Note a shadow that has become ready, and one that is lost."""
    placed = watch.standby
    if placed is None:
        return watch
    health = tick.health(placed)
    if health in (Health.READY, Health.UNLOADED) and placed.since_s > tick.now_s:
        watch = replace(watch, standby=replace(placed, since_s=tick.now_s))
        reason = f"{placed.server} stands by with {placed.percent:g} % of {placed.gpu}"
        tick.report(Level.INFO, watch.partition.id, reason)
    if health in (Health.READY, Health.UNLOADED, Health.STARTING):
        return watch
    if placed.gpu not in tick.state.lost_gpus:
        why = tick.seen.servers.get(placed.server, GONE).reason or str(health)
        tick.report(Level.WARNING, watch.partition.id, f"shadow {placed.server} lost: {why}")
    for other in _sharers(tick, watch) if placed.shared else ():
        if other.standby is not None and other.standby.server == placed.server:
            _set(tick, replace(other, standby=None, launches=_failed(tick, other, placed)))
    end(tick, watch, placed)
    launches = _failed(tick, watch, placed)
    if health in (Health.GONE, Health.IMPAIRED) and not placed.shared:  # that serves others' requests too
        watch = deaths.record_death(tick, watch, placed, whole=health is Health.GONE)
    return replace(watch, standby=None, launches=launches)


def _failed(tick: Tick, watch: Watch, standby: PlacedServer) -> Launches:
    served = not watch.down and tick.health(watch.active) is not Health.GONE
    return deaths.record_failure(tick, watch, standby, served=served)


def end(tick: Tick, watch: Watch, standby: PlacedServer) -> None:
    """End a shadow, unless other partitions have it too."""
    if any(one.server == standby.server for other in _sharers(tick, watch) for one in other.servers):
        return
    ending = _ENDINGS.get(tick.health(standby), Ending.AT_ONCE)
    patience_s = deaths.drain_s(watch, tick.state.limits)
    tick.effects.append(DrainAndStop(standby.server, ending, patience_s))


def leave(tick: Tick, watch: Watch, stop: DrainAndStop) -> None:
    """End the active server, which is no partition's shadow any more, unless it still serves another one."""
    sharers = _sharers(tick, watch)
    for other in sharers:
        if other.standby is not None and other.standby.server == stop.server:
            _set(tick, replace(other, standby=None))
    if all(other.active.server != stop.server for other in sharers):
        tick.effects.append(stop)


def upkeep(tick: Tick, watch: Watch) -> Watch:
    """Launch a shadow that fits, or a successor of a dead active server."""
    tick.set(watch)
    standby = watch.standby
    movable = standby is not None and not watch.down and not standby.shared
    if standby is not None and movable and not fits(tick.owned, watch.share, standby):
        end(tick, watch, standby)
        watch = replace(watch, standby=None)
    if watch.standby is not None or tick.now_s < watch.launches.retry_at_s:
        return watch
    serves_badly = watch.down or tick.health(watch.active) in (Health.IMPAIRED, Health.ENDING)
    if watch.partition.policy is ShadowPolicy.NONE and not serves_badly:
        return watch
    if not serves_badly and _may_share(watch):
        return _share(tick, watch)
    placed = next_server(tick, watch)
    if placed is None:
        reason = "no share is free for a shadow: nothing covers a fault"
        return tick.report_once(watch, Topic.NO_ROOM, Level.WARNING, reason)
    attempt = watch.launches.failures + 1
    tick.effects.append(Launch(watch.partition.id, placed.server, placed.gpu, placed.percent, attempt))
    reported = watch.reported_but(Topic.NO_ROOM)
    return replace(watch, standby=placed, generation=watch.generation + 1, reported=reported)


def successor(tick: Tick, watch: Watch) -> PlacedServer | None:
    """Return what can take over now from a server that serves no more: the shadow, else a shared one."""
    if tick.is_covered(watch):
        return watch.standby
    for placed in (one for other in _sharers(tick, watch) for one in other.servers if one.shared):
        if tick.health(placed) is Health.READY and placed.server != watch.active.server:
            return placed
    return None


def _sharers(tick: Tick, watch: Watch) -> list[Watch]:
    own = watch.partition
    if own.shared is None:
        return []
    return [
        other
        for other in tick.watches.values()
        if other.partition.shared == own.shared and other.partition.id != own.id
    ]


def _may_share(watch: Watch) -> bool:
    """Return whether a partition needs no server of its own beside the active one."""
    borrows = watch.active.shared or watch.owned is not None or watch.down
    return watch.partition.shared is not None and not borrows and Topic.WAITING not in watch.reported


def _share(tick: Tick, watch: Watch) -> Watch:
    """Have the shared shadow stand by for a partition; launch it where there is none, for all that may."""
    assert watch.partition.shared is not None
    sharers = _sharers(tick, watch)
    for placed in (one for other in sharers for one in other.servers if one.shared):
        if tick.health(placed) in (Health.READY, Health.STARTING):
            return replace(watch, standby=placed)
    name, percent = watch.partition.shared
    generation = 1 + max(one.generation for one in (watch, *sharers))
    server = f"{watch.partition.shared_names or f'{name}.'}{generation}"
    placed = PlacedServer(server, watch.partition.gpu, percent, shared=True)
    tick.effects.append(Launch(name, placed.server, placed.gpu, percent, watch.launches.failures + 1))
    for other in sharers:
        if other.standby is None and _may_share(other):
            _set(tick, replace(other, standby=placed, generation=generation))
    return replace(watch, standby=placed, generation=generation)


def _set(tick: Tick, watch: Watch) -> None:
    """Keep what a partition has become that this tick may not look at."""
    tick.set(watch)
    tick.decided.append(watch.partition.id)


def can_cure(tick: Tick, watch: Watch) -> bool:
    """Return whether the shadow has a larger share, which fits; a shared one while it serves no other."""
    standby = watch.standby
    if standby is None or standby.percent <= watch.active.percent:
        return False
    serves = any(other.active.server == standby.server for other in _sharers(tick, watch))
    return not serves and fits(tick.used, watch.active, standby)


def stands_by_again(watch: Watch) -> bool:
    """Return whether an active server that gives its share back stands by: a warm one would stay loaded."""
    lends = watch.owned is not None and watch.partition.policy is ShadowPolicy.HOT
    return lends or watch.active.shared


def is_awaited(watch: Watch) -> bool:
    """Return whether requests wait for a server that starts: none serves them yet, or not well."""
    troubles = {Topic.WAITING, Topic.ERRORS} & watch.reported.keys()
    return watch.down or watch.ending or watch.active.since_s == math.inf or bool(troubles)


def next_server(tick: Tick, watch: Watch) -> PlacedServer | None:
    """Return a server of the next larger share; of its own where no more is free, or after a death.

    Where the model was found to be slower than planned, the share is larger by that factor at least.
    """
    partition, active, share = watch.partition, watch.active, watch.share
    gpus = [active.gpu]
    if partition.shadow_gpu != partition.gpu:
        other = partition.gpu if active.gpu == partition.shadow_gpu else partition.shadow_gpu
        gpus = [other, active.gpu]
    least = share.percent
    if not watch.down and watch.owned is None and partition.step_percent and not active.shared:
        learned = [tick.state.learned.get((p.model, partition.gpu_type), 1.0) for p in partition.promises]
        least = max(share.percent + partition.step_percent, max(learned) * partition.percent)
    for gpu in gpus:
        if gpu in tick.state.lost_gpus and gpu != gpus[-1]:
            continue
        percent = min(least, room_percent(tick.owned, share, gpu))
        if percent >= min(share.percent, partition.percent) - 1e-6:
            return PlacedServer(partition.launched(watch.generation + 1), gpu, percent)
    return None


def lent(tick: Tick, watch: Watch, target: PlacedServer) -> Share | None:
    """Return the share that a partition goes on to own after `target` took over from a dead server."""
    share = watch.share
    if share.gpu in tick.state.lost_gpus:
        share = Share(target.gpu, share.percent)
    return share if differs(target, share) else None


def gives_back(tick: Tick, watch: Watch) -> bool:
    """Return whether a standby of the right share can take over from an active server that lends its own."""
    standby = watch.standby
    if standby is None or standby.shared or not tick.is_covered(watch):
        return False
    if watch.active.shared or watch.owned is not None:
        # Another partition may have moved to its GPU in this very tick.
        return fits(tick.owned, watch.share, standby)
    smaller = exceeds(watch.active, Share(standby.gpu, standby.percent))
    return smaller and fits(tick.used, watch.active, standby)

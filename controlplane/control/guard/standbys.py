"""Shadows: their life, the next one's share, and the share that one gives back. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from controlplane.control.guard import deaths, liveness
from controlplane.control.guard.effects import DrainAndStop, Ending, Launch, Topic
from controlplane.control.guard.observe import Tick
from controlplane.control.guard.state import PlacedServer, Share, Watch, exceeds, fits, room_percent
from controlplane.domain.observation import Health, Level
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
        why = tick.seen.servers.get(placed.server, liveness.GONE).reason or str(health)
        tick.report(Level.WARNING, watch.partition.id, f"shadow {placed.server} lost: {why}")
    end(tick, watch, placed)
    served = not watch.down and tick.health(watch.active) is not Health.GONE
    launches = deaths.record_failure(tick, watch, placed, served=served)
    if health in (Health.GONE, Health.IMPAIRED):
        watch = deaths.record_death(tick, watch, placed, whole=health is Health.GONE)
    return replace(watch, standby=None, launches=launches)


def end(tick: Tick, watch: Watch, standby: PlacedServer) -> None:
    """End a shadow."""
    ending = _ENDINGS.get(tick.health(standby), Ending.AT_ONCE)
    patience_s = liveness.drain_s(watch, tick.state.limits)
    tick.effects.append(DrainAndStop(standby.server, ending, patience_s))


def upkeep(tick: Tick, watch: Watch) -> Watch:
    """Launch a shadow that fits, or a successor of a dead active server."""
    tick.set(watch)
    standby = watch.standby
    if standby is not None and not watch.down and not fits(tick.owned, watch.share, standby):
        end(tick, watch, standby)
        watch = replace(watch, standby=None)
    if watch.standby is not None or tick.now_s < watch.launches.retry_at_s:
        return watch
    serves_badly = watch.down or tick.health(watch.active) in (Health.IMPAIRED, Health.ENDING)
    if watch.partition.policy is ShadowPolicy.NONE and not serves_badly:
        return watch
    placed = next_server(tick, watch)
    if placed is None:
        reason = "no share is free for a shadow: nothing covers a fault"
        return tick.report_once(watch, Topic.NO_ROOM, Level.WARNING, reason)
    attempt = watch.launches.failures + 1
    tick.effects.append(Launch(watch.partition.id, placed.server, placed.gpu, placed.percent, attempt))
    reported = watch.reported_but(Topic.NO_ROOM)
    return replace(watch, standby=placed, generation=watch.generation + 1, reported=reported)


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
    if not watch.down and watch.owned is None and partition.step_percent:
        learned = [tick.state.learned.get((p.model, partition.gpu_type), 1.0) for p in partition.promises]
        least = max(share.percent + partition.step_percent, max(learned) * partition.percent)
    for gpu in gpus:
        if gpu in tick.state.lost_gpus and gpu != gpus[-1]:
            continue
        percent = min(least, room_percent(tick.owned, share, gpu))
        if percent >= min(share.percent, partition.percent) - 1e-6:
            return PlacedServer(f"{partition.id}.{watch.generation + 1}", gpu, percent)
    return None


def lent(tick: Tick, watch: Watch, target: PlacedServer) -> Share | None:
    """Return the share that a partition goes on to own after `target` took over from a dead server."""
    share = watch.share
    if share.gpu in tick.state.lost_gpus:
        share = Share(target.gpu, share.percent)
    return share if exceeds(target, share) else None


def gives_back(tick: Tick, watch: Watch) -> bool:
    """Return whether a standby of a smaller share can take over from an active server that lends its own."""
    standby = watch.standby
    if standby is None or not tick.is_covered(watch):
        return False
    if not exceeds(watch.active, Share(standby.gpu, standby.percent)):
        return False
    if watch.owned is not None:
        # Another partition may have moved to its GPU in this very tick.
        return fits(tick.owned, watch.share, standby)
    return fits(tick.used, watch.active, standby)

"""Servers that died: what follows for starts, for GPUs, and for requests that crash servers. Pure."""

from __future__ import annotations

from dataclasses import replace

from controlplane.control.guard import culprits
from controlplane.control.guard.culprits import Accusation
from controlplane.control.guard.effects import OpenBreaker, Refuse
from controlplane.control.guard.state import Launches, Limits, PlacedServer, Watch
from controlplane.control.guard.tick import Tick
from controlplane.domain.device import noun_of
from controlplane.domain.observation import Health, Level
from controlplane.domain.workload import ShadowPolicy


def find_lost_gpus(tick: Tick) -> None:
    """Report a GPU whose servers are all gone, once, however many they are."""
    died: dict[str, list[str]] = {}
    for watch in tick.watches.values():
        for placed in watch.servers:
            if placed.since_s > tick.now_s or died.get(placed.gpu) == []:
                continue  # what never was ready shows nothing
            # One living server shows that its GPU works.
            gone = tick.health(placed) is Health.GONE
            died[placed.gpu] = [*died.get(placed.gpu, []), watch.partition.id] if gone else []
    lost = frozenset(gpu for gpu, partitions in died.items() if len(partitions) > 1)
    tick.failed_gpus = frozenset(gpu for gpu in lost if len(set(died[gpu])) > 1)
    for gpu in sorted(lost - tick.state.lost_gpus):
        reason = f"all {len(died[gpu])} servers died: a fault of the whole {noun_of(gpu)}"
        # The servers of one partition get the same requests.
        one = len(set(died[gpu])) == 1
        tick.report(Level.CRITICAL, gpu, f"{reason}, or a request that crashes them" if one else reason)
    if lost != tick.state.lost_gpus:
        tick.state = replace(tick.state, lost_gpus=lost)


def record_death(tick: Tick, watch: Watch, placed: PlacedServer, *, whole: bool) -> Watch:
    """Report two deaths shortly after each other: HAProxy sends a request again after a crash."""
    within_s = tick.state.limits.settle_s
    if placed.since_s > tick.now_s or placed.gpu in tick.failed_gpus:
        return watch  # it has served no request, or no request ended it
    if watch.ending and placed.server == watch.active.server:
        return watch
    if tick.now_s - watch.died_s <= within_s and placed.gpu not in tick.state.lost_gpus:
        reason = f"two servers died within {within_s:g} s: one of their requests may crash every server"
        tick.report(Level.CRITICAL, watch.partition.id, reason)
    died = replace(watch, died_s=tick.now_s)
    return culprits.died(died, tick.now_s, tick.state.limits, whole=whole)


def accuse(tick: Tick, watch: Watch) -> Watch:
    """Have requests refused that were open at each of several deaths; then the next start is at once."""
    if not watch.deaths:
        return watch
    endpoints, limits = frozenset(watch.partition.endpoints), tick.state.limits
    pool = [
        one
        for one in tick.watches.values()
        if one.partition.id != watch.partition.id and not endpoints.isdisjoint(one.partition.endpoints)
    ]
    found = culprits.accusation(culprits.of_pool(watch, pool, limits), tick.now_s, limits)
    if found is None:
        return watch
    tick.effects.append(Refuse(watch.partition.id, found.accused, found.refused_s))
    deaths = "a server" if found.deaths == 1 else f"{found.deaths} servers"
    within = f" within {tick.now_s - found.since_s:.1f} s" if found.deaths > 1 else ""
    way_out = f"`ctl limit remove {found.accused.endpoint}` ends that"
    what = (
        f"its requests are refused for {found.refused_s:g} s ({way_out})"
        if found.refused_s
        else "from now on such a request is not sent to a second server"
    )
    reason = f"{deaths} died{within}, each with a request open for {found.accused}: {what}"
    tick.report(Level.CRITICAL, watch.partition.id, reason)
    for one in pool:
        tick.set(_accused(one, found, tick.now_s))
    return _accused(watch, found, tick.now_s)


def _accused(watch: Watch, found: Accusation, now_s: float) -> Watch:
    accused = culprits.accused(watch, found, now_s)
    return replace(accused, launches=Launches()) if found.refused_s else accused


def record_failure(tick: Tick, watch: Watch, placed: PlacedServer, *, served: bool) -> Launches:
    """Return the record of starts after `placed` died; report where no more are tried for a while."""
    limits = tick.state.limits
    book = after_death(watch.launches, tick.now_s - placed.since_s, tick.now_s, limits, served=served)
    if book.open and not watch.launches.open:
        tick.effects.append(OpenBreaker(watch.partition.id, book.retry_at_s))
        short = f"{book.failures} servers in a row did not live {limits.loop_s:g} s"
        reason = f"{short}; the next try is in {book.retry_at_s - tick.now_s:g} s"
        tick.report(Level.CRITICAL, watch.partition.id, reason)
    return book


def after_death(book: Launches, lived_s: float, now_s: float, limits: Limits, *, served: bool) -> Launches:
    """Return the record after the death of a server that had been ready for `lived_s` (-inf: never).

    Each death of a server that did not live for long counts; the waits double, then the breaker opens. Where
    no other server serves its partition (`served`), a server that lived long gets a successor at once, also
    after failed starts of shadows, and the breaker is open for a shorter time. In a loop of servers that did
    serve for a while the breaker is open for as long as the last one lived.
    """
    if lived_s > limits.loop_s:
        return book if book.open and served else Launches()
    failures = book.failures + 1
    started = lived_s > limits.stable_s
    if started and (failures == 1 or (failures < limits.failures and not served)):
        return Launches(failures, now_s)
    if failures < limits.failures:
        wait_s = min(limits.back_off_max_s, limits.back_off_s * 2.0 ** (failures - 1))
        return Launches(failures, now_s + wait_s)
    wait_s = limits.breaker_s if served else limits.back_off_max_s
    return Launches(failures, now_s + (min(wait_s, lived_s) if started else wait_s), open=True)


def are_proven(watch: Watch, limits: Limits, now_s: float) -> bool:
    """Return whether all servers of a partition have lived so long that no death counts any more."""
    if watch.standby is None and watch.partition.policy is not ShadowPolicy.NONE:
        return False
    return all(now_s - placed.since_s > limits.loop_s for placed in watch.servers)

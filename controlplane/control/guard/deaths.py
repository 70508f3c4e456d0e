"""Servers that died: when one counts as dead, and what follows for starts, GPUs and requests. Pure.

How long a server may be silent is in docs/design/faults.md.

A request may crash every server that executes it. One such request is open at each of the deaths; others are
open at some of them by chance. So where the same endpoint, of the same client where clients are known, had an
open request at every one of several deaths, it is accused: first it gets no second server after a death, then
its requests are refused for a while, longer each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controlplane.control.guard.effects import Accused, Cause, OpenBreaker, Refuse
from controlplane.control.guard.observe import Tick
from controlplane.control.guard.rule import contention
from controlplane.control.guard.state import Death, Launches, Limits, Offence, PlacedServer, Watch
from controlplane.domain.device import noun_of
from controlplane.domain.observation import Health, Level
from controlplane.domain.workload import ShadowPolicy

BEFORE_S = 1.0
"""A death is noticed up to this long after its requests have failed, ..."""
AFTER_S = 2.0
"""... and their lines come up to this long after that: an impaired server refuses one after the other."""

HANG_SLOS = 2.0
"""A queue that keeps its promise answers within twice its SLO: a batch runs for less than the SLO."""

LONGER = 1.5
"""A time without an answer is longer than any before if it is longer by this factor."""

_CAUSES = {
    Health.GONE: Cause.CRASH,
    Health.FAILING: Cause.FAILING,
    Health.HUNG: Cause.HANG,
    Health.PAUSED: Cause.HANG,
}


def death(tick: Tick, watch: Watch) -> Cause | None:
    """Return why the active server counts as dead; None if it does not."""
    seen, limits, now_s = tick.active(watch), tick.state.limits, tick.now_s
    if seen.health in _CAUSES:
        return _CAUSES[seen.health]
    # A pause must not cause two redirects, and on a contended host a batch may take as long.
    settling = 2.0 if now_s < watch.settled_s or contention(tick.seen.host) else 1.0
    silent_s = now_s - watch.answered_s
    if seen.in_flight >= limits.due and silent_s > settling * patience_s(watch, limits):
        return Cause.HANG
    # A model that hangs goes on refusing what its full queue does not take.
    allowed_s = overdue_s(watch, limits, seen.sequences)
    if (seen.in_flight or seen.streaming) and now_s - watch.worked_s > allowed_s:
        return Cause.HANG
    return None


def patience_s(watch: Watch, limits: Limits) -> float:
    """Return how long a server may have no answer for several open requests: one may be a long one.

    What took longer than a single request may take was a stream, a slow client or a pause.
    """
    promises = watch.partition.promises
    slo_s = max(p.widest_slo_ms or p.slo_ms for p in promises) / 1000.0
    given_s = max((p.longest_ms for p in promises if p.longest_ms is not None), default=0.0) / 1000.0
    known_s = min(watch.longest_s, max(limits.overdue_s, given_s))
    return max(limits.hang_s, HANG_SLOS * slo_s, LONGER * known_s, given_s)


def overdue_s(watch: Watch, limits: Limits, sequences: int = 0) -> float:
    """Return the time without an answer after which even a single open request will have none.

    While `sequences` live, a request may wait for the place of one that pauses, as long as a drain would.
    """
    given = all(p.longest_ms is not None for p in watch.partition.promises)
    least_s = limits.drain_s if sequences else 0.0 if given else limits.overdue_s
    return max(least_s, patience_s(watch, limits))


def drain_s(watch: Watch, limits: Limits) -> float:
    """Return the time without an answer for which a server is waited for that works and is left."""
    return max(limits.drain_s, overdue_s(watch, limits))


def of_pool(watch: Watch, others: Iterable[Watch], limits: Limits) -> Watch:
    """Return the watch with what is known of the other members of its pool, which get the same requests."""
    every = (watch, *others)
    deaths = sorted((death for one in every for death in one.deaths), key=lambda death: death.at_s)
    return replace(
        watch,
        deaths=tuple(death for death in deaths if death.at_s > deaths[-1].at_s - limits.deaths_s),
        held=tuple(held for one in every for held in one.held),
        offences={who: offence for one in every for who, offence in one.offences.items()},
        down=all(one.down for one in every),
    )


def accusation(watch: Watch, limits: Limits) -> Refuse | None:
    """Return what follows from the recent deaths; None where they share no one endpoint or client.

    Two deaths at once may be an accident: then requests are refused for 0 s. Those of a partition's only
    endpoint are open whatever ends its servers. While another one serves, they only get no second server.
    """
    open_at = [
        frozenset(
            one.who
            for one in watch.held
            if death.at_s - BEFORE_S <= one.at_s <= death.at_s + AFTER_S and (one.lost or not death.whole)
        )
        for death in watch.deaths
    ]
    if not open_at:
        return None
    alone = len(watch.partition.endpoints) == 1 and not watch.down
    for who in sorted(frozenset.union(*open_at) & watch.offences.keys()):
        times = watch.offences[who].times
        if times and (who.client or not alone):
            refused_s = min(limits.refused_max_s, limits.refused_s * 2.0**times)
            return Refuse(watch.partition.id, who, refused_s)
    several = len(open_at) >= limits.deaths
    at_once = len(open_at) == 2 and watch.deaths[1].at_s - watch.deaths[0].at_s <= limits.settle_s
    found = _shared(open_at[-limits.deaths :]) if several or at_once else None
    if found is None:
        return None
    if several and (found.client or not alone):
        return Refuse(watch.partition.id, found, limits.refused_s)
    return None if found in watch.offences else Refuse(watch.partition.id, found, 0.0)


def _shared(open_at: list[frozenset[Accused]]) -> Accused | None:
    """Return the one client's endpoint, or else the one endpoint, with a request open at every death."""
    same = frozenset.intersection(*open_at)
    if len(same) == 1:
        return next(iter(same))
    endpoints = frozenset.intersection(*(frozenset(who.endpoint for who in one) for one in open_at))
    return Accused(next(iter(endpoints))) if len(endpoints) == 1 else None


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
    """Count a death, and report two shortly after each other: HAProxy sends a request again after a crash."""
    limits, within_s = tick.state.limits, tick.state.limits.settle_s
    if placed.since_s > tick.now_s or placed.gpu in tick.failed_gpus:
        return watch  # it has served no request, or no request ended it
    if watch.ending and placed.server == watch.active.server:
        return watch
    if tick.now_s - watch.died_s <= within_s and placed.gpu not in tick.state.lost_gpus:
        reason = f"two servers died within {within_s:g} s: one of their requests may crash every server"
        tick.report(Level.CRITICAL, watch.partition.id, reason)
    oldest_s = tick.now_s - limits.deaths_s  # what was before counts no more
    offences = {w: o for w, o in watch.offences.items() if tick.now_s - o.until_s < limits.remembered_s}
    return replace(
        watch,
        died_s=tick.now_s,
        deaths=(*(one for one in watch.deaths if one.at_s > oldest_s), Death(tick.now_s, whole)),
        held=tuple(one for one in watch.held if one.at_s > oldest_s - BEFORE_S),
        offences=offences,
    )


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
    together = of_pool(watch, pool, limits)
    found = accusation(together, limits)
    if found is None:
        return watch
    tick.effects.append(found)
    died = "a server died"
    if len(together.deaths) > 1:
        died = f"{len(together.deaths)} servers died within {tick.now_s - together.deaths[0].at_s:.1f} s"
    way_out = f"`ctl limit remove {found.accused.endpoint}` ends that"
    what = (
        f"its requests are refused for {found.seconds:g} s ({way_out})"
        if found.seconds
        else "from now on such a request is not sent to a second server"
    )
    reason = f"{died}, each with a request open for {found.accused}: {what}"
    tick.report(Level.CRITICAL, watch.partition.id, reason)
    for one in pool:
        tick.set(_accused(one, found, tick.now_s))
    return _accused(watch, found, tick.now_s)


def _accused(watch: Watch, found: Refuse, now_s: float) -> Watch:
    before = watch.offences.get(found.accused, Offence())
    times = before.times + (found.seconds > 0.0)
    offences = {**watch.offences, found.accused: Offence(times, now_s + found.seconds)}
    if found.seconds == 0.0:
        return replace(watch, offences=offences)
    # The deaths of one that is refused now count no more, and the next start is at once.
    return replace(watch, offences=offences, deaths=(), held=(), launches=Launches())


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

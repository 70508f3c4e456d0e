"""Which endpoint's or client's requests were open at each death of a partition's servers. Pure.

A request may crash every server that executes it. One such request is open at each of the deaths; others are
open at some of them by chance. So where the same endpoint, of the same client where clients are known, had an
open request at every one of several deaths, it is accused: first it gets no second server after a death, then
its requests are refused for a while, longer each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.control.guard.effects import Accused
from controlplane.control.guard.state import Death, Held, Limits, Offence, Watch
from controlplane.domain.observation import Answer

BEFORE_S = 1.0
"""A death is noticed up to this long after its requests have failed, ..."""
AFTER_S = 2.0
"""... and their lines come up to this long after that: an impaired server refuses one after the other."""

MOST_HELD = 1000
"""Requests that are kept: a model may fail all of them without any death."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """What is held against `accused`: it had a request open at so many `deaths`, the first one `since_s`.

    `refused_s` is how long its requests are refused: 0 after two deaths at once, which may be an accident.
    """

    accused: Accused
    deaths: int
    since_s: float
    refused_s: float


def heard(watch: Watch, answers: Iterable[Answer]) -> Watch:
    """Return the watch with those of `answers` that failed while a server of the partition had them."""
    endpoints = watch.partition.endpoints
    held = [
        Held(a.ended_s, Accused(a.endpoint, a.client), a.lost)
        for a in answers
        if a.held and a.endpoint in endpoints
    ]
    return replace(watch, held=(*watch.held, *held)[-MOST_HELD:]) if held else watch


def died(watch: Watch, now_s: float, limits: Limits, *, whole: bool) -> Watch:
    """Return the watch with one more death, without those that are too long ago to count."""
    oldest_s = now_s - limits.deaths_s
    deaths = (*(one for one in watch.deaths if one.at_s > oldest_s), Death(now_s, whole))
    held = tuple(one for one in watch.held if one.at_s > oldest_s - BEFORE_S)
    return replace(watch, deaths=deaths, held=held, offences=_known(watch.offences, now_s, limits))


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


def accusation(watch: Watch, now_s: float, limits: Limits) -> Accusation | None:
    """Return what follows from the recent deaths; None where they share no one endpoint or client.

    The requests of a partition's only endpoint are open whatever ends its servers. While another one serves,
    they only get no second server.
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
    since_s = watch.deaths[0].at_s
    alone = len(watch.partition.endpoints) == 1 and not watch.down
    for who in sorted(frozenset.union(*open_at) & watch.offences.keys()):
        times = watch.offences[who].times
        if times and (who.client or not alone):
            refused_s = min(limits.refused_max_s, limits.refused_s * 2.0**times)
            return Accusation(who, len(open_at), since_s, refused_s)
    several = len(open_at) >= limits.deaths
    at_once = len(open_at) == 2 and watch.deaths[1].at_s - since_s <= limits.settle_s
    found = _shared(open_at[-limits.deaths :]) if several or at_once else None
    if found is None:
        return None
    if several and (found.client or not alone):
        return Accusation(found, len(open_at), since_s, limits.refused_s)
    return None if found in watch.offences else Accusation(found, len(open_at), since_s, 0.0)


def accused(watch: Watch, found: Accusation, now_s: float) -> Watch:
    """Return the watch after an accusation. The deaths of one that is refused now count no more."""
    before = watch.offences.get(found.accused, Offence())
    times = before.times + (found.refused_s > 0.0)
    offences = {**watch.offences, found.accused: Offence(times, now_s + found.refused_s)}
    if found.refused_s == 0.0:
        return replace(watch, offences=offences)
    return replace(watch, offences=offences, deaths=(), held=())


def _shared(open_at: list[frozenset[Accused]]) -> Accused | None:
    """Return the one client's endpoint, or else the one endpoint, with a request open at every death."""
    same = frozenset.intersection(*open_at)
    if len(same) == 1:
        return next(iter(same))
    endpoints = frozenset.intersection(*(frozenset(who.endpoint for who in one) for one in open_at))
    return Accused(next(iter(endpoints))) if len(endpoints) == 1 else None


def _known(offences: Mapping[Accused, Offence], now_s: float, limits: Limits) -> Mapping[Accused, Offence]:
    return {who: one for who, one in offences.items() if now_s - one.until_s < limits.remembered_s}

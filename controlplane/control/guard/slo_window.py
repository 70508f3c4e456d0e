"""Whether a queue kept its P99 lately, as its clients saw it. Pure.

This is a fact and no evidence: it moves no route. It is there so that no broken SLO is silent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from controlplane.control.guard.late_answers import EXCESS
from controlplane.domain.observation import Answer

SLOT_S = 10.0
BROKEN_S = 120.0
"""A P99 above the SLO over so long is reported, ..."""
SOON_S = 20.0
"""... one over so long where it is beyond chance, ..."""
KEPT_S = 60.0
"""... and one within it over so long ends that."""
LEAST_S = 5.0
LEAST = 100
"""A shorter time, and fewer requests, have no P99."""
CHANCE = 3.0
"""Standard deviations of the number of late answers, which come in clusters."""


class Slot(NamedTuple):
    """The requests of about SLOT_S seconds, and how many took longer than the SLO."""

    began_s: float
    requests: int = 0
    late: int = 0


class SloWindow(NamedTuple):
    """The slots of the BROKEN_S seconds until the last answers, at `until_s`; the latest slot last."""

    slots: tuple[Slot, ...] = ()
    until_s: float = -math.inf


def count(window: SloWindow, answers: Sequence[Answer], slo_ms: float, now_s: float) -> SloWindow:
    """Return the window with these answers, those that failed left out."""
    took_ms = [answer.latency_ms for answer in answers if not answer.failed]
    if not took_ms:
        return window
    kept = [slot for slot in window.slots if slot.began_s > now_s - BROKEN_S]
    if not kept or now_s - kept[-1].began_s >= SLOT_S:
        kept.append(Slot(now_s))
    last = kept[-1]
    late = sum(latency_ms > slo_ms for latency_ms in took_ms)
    kept[-1] = last._replace(requests=last.requests + len(took_ms), late=last.late + late)
    return SloWindow(tuple(kept), now_s)


def over(window: SloWindow, now_s: float, seconds: float) -> Slot:
    """Return the last `seconds` as one slot."""
    own = [slot for slot in window.slots if slot.began_s > now_s - seconds]
    began_s = own[0].began_s if own else now_s
    return Slot(began_s, sum(slot.requests for slot in own), sum(slot.late for slot in own))


def broken(window: SloWindow, cluster: float) -> Slot | None:
    """Return the seconds whose P99 is above the SLO, the shortest that show it; None where it is kept.

    `cluster` is E[size^2] / E[size] of the clusters in which late answers come, in requests.
    """
    if not any(slot.late for slot in window.slots):
        return None
    for seconds in (SOON_S, BROKEN_S):
        lately = over(window, window.until_s, seconds)
        length_s = window.until_s - lately.began_s
        allowed = EXCESS * lately.requests
        if length_s < BROKEN_S - SLOT_S:
            allowed += CHANCE * math.sqrt(cluster * allowed)
        if length_s >= LEAST_S and lately.requests >= LEAST and lately.late > allowed:
            return lately
    return None


def is_kept(window: SloWindow, now_s: float) -> bool:
    """Return whether the P99 is within the SLO, of the last KEPT_S seconds and of the last of them."""
    times = (over(window, now_s, seconds) for seconds in (SOON_S, KEPT_S))
    return all(lately.late <= EXCESS * lately.requests for lately in times)

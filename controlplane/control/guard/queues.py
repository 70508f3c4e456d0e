"""The evidence on one queue and how answers change it, and whether it kept its P99 lately. Pure.

The latter is a fact, as clients saw it, and no evidence: it moves no route, so that no broken SLO is silent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from controlplane.control.guard import batch_times, late_answers
from controlplane.control.guard.batch_times import HOLD, WAITS, BatchTimes, HostPart, Weighing
from controlplane.control.guard.late_answers import EXCESS, LateAnswers
from controlplane.control.guard.promise import Promise
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


MEMORIES = ((0.5, 50.0), (4.0, 400.0))
"""Moving means of the rate: seconds and requests, whichever is longer. The short one detects a jump early,
the long one an excess of a few percent."""

Rates = tuple[float, float]


class QueueState(NamedTuple):
    """A queue's promise and the evidence on it.

    `rates_rps` are a short and a long moving mean of arrivals, `window` is what clients saw lately.
    """

    promise: Promise
    late: LateAnswers
    rates_rps: Rates
    batches: BatchTimes = BatchTimes()
    window: SloWindow = SloWindow()

    @property
    def lateness(self) -> float:
        """The evidence of late answers; 1 is an alarm."""
        return late_answers.strength(self.late, self.promise)

    @property
    def slowness(self) -> float:
        """The evidence that batches take longer than they did; 1 is certain."""
        return batch_times.strength(self.batches, self.promise.rate_rps)


def begin(promise: Promise) -> QueueState:
    """Return the state of a queue of which nothing is known."""
    return QueueState(promise, late_answers.begin(promise), (promise.rate_rps, promise.rate_rps))


def weigh(
    queue: QueueState, answers: Sequence[Answer], now_s: float, host: HostPart
) -> tuple[QueueState, bool]:
    """Return the queue after its answers, and whether too many of them are late."""
    promise, batches, counted = queue.promise, queue.batches, answers
    if promise.instances == 1:
        calm = queue.lateness < HOLD and not host.cut
        weighing = Weighing(
            batch_times.height(promise.rate_rps), promise.batch_s, host, calm, promise.frontend_ms / 1000.0
        )
        batches, counted = batch_times.weigh(batches, answers, now_s, weighing)
    elif host.wait_s:
        waited_ms = 1000.0 * WAITS * host.wait_s
        counted = [a._replace(latency_ms=a.latency_ms - waited_ms) for a in counted]
    late, alarm = late_answers.weigh(late_answers.count(queue.late, promise, answers), promise, counted)
    if batch_times.strength(batches, promise.rate_rps) >= HOLD:
        late = late._replace(sizes=queue.late.sizes)  # clusters behind a slow server are no natural ones
    window = count(queue.window, answers, promise.slo_ms, now_s)
    return queue._replace(late=late, batches=batches, window=window), alarm


def arrive(queue: QueueState, arrived: float, passed_s: float) -> QueueState:
    """Return the queue after so many arrivals in the time that has passed."""
    if passed_s <= 0.0 or math.isinf(passed_s):
        return queue
    kept = [math.exp(-passed_s / memory_s(queue.promise, memory)) for memory in MEMORIES]
    short, long = (
        old * part + (1.0 - part) * arrived / passed_s
        for old, part in zip(queue.rates_rps, kept, strict=True)
    )
    return queue._replace(rates_rps=(short, long))


def memory_s(promise: Promise, memory: tuple[float, float]) -> float:
    """Return the time over which a moving mean of the rate is taken."""
    return max(memory[0], memory[1] / promise.rate_rps)


def restart(queue: QueueState) -> QueueState:
    """Return the queue with no evidence against its server."""
    return restart_late(queue)._replace(batches=batch_times.restart(queue.batches))


def restart_late(queue: QueueState) -> QueueState:
    """Return the queue with the evidence of batch times alone: something else made the answers late."""
    return queue._replace(late=late_answers.restart(queue.late))

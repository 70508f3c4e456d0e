"""The evidence on one queue, and how answers change it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from controlplane.control.guard import batch_times, late_answers, slo_window
from controlplane.control.guard.batch_times import HOLD, WAITS, BatchTimes, HostPart
from controlplane.control.guard.late_answers import LateAnswers
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.slo_window import SloWindow
from controlplane.domain.observation import Answer

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
        calm = queue.lateness < HOLD
        batches, counted = batch_times.weigh(batches, answers, promise.rate_rps, now_s, host, calm=calm)
    if host.wait_s:
        waited_ms = 1000.0 * WAITS * host.wait_s
        counted = [a._replace(latency_ms=a.latency_ms - waited_ms) for a in counted]
    late, alarm = late_answers.weigh(late_answers.count(queue.late, promise, answers), promise, counted)
    if batch_times.strength(batches, promise.rate_rps) >= HOLD:
        late = late._replace(sizes=queue.late.sizes)  # clusters behind a slow server are no natural ones
    window = slo_window.count(queue.window, answers, promise.slo_ms, now_s)
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

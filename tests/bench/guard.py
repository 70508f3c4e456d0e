"""The guard's sequential test on simulated time: how often it cries wolf, and how soon it sees one.

    .venv/bin/python tests/bench/guard.py            a minute: the power table and a short count of alarms
    .venv/bin/python tests/bench/guard.py --full     52 workload-weeks, about a quarter of an hour
    .venv/bin/python tests/bench/guard.py --json

Traffic is Poisson through Triton's greedy batcher: batch = min(waiting, limit), one batch of b takes
(a b + c) ms with 5 % jitter, so the times above the SLO come in the queue's own clusters. The SLO is put
where the queue's own P99, measured beforehand, is 0.9, 0.95 or 1.0 of it. The test is the product's own
function (`sequential.scan`), compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, product

import numba
import numpy as np
import numpy.typing as npt

from controlplane.control.guard import sequential
from controlplane.control.guard.sequential import Promise

Floats = npt.NDArray[np.float64]

WEEK_S = 7 * 86400.0
CHUNK = 1_000_000
RATES_RPS = (5.0, 50.0, 1000.0)
LIMIT = 52
"""In 52 workload-weeks and any part of them: nothing is learned beforehand, so the first days have most."""

scan = numba.njit(sequential.scan)


@dataclass(frozen=True)
class Queue:
    """A partition: `rate_rps` arrive, full batches of `batch` load it to `load`; `fixed` is c's part."""

    rate_rps: float
    load: float
    batch: int
    fixed: float
    slowdown: float = 1.0

    @property
    def per_item_s(self) -> float:
        return self.slowdown * (1.0 - self.fixed) * self.load / self.rate_rps

    @property
    def per_batch_s(self) -> float:
        return self.slowdown * self.fixed * self.load / self.rate_rps * self.batch


@numba.njit
def _seed(seed: int) -> None:
    np.random.seed(seed)


@numba.njit
def _serve(
    clock: Floats, rate: float, item_s: float, batch_s: float, limit: int, ended: Floats, took: Floats
) -> None:
    """Fill `ended` and `took` (s) with the next requests; `clock` is (next arrival, server free)."""
    arrived = np.empty(limit)
    i = 0
    while i < len(ended):
        start = max(clock[0], clock[1])
        b = 0
        while clock[0] <= start and b < limit:
            arrived[b] = clock[0]
            b += 1
            clock[0] += np.random.exponential(1.0 / rate)
        clock[1] = start + (item_s * b + batch_s) * max(0.5, 1.0 + 0.05 * np.random.normal())
        for j in range(b):
            if i < len(ended):
                ended[i] = clock[1]
                took[i] = clock[1] - arrived[j]
                i += 1


class Traffic:
    """Requests of one queue, in chunks, for ever."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.clock = np.zeros(2)

    def chunk(self, requests: int) -> tuple[Floats, Floats]:
        ended, took = np.empty(requests), np.empty(requests)
        q = self.queue
        _serve(self.clock, q.rate_rps, q.per_item_s, q.per_batch_s, q.batch, ended, took)
        return ended, took


class Test:
    """The product's test of one promise, over arrays."""

    def __init__(self, promise: Promise) -> None:
        start = sequential.fresh(promise)
        self.promise = promise
        self.scores = np.array(start.scores)
        self.learned = np.array([start.size, start.size_squared, 0.0, 0.0, -math.inf])

    def alarm(self, ended: Floats, took: Floats, start: int = 0) -> int:
        p = self.promise
        slo_s = p.slo_ms / 1000.0
        return int(
            scan(self.scores, self.learned, ended, took > slo_s, slo_s, p.natural_scale, p.rarity, start)
        )

    def restart(self) -> None:
        self.scores[:] = 0.0
        self.learned[3] = 0.0


def p99_s(queue: Queue, requests: int) -> float:
    traffic = Traffic(queue)
    traffic.chunk(requests // 10)
    return float(np.quantile(traffic.chunk(requests)[1], 0.99))


@dataclass(frozen=True)
class Count:
    """One workload, watched."""

    queue: Queue
    slo_ms: float
    ratio: float
    weeks: float
    above_percent: float
    alarms: int


def count_alarms(queue: Queue, ratio: float, seconds: float, calibration: int) -> Count:
    """Alarms on a queue whose P99 is `ratio` of the SLO."""
    slo_ms = 1000.0 * p99_s(queue, calibration) / ratio
    test, traffic = Test(Promise("w", slo_ms, queue.rate_rps)), Traffic(queue)
    left = total = int(seconds * queue.rate_rps)
    alarms = above = 0
    while left > 0:
        ended, took = traffic.chunk(min(CHUNK, left))
        left -= len(ended)
        above += int((took > slo_ms / 1000.0).sum())
        at = test.alarm(ended, took)
        while at >= 0:
            alarms += 1
            test.restart()
            at = test.alarm(ended, took, at + 1)
    return Count(queue, slo_ms, ratio, seconds / WEEK_S, 100.0 * above / total, alarms)


def workloads(full: bool) -> Iterator[tuple[Queue, float]]:
    """52 of them: every rate, load and shape, with the P99 at 0.9, 0.95 and 1.0 of the SLO in turn."""
    shapes = ((1, 0.0), (8, 0.5), (16, 0.8))
    loads = (0.3, 0.5, 0.65, 0.75, 0.85, 0.92)
    ratios = cycle((1.0, 0.9, 0.95, 1.0))
    every = [
        (Queue(rate, load, batch, fixed), next(ratios))
        for (batch, fixed), load, rate in product(shapes, loads, RATES_RPS)
    ]
    return islice(iter(every), 52 if full else None)


def false_alarms(full: bool) -> list[Count]:
    _seed(1)
    counts = []
    for i, (queue, ratio) in enumerate(workloads(full)):
        seconds = WEEK_S if full else min(WEEK_S, 1e6 / queue.rate_rps)
        counts.append(count_alarms(queue, ratio, seconds, 40_000_000 if full else 2_000_000))
        if full:
            c = counts[-1]
            print(f"{i + 1:3d}/52 {queue} {c.ratio} above {c.above_percent:.3f} % alarms {c.alarms}",
                  file=sys.stderr, flush=True)  # fmt: skip
    return counts


def slowdown_for(queue: Queue, p99: float, requests: int) -> float:
    """How much slower the queue must serve for its P99 to be `p99` seconds."""
    low, high = 1.0, 4.0
    for _ in range(18):
        middle = math.sqrt(low * high)
        slower = Queue(queue.rate_rps, queue.load, queue.batch, queue.fixed, middle)
        low, high = (middle, high) if p99_s(slower, requests) < p99 else (low, middle)
    return high


@dataclass(frozen=True)
class Power:
    """How soon a change is seen: seconds from the change to the alarm over `runs`."""

    rate_rps: float
    slo_ms: float
    change: str
    slowdown: float
    runs: int
    median_s: float
    p90_s: float
    median_above: float
    """Requests above the SLO until the alarm, the median."""


def power(queue: Queue, runs: int, calibration: int) -> list[Power]:
    """A queue that kept its P99 at 0.8 of the SLO is slowed down at once to 1.1, 1.5, 3 times, or to half."""
    _seed(2)
    slo_s = p99_s(queue, calibration) / 0.8
    promise = Promise("w", 1000.0 * slo_s, queue.rate_rps)
    changes = [
        (f"P99 = {x:g} SLO", slowdown_for(queue, x * slo_s, calibration // 4)) for x in (1.1, 1.5, 3.0)
    ]
    changes.append(("half the share", 2.0))
    rows = []
    for name, factor in changes:
        delays, seen = [], []
        for _ in range(runs):
            test, traffic = Test(promise), Traffic(queue)
            if test.alarm(*traffic.chunk(200_000)) >= 0:
                test.restart()
            changed = float(max(traffic.clock))
            traffic.queue = Queue(queue.rate_rps, queue.load, queue.batch, queue.fixed, factor)
            above = 0
            while True:
                ended, took = traffic.chunk(20_000)
                at = test.alarm(ended, took)
                above += int((took[: at if at >= 0 else None] > slo_s).sum())
                if at >= 0:
                    break
            delays.append(float(ended[at]) - changed)
            seen.append(above)
        rows.append(
            Power(queue.rate_rps, 1000.0 * slo_s, name, factor, runs, float(np.median(delays)),
                  float(np.quantile(delays, 0.9)), float(np.median(seen)))
        )  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    calibration = 10_000_000 if options.full else 1_000_000
    # Milliseconds a batch where thousands a second arrive, tens of them where few do: as models are.
    rows = [
        row
        for rate in RATES_RPS
        for row in power(Queue(rate, 0.65, 8, 0.5), 200 if options.full else 20, calibration)
    ]
    counts = false_alarms(options.full)
    weeks, alarms = sum(c.weeks for c in counts), sum(c.alarms for c in counts)
    if options.json:
        print(json.dumps({
            "power": [{"rate_rps": r.rate_rps, "slo_ms": r.slo_ms, "change": r.change, "slowdown": r.slowdown,
                       "runs": r.runs, "median_s": r.median_s, "p90_s": r.p90_s} for r in rows],
            "false_alarms": {"workloads": len(counts), "workload_weeks": weeks, "alarms": alarms},
        }))  # fmt: skip
    else:
        print(
            f"{'rate':>6} {'SLO ms':>8}  {'change':16} {'slower':>7} {'median':>10} {'p90':>10} {'above':>7}"
        )
        for r in rows:
            print(f"{r.rate_rps:6g} {r.slo_ms:8.1f}  {r.change:16} {r.slowdown:7.2f} {r.median_s:9.3f}s "
                  f"{r.p90_s:9.3f}s {r.median_above:7.0f}")  # fmt: skip
        for c in counts:
            if c.alarms:
                print(f"alarms {c.alarms}: {c.queue}, P99 at {c.ratio} of {c.slo_ms:.1f} ms, "
                      f"{c.above_percent:.3f} % above, {c.weeks:.3f} weeks")  # fmt: skip
        print(f"false alarms: ours {alarms} in {weeks:.2f} workload-weeks of {len(counts)} workloads; "
              f"allowed {LIMIT} in all of 52; {time.monotonic() - began:.0f} s")  # fmt: skip
    return 0 if alarms <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

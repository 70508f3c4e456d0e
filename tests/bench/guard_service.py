"""The guard's test of batch times on simulated time: false alarms, and how soon a slowdown is seen.

    .venv/bin/python tests/bench/guard_service.py            a minute or two
    .venv/bin/python tests/bench/guard_service.py --full     52 workload-weeks

Traffic runs through Triton's greedy batcher, as in tests/bench/guard.py; batch times have lognormal noise. An
alarm is the guard's own: batches certainly slower (`service.scan`) and late answers beside it
(`signals.LATE` of `sequential.scan`'s evidence). Late answers alone are counted by tests/bench/guard.py. Both
functions are the product's own, compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass, replace
from itertools import product

import numba
import numpy as np
import numpy.typing as npt

from controlplane.control.guard import sequential, service, signals
from controlplane.control.guard.sequential import EXCESS, REFERENCES, Promise

Floats = npt.NDArray[np.float64]

DAY_S = 86400.0
CHUNK = 200_000
LIMIT = 17
"""In 52 workload-weeks; one a workload-month, which is 12 in 52 weeks, for each disturbance."""

service._learn = numba.njit(service._learn)
scan_service = numba.njit(service.scan)
scan_late = numba.njit(sequential.scan)


@dataclass(frozen=True)
class Traffic:
    """A queue and what disturbs it: `slowdown` of every batch, `noise` of ln(batch time), `dispersion` of the
    arrivals (variance over mean), stalls of the host of 0.2 to 2 s, `stalls` a minute."""

    rate_rps: float
    load: float = 0.65
    batch: int = 8
    fixed: float = 0.5
    noise: float = 0.15
    dispersion: float = 1.0
    stalls: float = 0.0
    slowdown: float = 1.0

    @property
    def item_s(self) -> float:
        return self.slowdown * (1.0 - self.fixed) * self.load / self.rate_rps

    @property
    def batch_s(self) -> float:
        return self.slowdown * self.fixed * self.load / self.rate_rps * self.batch


@numba.njit
def _seed(seed: int) -> None:
    np.random.seed(seed)


@numba.njit
def _serve(
    clock: Floats, rate: float, item_s: float, batch_s: float, limit: int, noise: float, dispersion: float,
    stalls: float, ended: Floats, took: Floats,
) -> None:  # fmt: skip
    """Fill `ended` and `took` (s). `clock`: next arrival, server free, next stall, rest of a clump."""
    arrived = np.empty(limit)
    i = 0
    while i < len(ended):
        start = max(clock[0], clock[1])
        b = 0
        while clock[0] <= start and b < limit:
            arrived[b] = clock[0]
            b += 1
            clock[3] -= 1.0
            if clock[3] <= 0.0:  # clumps of geometric size: variance over mean is 2 * mean size - 1
                mean = (dispersion + 1.0) / 2.0
                clock[3] = float(np.random.geometric(1.0 / mean))
                clock[0] += np.random.exponential(mean / rate)
        work = (item_s * b + batch_s) * math.exp(noise * np.random.normal())
        end = start + work
        if stalls > 0.0 and end > clock[2]:
            end += np.random.uniform(0.2, 2.0)
            clock[2] = end + np.random.exponential(60.0 / stalls)
        clock[1] = end
        for j in range(b):
            if i < len(ended):
                ended[i] = end
                took[i] = end - arrived[j]
                i += 1


class Guarded:
    """The guard's two tests of one queue, over arrays."""

    def __init__(self, traffic: Traffic, slo_s: float) -> None:
        self.promise = Promise("w", 1000.0 * slo_s, traffic.rate_rps)
        self.clock = np.zeros(4)
        self.reset()

    def reset(self) -> None:
        empty, late = service.Service(), sequential.fresh(self.promise)
        self.scores, self.batch = np.array(empty.scores), np.array(empty.batch)
        self.counts, self.thresholds = np.array(empty.counts), np.array(empty.thresholds)
        self.late = np.array(late.scores)
        self.learned = np.array([late.size, late.size_squared, 0.0, 0.0, -math.inf])

    def chunk(self, t: Traffic, requests: int) -> tuple[Floats, Floats]:
        ended, took = np.empty(requests), np.empty(requests)
        _serve(self.clock, t.rate_rps, t.item_s, t.batch_s, t.batch, t.noise, t.dispersion,
               t.stalls, ended, took)  # fmt: skip
        return ended, took

    def alarm(self, ended: Floats, took: Floats, look: int) -> int:
        """The first request of the look (of so many requests) that raised an alarm; -1 for none."""
        return int(
            _hear(self.scores, self.batch, self.counts, self.thresholds, self.late, self.learned, ended, took,
                  self.promise.slo_ms / 1000.0, self.promise.natural_scale, self.promise.rarity,
                  service.height(self.promise.rate_rps), look)
        )  # fmt: skip


@numba.njit
def _hear(
    scores: Floats, batch: Floats, counts: Floats, thresholds: Floats, late: Floats, learned: Floats,
    ended: Floats, took: Floats, slo_s: float, natural: float, rarity: float, height: float, look: int,
) -> int:  # fmt: skip
    """`signals.listen`'s rule over arrays."""
    for at in range(0, len(ended), look):
        to = min(at + look, len(ended))
        before = learned[:3].copy()
        # An alarm of late answers alone is counted elsewhere: the charts go on at their alarm.
        scan_late(late, learned, ended[at:to], took[at:to] > slo_s, slo_s, natural, rarity, 0)
        scan_service(scores, batch, counts, thresholds, ended[at:to], took[at:to], height)
        highest = scores.max()
        if highest >= service.HOLD * height:
            learned[:3] = before
        if highest >= height:
            scale = min(max(learned[1] / learned[0], natural), sequential.LARGEST_SCALE * natural)
            for j in range(len(REFERENCES)):
                if late[j] * (1.0 - EXCESS / REFERENCES[j]) >= signals.LATE * rarity * scale:
                    return to - 1
    return -1


def slo_of(traffic: Traffic, requests: int, ratio: float) -> float:
    """The SLO of which the queue's P99 is `ratio`."""
    found = Guarded(traffic, 1.0).chunk(traffic, requests)[1]
    return float(np.quantile(found, 0.99)) / ratio


def alarms(traffic: Traffic, seconds: float, ratio: float) -> int:
    """False alarms within so many seconds; stalls are no part of what the SLO was planned with."""
    slo_s = slo_of(replace(traffic, stalls=0.0), 1_000_000, ratio)
    guarded, found = Guarded(traffic, slo_s), 0
    left = int(seconds * traffic.rate_rps)
    look = max(1, round(0.2 * traffic.rate_rps))
    while left > 0:
        ended, took = guarded.chunk(traffic, min(CHUNK, left))
        left -= len(ended)
        while (at := guarded.alarm(ended, took, look)) >= 0:
            found += 1
            guarded.scores[:] = 0.0
            guarded.late[:] = 0.0
            ended, took = ended[at + 1 :], took[at + 1 :]
    return found


DISTURBANCES = {
    "none": Traffic(1.0),
    "stalls of 0.2-2 s a minute": Traffic(1.0, stalls=1.0),
    "bursts, dispersion 4": Traffic(1.0, dispersion=4.0),
    "batch times with twice the noise": Traffic(1.0, noise=0.3),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began, rows, sees = time.monotonic(), [], []
    _seed(1)
    for name, kind in DISTURBANCES.items():
        count = weeks = 0.0
        for rate, load, batch in product((5.0, 50.0, 400.0), (0.5, 0.75), (1, 8)):
            traffic = replace(kind, rate_rps=rate, load=load, batch=batch, fixed=0.0 if batch == 1 else 0.5)
            seconds = 52 / 12 * 7 * DAY_S if options.full else min(DAY_S, 1e6 / rate)
            count += alarms(traffic, seconds, 0.95)
            weeks += seconds / (7 * DAY_S)
        rows.append({"disturbance": name, "alarms": int(count), "workload_weeks": weeks})
    for rate, slowdown in product((20.0, 100.0, 400.0), (1.1, 1.25, 1.5, 2.0, 4.0)):
        traffic = Traffic(rate)
        slo_s = slo_of(traffic, 500_000, 0.8)
        delays = []
        for _ in range(200 if options.full else 20):
            guarded = Guarded(traffic, slo_s)
            guarded.alarm(*guarded.chunk(traffic, int(200 * rate)), 1)
            guarded.scores[:] = 0.0
            guarded.late[:] = 0.0
            changed = float(guarded.clock[1])
            ended, took = guarded.chunk(replace(traffic, slowdown=slowdown), int(30 * rate))
            at = guarded.alarm(ended, took, 1)
            delays.append(float(ended[at]) - changed if at >= 0 else math.inf)
        sees.append(
            {"rate_rps": rate, "slowdown": slowdown, "median_s": float(np.median(delays)),
             "p90_s": float(np.quantile(delays, 0.9, method="inverted_cdf"))}
        )  # fmt: skip
    if options.json:
        print(json.dumps({"false_alarms": rows, "power": sees}))
    else:
        for row in rows:
            print(f"{row['disturbance']:34} {row['alarms']:3d} alarms in {row['workload_weeks']:.2f} weeks")
        for row in sees:
            print(f"{row['rate_rps']:5g} req/s {row['slowdown']:5g} x  median {row['median_s']:7.2f} s"
                  f"  p90 {row['p90_s']:7.2f} s")  # fmt: skip
        print(f"{time.monotonic() - began:.0f} s")
    return 0 if all(row["alarms"] <= LIMIT for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The queue model against brute force.

    python -m benchmarks.times.queueing [--every]

By default a part of the grid; --every runs all of it (some minutes). 2x10^7 requests a point, in 20 parts:
their spread gives the simulation's own 95 % interval, which is added to the tolerance.
"""

import argparse
import itertools
import math
import sys

import numpy as np
from numba import njit

from benchmarks.harness import Figures
from controlplane.latency.queueing.batch_queue import solve

PARTS, PART, TOLERANCE = 20, 1_000_000, 3.0
SIZES = np.arange(1.0, 33.0)
SHAPES = {
    "affine 2+k/2": 2 + 0.5 * SIZES,
    "concave 3√k": 3 * np.sqrt(SIZES),
    "convex 1+k^1.5/10": 1 + SIZES**1.5 / 10,
    "flat 5": np.full(32, 5.0),
    "flat-ish 8+k/10": 8 + 0.1 * SIZES,
}


@njit
def poisson(rate, count, seed):
    """When `count` requests arrive."""
    np.random.seed(seed)
    arrived = np.empty(count)
    now = 0.0
    for i in range(count):
        now -= math.log(1.0 - np.random.random()) / rate
        arrived[i] = now
    return arrived


@njit
def brute(rate, service, batch, servers, count, seed):
    """Sojourns of `count` requests, Poisson arrivals; nothing shared with the code under test.

    Each goes where fewest are in flight, to whoever has had so few for longest: HAProxy's leastconn.
    """
    arrived = poisson(rate, count, seed)
    after = np.zeros(count, np.int64)  # who waits behind a request at its server
    first, last = np.zeros(servers, np.int64), np.zeros(servers, np.int64)
    flying, running = np.zeros(servers, np.int64), np.zeros(servers, np.int64)
    end, changed = np.full(servers, np.inf), np.zeros(servers)
    i = 0
    while True:
        s = int(np.argmin(end))
        now = arrived[i] if i < count else np.inf
        if end[s] <= now:
            if end[s] == np.inf:
                return arrived
            one = first[s]
            for _ in range(running[s]):
                arrived[one], one = end[s] - arrived[one], after[one]
            first[s] = one
            flying[s] -= running[s]
            running[s] = min(flying[s], batch)
            changed[s] = end[s]
            end[s] = end[s] + service[running[s] - 1] if running[s] else np.inf
            continue
        s = 0
        for other in range(1, servers):
            if flying[other] < flying[s] or (flying[other] == flying[s] and changed[other] < changed[s]):
                s = other
        if flying[s] == 0:
            first[s], running[s], end[s] = i, 1, now + service[0]
        else:
            after[last[s]] = i
        last[s] = i
        flying[s] += 1
        changed[s] = now
        i += 1


def reference(rate, service, batch, servers):
    """P99 of all requests and half the width of its 95 % interval, in percent."""
    parts = [brute(rate, service, batch, servers, PART, seed)[PART // 50 :] for seed in range(PARTS)]
    each = np.array([np.quantile(part, 0.99) for part in parts])
    whole = np.quantile(np.concatenate(parts), 0.99)
    return whole, 196 * each.std(ddof=1) / math.sqrt(PARTS) / whole


def accuracy(figures: Figures, every: bool) -> None:
    grid = list(
        itertools.product((1, 2, 4, 8), SHAPES.items(), (1, 2, 4, 8, 16, 32), (0.2, 0.5, 0.7, 0.8, 0.9))
    )
    for servers, (name, service), batch, load in grid if every else grid[:: 9 if len(grid) > 90 else 1]:
        rate = load * servers * batch / service[batch - 1]
        seen, interval = reference(rate, service, batch, servers)
        ours = solve(1000 * rate, service, batch, servers).p99_ms[0]
        what = f"{servers} servers, {name}, batch {batch}, load {load}: P99 off"
        figures.add(what, abs(100 * (ours / seen - 1)), "%", at_most=TOLERANCE + interval)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", action="store_true")
    told = parser.parse_args()
    figures = Figures()
    accuracy(figures, told.every)
    sys.exit(figures.end())

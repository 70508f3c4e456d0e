"""The best contents of a GPU at given prices, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from controlplane.latency.protocol import FloatArray, IntArray

ROUNDING = 1e-6


@njit(cache=True)
def best_runs(
    carried: FloatArray,
    pools: IntArray,
    edges: FloatArray,
    price: FloatArray,
    whole: bool,
    worth: FloatArray,
    run: IntArray,
) -> None:
    """What one partition of a family earns at most, by neighbours and share; fills the last two.

    `carried` (classes, pool sizes, neighbours, shares); `pools` (pool sizes, 2), the fewest and most servers
    of each; `edges` (classes + 1,), where classes begin by rate; `price` (classes,) of a request per second,
    never rising; `worth` (neighbours, shares); `run` (neighbours, shares, 2), the class and pool size that
    earn it.
    """
    paid = np.zeros(edges.size)
    for i in range(price.size):
        paid[i + 1] = paid[i] + price[i] * (edges[i + 1] - edges[i])
    for i in range(carried.shape[0]):
        for c in range(carried.shape[1]):
            for k in range(carried.shape[2]):
                for s in range(carried.shape[3]):
                    held = carried[i, c, k, s]
                    if held <= 0.0:
                        continue
                    if whole:
                        servers = max(pools[c, 0], np.ceil(edges[1] / held - ROUNDING))
                        earned = paid[1] / servers if servers <= pools[c, 1] else 0.0
                    else:
                        until = min(edges[i] + held * pools[c, 0], edges[-1])
                        last = i
                        while last + 1 < price.size and edges[last + 1] < until:
                            last += 1
                        earned = paid[last] + price[last] * (until - edges[last]) - paid[i]
                        earned /= pools[c, 0]
                    if earned > worth[k, s]:
                        worth[k, s] = earned
                        run[k, s, 0], run[k, s, 1] = i, c


@njit(cache=True)
def fill(worth: FloatArray, weight: IntArray, steps: int, count: int, more: bool) -> tuple[float, IntArray]:
    """The most that `count` shares earn together (with `more`, or any larger number), and which they are.

    `worth` and `weight` (shares,); all weights together are at most `steps`.
    """
    none = -1.0
    best = np.full((count + 1, steps + 1), none)
    last = np.zeros((count + 1, steps + 1), dtype=np.int64)
    best[0] = 0.0
    for n in range(1, count + 1):
        # The last row takes from itself too where more are allowed.
        for room in range(1, steps + 1):
            for s in range(worth.size):
                if weight[s] > room:
                    break
                left = room - weight[s]
                before = best[n - 1, left]
                if more and n == count:
                    before = max(before, best[n, left])
                if before > none and worth[s] > 0.0 and before + worth[s] > best[n, room]:
                    best[n, room], last[n, room] = before + worth[s], s
    if best[count, steps] < 0.0:
        return 0.0, np.empty(0, dtype=np.int64)
    taken = []
    n, room = count, steps
    while n > 0:
        s = last[n, room]
        taken.append(s)
        left = room - weight[s]
        if not (more and n == count and best[n, left] > best[n - 1, left]):
            n -= 1
        room = left
    return best[count, steps], np.array(taken)

"""The contents of up to three partitions that earn most at given prices, compiled by numba.

What they do to each other is counted. An option is a model, a group of batches and a share, each by number;
`interference.PairEffects` says what one does to another.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray

ROUNDING = 1e-6
NONE = -1

Sale = tuple[FloatArray, FloatArray, FloatArray, FloatArray, IntArray, BoolArray, IntArray, IntArray]
"""What servers carry and workloads pay: `MutualRates.rate`; edges of all classes by rate (classes + 1,); what
those before each edge pay (classes + 1,); the price of a class's requests, the end of its family and whether
it is one workload (classes,); the fewest and most servers of each size of pool (sizes, 2); and each model's
classes, from and to (models, 2)."""
Tables = tuple[Sale, FloatArray, IntArray, FloatArray]
"""What options earn: the sale, what is known so far and by which run (see `worth_of`), and the levels."""


@njit(cache=True)
def worth_of(sale: Sale, known: FloatArray, run: IntArray, m: int, g: int, level: int, s: int) -> float:
    """What a server of an option earns at most at a level of slowdown.

    Kept in `known` (models, groups, levels, shares), -1 before; `run` (..., 2) names the class and size of
    pool that it is.
    """
    if known[m, g, level, s] >= 0.0:
        return float(known[m, g, level, s])
    carried, edges, paid, price, end, whole, pools, span = sale
    best = 0.0
    for i in range(span[m, 0], span[m, 1]):
        for z in range(pools.shape[0]):
            held = carried[g, level, s, i, z]
            if held <= 0.0:
                continue
            servers = float(pools[z, 0])
            if whole[i]:
                servers = max(servers, np.ceil((edges[i + 1] - edges[i]) / held - ROUNDING))
                earned = (paid[i + 1] - paid[i]) / servers if servers <= pools[z, 1] else 0.0
            else:
                until = min(edges[i] + held * servers, edges[end[i]])
                last = i
                while last + 1 < end[i] and edges[last + 1] < until:
                    last += 1
                earned = (paid[last] + price[last] * (until - edges[last]) - paid[i]) / servers
            if earned > best:
                best = earned
                run[m, g, level, s, 0], run[m, g, level, s, 1] = i, z
    known[m, g, level, s] = best
    return best


@njit(cache=True)
def _worth(
    tables: Tables,
    option: tuple[int, int, int],
    felt: float,
) -> float:
    """What an option (model, group, share) earns at most where it is slowed by `felt`."""
    sale, known, run, levels = tables
    level = int(np.searchsorted(levels, 1.0 + felt, side="right")) - 1
    return worth_of(sale, known, run, option[0], option[1], level, option[2])


@njit(cache=True)
def _beside(tables: Tables, least: FloatArray, times: float) -> tuple[FloatArray, FloatArray]:
    """What options earn beside so many of the least harmful: (models, groups, shares); the best groups."""
    models, groups, shares = least.shape
    every, best = np.zeros(least.shape), np.zeros((models, shares))
    for m in range(models):
        for g in range(groups):
            for s in range(shares):
                if np.isfinite(least[m, g, s]):
                    every[m, g, s] = _worth(tables, (m, g, s), times * least[m, g, s])
                    best[m, s] = max(best[m, s], every[m, g, s])
    return every, best


@njit(cache=True)
def _write(into: IntArray, levels: FloatArray, at: int, option: tuple[int, int, int], felt: float) -> None:
    into[at, 0], into[at, 1], into[at, 3] = option
    into[at, 2] = np.searchsorted(levels, 1.0 + felt, side="right") - 1


@njit(cache=True)
def best_contents(
    tables: Tables,
    effect: FloatArray,
    least: FloatArray,
    weight: IntArray,
    steps: int,
    above: float,
) -> tuple[FloatArray, IntArray]:
    """Contents of one, two and three partitions that earn more than `above`.

    The best for each two models of the largest partitions: what they earn (3, models, models), 0 where none
    does, and their partitions (3, models, models, 3, 4) as model, group, level and share, the model `NONE`
    where there is none.
    """
    models, groups, shares = least.shape
    earned = np.zeros((3, models, models))
    found = np.full((3, models, models, 3, 4), NONE)
    for m in range(models):
        for g in range(groups):
            for s in range(shares):
                value = worth_of(tables[0], tables[1], tables[2], m, g, 0, s)
                if value > max(earned[0, m, m], above):
                    earned[0, m, m] = value
                    _write(found[0, m, m], tables[3], 0, (m, g, s), 0.0)
    one, best_one = _beside(tables, least, 1.0)
    two, best_two = _beside(tables, least, 2.0)
    # What a third earns at most, by its largest share.
    third = np.zeros(shares + 1)
    for s in range(shares):
        third[s + 1] = max(third[s], best_two[:, s].max())
    for m in range(models):
        for g in range(groups):
            for s in range(shares):
                # The second is no larger, the third no larger than the second.
                for r in range(s + 1):
                    room = steps - weight[s] - weight[r]
                    if room < 0:
                        break
                    last = min(np.searchsorted(weight, room, side="right"), r + 1)
                    for n in range(models):
                        pair = one[m, g, s] + best_one[n, r] > max(earned[1, m, n], above)
                        more = two[m, g, s] + best_two[n, r] + third[last] > max(earned[2, m, n], above)
                        if pair or more:
                            _two(
                                tables,
                                effect,
                                least,
                                above,
                                earned[:, m, n],
                                found[:, m, n],
                                one,
                                two,
                                best_two,
                                third,
                                last,
                                (m, g, s),
                                n,
                                r,
                            )
    return earned, found


@njit(cache=True)
def _two(
    tables: Tables,
    effect: FloatArray,
    least: FloatArray,
    above: float,
    earned: FloatArray,
    found: IntArray,
    one: FloatArray,
    two: FloatArray,
    best_two: FloatArray,
    third: FloatArray,
    last: int,
    first: tuple[int, int, int],
    n: int,
    r: int,
) -> None:
    """Try every group of model n in share r beside the first, and every third whose share is below `last`."""
    m, g, s = first
    groups = least.shape[1]
    for h in range(groups):
        mine, its = effect[m, g, s, n, h, r], effect[n, h, r, m, g, s]
        second = (n, h, r)
        if one[m, g, s] + one[n, h, r] > max(earned[1], above):
            value = _worth(tables, first, mine)
            value += _worth(tables, second, its)
            if value > max(earned[1], above):
                earned[1] = value
                _write(found[1], tables[3], 0, first, mine)
                _write(found[1], tables[3], 1, second, its)
        if last == 0 or two[m, g, s] + two[n, h, r] + third[last] <= max(earned[2], above):
            continue
        both = _worth(tables, first, mine + least[m, g, s])
        both += _worth(tables, second, its + least[n, h, r])
        if both + third[last] > max(earned[2], above):
            _three(
                tables,
                effect,
                above,
                earned,
                found,
                two,
                best_two,
                last,
                first,
                second,
                both,
            )


@njit(cache=True)
def _three(
    tables: Tables,
    effect: FloatArray,
    above: float,
    earned: FloatArray,
    found: IntArray,
    two: FloatArray,
    best_two: FloatArray,
    last: int,
    first: tuple[int, int, int],
    second: tuple[int, int, int],
    both: float,
) -> None:
    """Try every third beside these two, which earn no more than `both`."""
    m, g, s = first
    n, h, r = second
    models, groups, _ = two.shape
    mine, its = effect[m, g, s, n, h, r], effect[n, h, r, m, g, s]
    for t in range(last):
        for p in range(models):
            if both + best_two[p, t] <= max(earned[2], above):
                continue
            for q in range(groups):
                if both + two[p, q, t] <= max(earned[2], above):
                    continue
                option = (p, q, t)
                felt = effect[p, q, t, m, g, s] + effect[p, q, t, n, h, r]
                value = _worth(tables, option, felt)
                if both + value <= max(earned[2], above):
                    continue
                of_first, of_second = mine + effect[m, g, s, p, q, t], its + effect[n, h, r, p, q, t]
                value += _worth(tables, first, of_first)
                value += _worth(tables, second, of_second)
                if value > max(earned[2], above):
                    earned[2] = value
                    _write(found[2], tables[3], 0, first, of_first)
                    _write(found[2], tables[3], 1, second, of_second)
                    _write(found[2], tables[3], 2, option, felt)

"""Few workloads: every cut of each family into runs, with pools of every size, weighed by plain sizes.

Parts of a GPU count here as what they take, since it is seen at once what stands beside what. The cheapest
ways of each family are packed in all combinations, as sizes; the likeliest of these combinations once more
with their true neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import FloatArray
from controlplane.planners.grouping import MOST_TOGETHER, Group, families
from controlplane.planners.growth import grow
from controlplane.planners.kinds import Kind
from controlplane.planners.menu import Alone, Item, Menu
from controlplane.planners.protocol import Device

COMBINATIONS = 2048
"""Weighed, at most, and as many more for each further effort."""
MOST_FAMILIES = 11
"""Beyond so many there would be one way of each."""
MOST_WAYS = 12
"""Of a family, the cheapest."""
POOLS_OF_RUN = 3
"""Sizes of a pool that are tried, the cheapest."""
BESIDE, MORE_BESIDE = (1.07, 1.12), (1.05, 1.07, 1.1, 1.13)
"""How neighbours slow what is weighed, one after the other; the latter for more than one effort."""
LIKELY = 192
"""Combinations of each that are looked at with their true neighbours, at one effort, ..."""
MOST_TOLD = 5
"""... and of those that are told, besides the one with fewest together."""
MOST_EFFORT = 16


@dataclass(frozen=True, slots=True)
class Weighed:
    """Pools that serve all workloads, and where their partitions stand.

    `gpus` are, by type, numbers of `pools`, one for each partition. `cost` is what they likely cost, `least`
    what they would if no GPU was too full after all, `share` what their shares alone would. `together`: how
    many workloads of all partitions are not the first of theirs.
    """

    pools: tuple[Kind, ...]
    gpus: Mapping[str, tuple[tuple[int, ...], ...]]
    cost: float
    least: float
    share: float
    together: int


_Way = tuple[float, tuple[Kind, ...]]
"""What pools for a whole family cost by their shares, and the pools."""


def weighed(
    workloads: Sequence[Workload], price: Mapping[str, float], devices: Mapping[str, Device],
    alone: Mapping[str, Alone], rule: Rule, quantile: float | None, effort: int = 1,
) -> list[Weighed]:  # fmt: skip
    """The cheapest first; nothing where a workload fits nowhere or families are many.

    `effort`: how many times as much to try.
    """
    effort = min(effort, MOST_EFFORT)
    kin = families(workloads, rule)
    if len(kin) > MOST_FAMILIES:
        return []
    items = [Item(g, n) for family in kin for g in _runs(family) for n in range(1, MOST_SERVERS + 1)]
    menus = {n: Menu.of(items, d, rule, quantile, alone[n]) for n, d in devices.items()}
    row = {id(item): n for n, item in enumerate(items)}
    slower = BESIDE if effort == 1 else MORE_BESIDE
    found = [w for by in slower for w in _at(by, kin, items, row, price, menus, quantile, effort)]
    return sorted(found, key=lambda w: (w.cost, w.share))


def _runs(family: Group) -> list[Group]:
    size = len(family)
    return [family[i:j] for i in range(size) for j in range(i + 1, min(size, i + MOST_TOGETHER) + 1)]


def _at(
    slowed: float, kin: Sequence[Group], items: Sequence[Item], row: Mapping[int, int],
    price: Mapping[str, float], menus: Mapping[str, Menu], quantile: float | None, effort: int,
) -> list[Weighed]:  # fmt: skip
    """The likeliest where neighbours slow everybody so much."""
    from controlplane.planners.weighing_kernel import cost_of, placed

    pools = _pools(items, {name: menu.beside(slowed) for name, menu in menus.items()}, price)
    most = min(MOST_WAYS, max(1, int((effort * COMBINATIONS) ** (1.0 / len(kin)) + 1e-9)))
    ways = [_ways(family, pools, most) for family in kin]
    if not all(ways):
        return []
    flat = [way for its in ways for way in its]
    number = {name: d for d, name in enumerate(menus)}
    shape = len(flat), max(sum(k.item.servers for k in way) for _, way in flat)
    size, home, item = np.zeros(shape), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for n, (_, way) in enumerate(flat):
        its = [(k.expected, number[k.device], row[id(k.item)]) for k in way for _ in range(k.item.servers)]
        size[n, : len(its)], home[n, : len(its)], item[n, : len(its)] = zip(*its, strict=True)
    first = np.cumsum([0, *(len(its) for its in ways)])
    combination = np.indices([len(its) for its in ways]).reshape(len(ways), -1).T + first[:-1]
    share = np.array([cost for cost, _ in flat])[combination].sum(axis=1)
    each = np.array([price[name] for name in menus])
    least = cost_of(combination, size, home, each)
    likely = np.lexsort((share, least))[: effort * LIKELY]
    gpus, owner, kind = placed(combination[likely], size, home, item)
    cost = least[likely]
    for d, menu in enumerate(menus.values()):
        # One that is too full with its true neighbours likely takes a GPU more.
        here = np.flatnonzero(kind == d)
        full = here[~grow(menu, gpus[here], quantile).fits]
        cost = cost + each[d] * np.bincount(owner[full], minlength=likely.size)
    company = np.array([sum(k.item.servers * (len(k.item.workloads) - 1) for k in way) for _, way in flat])
    together = company[combination[likely]].sum(axis=1)
    told = [
        *np.lexsort((share[likely], cost))[: effort * MOST_TOLD],
        np.lexsort((share[likely], together, cost))[0],
    ]
    found = []
    for n in told:
        chosen = tuple(k for w in combination[likely[n]].tolist() for k in flat[w][1])
        pool = {row[id(k.item)]: p for p, k in enumerate(chosen)}
        stand = {
            name: tuple(
                tuple(pool[i] for i in gpus[g].tolist() if i >= 0)
                for g in np.flatnonzero((owner == n) & (kind == d)).tolist()
            )
            for d, name in enumerate(menus)
        }
        found.append(
            Weighed(
                chosen,
                stand,
                float(cost[n]),
                float(least[likely[n]]),
                float(share[likely[n]]),
                int(together[n]),
            )
        )
    return found


def _pools(
    items: Sequence[Item], sizes: Mapping[str, FloatArray], price: Mapping[str, float]
) -> dict[Group, list[_Way]]:
    """The cheapest pools of each run."""
    found: dict[Group, list[_Way]] = {}
    for name, size in sizes.items():
        for item, percent in zip(items, size.tolist(), strict=True):
            if np.isfinite(percent):
                cost = price[name] * item.servers * percent / 100.0
                found.setdefault(item.workloads, []).append((cost, (Kind(item, name, percent, percent),)))
    return {
        group: sorted(told, key=lambda way: (way[0], way[1][0].item.servers))[:POOLS_OF_RUN]
        for group, told in found.items()
    }


def _ways(family: Group, pools: Mapping[Group, Sequence[_Way]], most: int) -> list[_Way]:
    """The cheapest ways to serve a family; between equals those with fewer together first."""
    best: list[list[_Way]] = [[(0.0, ())]]
    for end in range(1, len(family) + 1):
        told = [
            (spent + cost, (*before, *pool))
            for begin in range(end - 1, max(-1, end - 1 - MOST_TOGETHER), -1)
            for spent, before in best[begin]
            for cost, pool in pools.get(family[begin:end], ())
        ]
        best.append(sorted(told, key=lambda way: way[0])[:most])
    return best[-1]

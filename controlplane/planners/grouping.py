"""Which workloads share a queue.

Two workloads of one model in one partition need less than two partitions: their batches fill each other, and
what each partition costs by itself is paid once. All of a group are held to its strictest SLO, so groups are
filled in the order of SLOs (`filling`), with what `offers` says that servers carry.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import FloatArray
from controlplane.planners.board import Queues
from controlplane.planners.filling import BEGINNINGS, Filled, filled
from controlplane.planners.menu import Alone
from controlplane.planners.offers import USUAL, Market, Offers, Parts
from controlplane.planners.pairs import Demand, sides_of
from controlplane.planners.protocol import Device

Group = tuple[Workload, ...]
"""Workloads that share a queue, strictest SLO first."""
Pool = tuple[Group, int | None, int | None]
"""A group with its servers and their batch, see `Grouping`."""
Stand = tuple[tuple[int, int], ...]
"""The partitions of a GPU, see `Grouping`."""

MOST_TOGETHER = 16
TRIES = ((MOST_TOGETHER, 4.0), (MOST_TOGETHER, 2.0), (MOST_TOGETHER, 1.5), (8, 4.0))
"""Cuts: the most workloads together, for whoever sends more than was told slows all of a group; and how many
times neighbours' effect on a full batch a partition is taken to feel, for small batches feel more."""
MOST_EFFORT = 16
MOST_CUTS = 8
"""Of one family, each by what the exact queue said of the one before."""
MANY = 100
"""Workloads from which only the first so many are made: they differ by less than 1 % there."""
MANY_TRIES, MANY_PAIRED = 3, 0


def by_slo(workload: Workload) -> tuple[float, float, str]:
    """The order of a group. Names decide only between equals, the order of the spec nothing."""
    return workload.slo_ms, workload.rate_rps, workload.name


def company(workload: Workload, rule: Rule) -> Hashable:
    """Workloads may share a queue where this is equal.

    One server serves them: model, client batch, memory and shadow are the same. Poisson streams together are
    one; constant streams together are neither constant nor Poisson, and no queue here is theirs.
    """
    alone = workload.isolated or (rule is Rule.P99 and workload.arrivals is Arrivals.CONSTANT)
    shadow = workload.shadow
    told = workload.arrivals, workload.client_batch, workload.memory_mb, shadow.policy, shadow.place
    return workload.model, *told, workload.name if alone else None


def families(workloads: Sequence[Workload], rule: Rule) -> list[Group]:
    """All workloads by what may share a queue: each in one, in `by_slo` order."""
    found: dict[Hashable, list[Workload]] = {}
    for w in sorted(workloads, key=lambda w: (w.model, *by_slo(w))):
        found.setdefault(company(w, rule), []).append(w)
    return [tuple(family) for family in found.values()]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Every workload in one group; `servers[n]` is how many serve group n, None where the search decides.

    `batch[n]`: theirs, None where each share has its own. `gpus` that are settled: of each partition its
    group and the index of its share.
    """

    groups: tuple[Group, ...]
    servers: tuple[int | None, ...]
    batch: tuple[int | None, ...]
    gpus: tuple[Stand, ...] = ()

    @staticmethod
    def of(pools: Sequence[Pool], gpus: Sequence[Stand] = ()) -> Grouping:
        """These, in order."""
        groups, servers, batch = zip(*pools, strict=True)
        return Grouping(groups, servers, batch, tuple(gpus))

    @staticmethod
    def apart(workloads: Sequence[Workload]) -> Grouping:
        """Every workload by itself."""
        return Grouping(tuple((w,) for w in workloads), *((None,) * len(workloads),) * 2)

    def halved(self, which: Container[int]) -> Grouping:
        """These groups in two each, as long as they are several workloads."""
        pools: list[Pool] = []
        place: dict[int, int] = {}
        for n, (group, servers, batch) in enumerate(zip(self.groups, self.servers, self.batch, strict=True)):
            middle = len(group) // 2
            if n in which and middle:
                pools += [(group[:middle], None, None), (group[middle:], None, None)]
            else:
                place[n] = len(pools)
                pools.append((group, servers, batch))
        left = [tuple((place[n], share) for n, share in gpu if n in place) for gpu in self.gpus]
        return Grouping.of(pools, [gpu for gpu in left if gpu])


def groupings(
    workloads: Sequence[Workload], price: Mapping[str, float], devices: Mapping[str, Device],
    alone: Mapping[str, Alone], rule: Rule, quantile: float | None, effort: int = 1,
) -> Iterator[Grouping]:  # fmt: skip
    """The best cut of each of `TRIES`, without repetition; nothing where no two workloads may meet.

    `price` is of a GPU of each type. `effort`: how many times as many beginnings of a cut are followed.
    """
    kin = families(workloads, rule)
    queues, heard = Queues(), rule is Rule.P99
    if all(len(family) == 1 for family in kin):
        return
    parts = {name: Parts.of(device, quantile) for name, device in devices.items()}
    markets: list[list[Market]] = [[] for _ in kin]
    for family, sold in zip(kin, markets, strict=True):
        slo, rate = np.array([w.slo_ms for w in family]), sum(w.rate_rps for w in family)
        for name, device in devices.items() if len(family) > 1 else ():
            market = Market.of(
                device, parts[name], price[name], alone[name], family[0].model, slo, rule, queues
            )
            sold.append(market.heard(rate) if heard else market)
    told = set()
    paired = _paired(kin, markets, quantile, effort) if heard and len(devices) == 1 else None
    if paired is not None:
        told.add(paired)
        yield paired
    tries = len(TRIES)
    if len(workloads) > MANY and effort == 1:
        tries = MANY_TRIES if paired is None else MANY_PAIRED
    for together, hardship in TRIES[:tries]:
        pools: list[Pool] = []
        for n, family in enumerate(kin):
            if markets[n]:
                cut = _cut(family, markets[n], hardship, together, heard, effort)
                markets[n] = cut.markets
                pools += cut.pools
            else:
                pools.append((family, None, None))
        found = Grouping.of(pools)
        if found not in told:
            told.add(found)
            yield found


def _paired(
    kin: Sequence[Group], markets: Sequence[Sequence[Market]], quantile: float | None, effort: int
) -> Grouping | None:
    """A cut for GPUs on which two families stand side by side as `pairs` says; None where no pair pays."""
    sold = {n: its[0] for n, its in enumerate(markets) if its and its[0].model in its[0].device.profiles}
    if not sold:
        return None
    one = next(iter(sold.values()))
    demand = [Demand(m.model, m.slo_ms, sum(w.rate_rps for w in kin[n])) for n, m in sold.items()]
    sides, paid = sides_of(one.device, one.alone, demand, one.rule, quantile)
    if not any(sides):
        return None
    told = {n: (worth, its) for n, worth, its in zip(sold, paid, sides, strict=True)}
    pools: list[Pool] = []
    stand: dict[int, list[list[tuple[int, int]]]] = {}
    # Who is easiest to pair first: the others fill what stands beside him.
    for n in sorted(range(len(kin)), key=lambda n: told[n][0] if n in told else 1.0):
        if n not in told:
            pools.append((kin[n], None, None))
            continue
        its = told[n][1]
        left = {pair: len(rows[0]) for pair, rows in stand.items()}
        cut = _cut(kin[n], [sold[n].beside(its)], TRIES[0][1], MOST_TOGETHER, True, effort, left)
        for number, side in enumerate(its, 1):
            where = [
                (len(pools) + k, side.column)
                for k, at in enumerate(cut.stand)
                if at == number
                for _ in range(cut.pools[k][1] or 0)
            ]
            stand.setdefault(side.pair, []).append(where)
        pools += cut.pools
    gpus = [
        tuple(part for part in parts if part is not None)
        for pair in sorted(stand)
        for parts in itertools.zip_longest(*stand[pair])
    ]
    return Grouping.of(pools, gpus)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A family in groups, and where each stands (see `offers.WHOLE`); the markets as by then known."""

    pools: list[Pool]
    stand: list[int]
    markets: list[Market]


def _cut(
    family: Group, markets: list[Market], hardship: float, together: int, heard: bool, effort: int,
    left: Mapping[int, int] = MappingProxyType({}),
) -> _Cut:  # fmt: skip
    """The family in groups.

    `heard`: the exact queue is asked about all groups whose neighbours are known, and the family is cut again
    by what it says. `left`: see `Market.offers`.
    """
    rates = np.array([w.rate_rps for w in family])
    for _ in range(MOST_CUTS):
        offers = Offers.of_all([m.offers(hardship, left) for m in markets])
        cut = filled(rates, offers, together, BEGINNINGS * min(effort, MOST_EFFORT))
        batch: list[int | None] = [None] * len(cut)
        if not heard:
            break
        before = markets
        markets = [_heard(m, n, cut, rates, offers, batch) for n, m in enumerate(markets)]
        if all(now is then for now, then in zip(markets, before, strict=True)):
            break
    servers = [None if f.offer is None else int(offers.servers[f.offer]) for f in cut]
    stand = [USUAL if f.offer is None else int(offers.stand[f.offer]) for f in cut]
    groups = [tuple(family[i] for i in f.members) for f in cut]
    return _Cut(list(zip(groups, servers, batch, strict=True)), stand, markets)


def _heard(
    market: Market, number: int, cut: Sequence[Filled], rates: FloatArray, offers: Offers,
    batch: list[int | None],
) -> Market:  # fmt: skip
    """The market lowered where the exact queue refuses a group; fills in their `batch`."""
    for stand in range(len(market.sides) + 1):
        there = [
            (k, f, f.offer)
            for k, f in enumerate(cut)
            if f.offer is not None and offers.stand[f.offer] == stand and offers.market[f.offer] == number
        ]
        if not there:
            continue
        strictest = market.slo_ms[[f.members[0] for _, f, _ in there]]
        rate = np.array([rates[list(f.members)].sum() for _, f, _ in there])
        servers = offers.servers[[offer for _, _, offer in there]]
        best, refused = market.asked(strictest, rate, servers, stand)
        for i, (k, _, _) in enumerate(there):
            batch[k] = int(best[i])
            if refused[i]:
                market = market.lowered(float(strictest[i]), int(servers[i]), stand)
    return market

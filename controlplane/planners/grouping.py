"""Which workloads share a queue.

Two workloads of one model in one partition need less than two partitions: their batches fill each other, and
what each partition costs by itself is paid once. All of a group are held to its strictest SLO, so groups are
filled in the order of SLOs (`filling`), with what `offers` says that servers carry.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import FloatArray
from controlplane.planners.board import Queues
from controlplane.planners.filling import BEGINNINGS, Filled, filled
from controlplane.planners.menu import Alone
from controlplane.planners.offers import Market, Offers, Parts
from controlplane.planners.protocol import Device

Group = tuple[Workload, ...]
"""Workloads that share a queue, strictest SLO first."""
Pool = tuple[Group, int | None, int | None]
"""A group with its servers and their batch, see `Grouping`."""

MOST_TOGETHER = 16
TRIES = ((MOST_TOGETHER, 4.0), (MOST_TOGETHER, 2.0), (MOST_TOGETHER, 1.5), (8, 4.0))
"""Cuts: the most workloads together, for whoever sends more than was told slows all of a group; and how many
times neighbours' effect on a full batch a partition is taken to feel, for small batches feel more."""
MOST_EFFORT = 16
MOST_CUTS = 4
"""Of one family, each by what the exact queue said of the one before."""
MANY = 100
"""Workloads from which only the first `MANY_TRIES` are made: they differ by less than 1 % there."""
MANY_TRIES = 3


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

    `batch[n]`: theirs, None where each share has its own.
    """

    groups: tuple[Group, ...]
    servers: tuple[int | None, ...]
    batch: tuple[int | None, ...]

    @staticmethod
    def of(pools: Sequence[Pool]) -> Grouping:
        """These, in order."""
        groups, servers, batch = zip(*pools, strict=True)
        return Grouping(groups, servers, batch)

    @staticmethod
    def apart(workloads: Sequence[Workload]) -> Grouping:
        """Every workload by itself."""
        return Grouping(tuple((w,) for w in workloads), *((None,) * len(workloads),) * 2)

    def halved(self, which: Container[int]) -> Grouping:
        """These groups in two each, as long as they are several workloads."""
        pools: list[Pool] = []
        for n, (group, servers, batch) in enumerate(zip(self.groups, self.servers, self.batch, strict=True)):
            middle = len(group) // 2
            if n in which and middle:
                pools += [(group[:middle], None, None), (group[middle:], None, None)]
            else:
                pools.append((group, servers, batch))
        return Grouping.of(pools)


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
    tries = MANY_TRIES if len(workloads) > MANY and effort == 1 else len(TRIES)
    for together, hardship in TRIES[:tries]:
        pools: list[Pool] = []
        for n, family in enumerate(kin):
            if markets[n]:
                cut, markets[n] = _cut(family, markets[n], hardship, together, heard, effort)
                pools += cut
            else:
                pools.append((family, None, None))
        found = Grouping.of(pools)
        if found not in told:
            told.add(found)
            yield found


def _cut(
    family: Group, markets: list[Market], hardship: float, together: int, heard: bool, effort: int
) -> tuple[list[Pool], list[Market]]:
    """The family in groups; the markets as they are known by then.

    `heard`: the exact queue is asked about all groups that stand on whole GPUs, and the family is cut again
    by what it says.
    """
    rates = np.array([w.rate_rps for w in family])
    for _ in range(MOST_CUTS):
        offers = Offers.of_all([m.offers(hardship) for m in markets])
        cut = filled(rates, offers, together, BEGINNINGS * min(effort, MOST_EFFORT))
        batch: list[int | None] = [None] * len(cut)
        if not heard:
            break
        before = markets
        markets = [_heard(m, n, cut, rates, offers, batch) for n, m in enumerate(markets)]
        if all(now is then for now, then in zip(markets, before, strict=True)):
            break
    servers = [None if f.offer is None else int(offers.servers[f.offer]) for f in cut]
    groups = [tuple(family[i] for i in f.members) for f in cut]
    return list(zip(groups, servers, batch, strict=True)), markets


def _heard(
    market: Market, number: int, cut: Sequence[Filled], rates: FloatArray, offers: Offers,
    batch: list[int | None],
) -> Market:  # fmt: skip
    """The market lowered where the exact queue refuses a group on whole GPUs; fills in their `batch`."""
    on_whole = [
        (k, f, f.offer)
        for k, f in enumerate(cut)
        if f.offer is not None and offers.whole[f.offer] and offers.market[f.offer] == number
    ]
    if not on_whole:
        return market
    strictest = market.slo_ms[[f.members[0] for _, f, _ in on_whole]]
    rate = np.array([rates[list(f.members)].sum() for _, f, _ in on_whole])
    servers = offers.servers[[offer for _, _, offer in on_whole]]
    best, refused = market.asked(strictest, rate, servers)
    for i, (k, _, _) in enumerate(on_whole):
        batch[k] = int(best[i])
        if refused[i]:
            market = market.lowered(float(strictest[i]), int(servers[i]))
    return market

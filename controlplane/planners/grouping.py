"""Which workloads share a queue.

Two workloads of one model in one partition need less than two partitions: their batches fill each other, and
what each partition costs by itself is paid once. All of a group are held to its strictest SLO, so groups are
runs of workloads ordered by SLO, and the cheapest cut into runs is a dynamic program.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.planners.menu import Alone
from controlplane.planners.offers import Market, Offers, Parts
from controlplane.planners.protocol import Device

Group = tuple[Workload, ...]
"""Workloads that share a queue, strictest SLO first."""

TRIES = ((16, 4.0), (8, 4.0), (16, 2.0), (16, 8.0), (8, 8.0), (16, 1.5))
"""Cuts: the most workloads together, for whoever sends more than was told slows all of a group; and how many
times neighbours' effect on a full batch a partition is taken to feel, for small batches feel more."""
HOPELESS = 1e6
"""What a workload costs that nothing holds: it is cut off."""
ROUNDING = 1e-9
FEW = 12
"""Workloads up to which one cut is tried, by the table alone: a patient exact solver knows every group."""
MANY = 300
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
    """Every workload in one group; `servers[n]` is how many serve group n, None where the search decides."""

    groups: tuple[Group, ...]
    servers: tuple[int | None, ...]

    @staticmethod
    def apart(workloads: Sequence[Workload]) -> Grouping:
        """Every workload by itself."""
        return Grouping(tuple((w,) for w in workloads), (None,) * len(workloads))

    def halved(self, which: Container[int]) -> Grouping:
        """These groups in two each, as long as they are several workloads."""
        groups: list[Group] = []
        servers: list[int | None] = []
        for n, (group, count) in enumerate(zip(self.groups, self.servers, strict=True)):
            middle = len(group) // 2
            parts = [group[:middle], group[middle:]] if n in which and middle else [group]
            groups += parts
            servers += [count if len(parts) == 1 else None] * len(parts)
        return Grouping(tuple(groups), tuple(servers))


def groupings(
    workloads: Sequence[Workload], price: Mapping[str, float], devices: Mapping[str, Device],
    alone: Mapping[str, Alone], rule: Rule, quantile: float | None,
) -> Iterator[Grouping]:  # fmt: skip
    """The best cut of each of `TRIES`, without repetition; nothing where no two workloads may meet.

    `price` is of a GPU of each type.
    """
    kin = families(workloads, rule)
    if all(len(family) == 1 for family in kin):
        return
    parts = {name: Parts.of(device, quantile) for name, device in devices.items()}
    markets: list[list[Market]] = [[] for _ in kin]
    for family, sold in zip(kin, markets, strict=True):
        slo, rate = np.array([w.slo_ms for w in family]), sum(w.rate_rps for w in family)
        for name, device in devices.items() if len(family) > 1 else ():
            market = Market.of(device, parts[name], price[name], alone[name], family[0].model, slo, rule)
            sold.append(market.heard(rate) if len(workloads) > FEW else market)
    told = set()
    tries = 1 if len(workloads) <= FEW else MANY_TRIES if len(workloads) > MANY else len(TRIES)
    for together, hardship in TRIES[:tries]:
        runs: list[tuple[Group, int | None]] = []
        for family, sold in zip(kin, markets, strict=True):
            offers = [m.offers(hardship) for m in sold]
            runs += _cheapest_cut(family, offers, together) if sold else [(family, None)]
        found = Grouping(tuple(group for group, _ in runs), tuple(servers for _, servers in runs))
        if found not in told:
            told.add(found)
            yield found


def _cheapest_cut(family: Group, offers: Sequence[Offers], together: int) -> list[tuple[Group, int | None]]:
    """The family in runs of least cost, with servers; what no offer holds is by itself."""
    rates = [w.rate_rps for w in family]
    ways = [[o.of_row(i) for o in offers] for i in range(len(family))]
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]
    for end in range(1, len(family) + 1):
        found: tuple[float, int, int] = (math.inf, 0, 0)
        load = 0.0
        # Fewer together at equal cost.
        for begin in range(end - 1, max(-1, end - 1 - together), -1):
            load += rates[begin]
            cost, servers = min(way.cheapest(load) for way in ways[begin])
            if cost == math.inf and begin == end - 1:
                cost = HOPELESS
            if best[begin][0] + cost < found[0] - ROUNDING:
                found = best[begin][0] + cost, begin, servers
        best.append(found)
    cut: list[tuple[Group, int | None]] = []
    end = len(family)
    while end:
        _, begin, servers = best[end]
        cut.append((family[begin:end], servers or None))
        end = begin
    return cut[::-1]

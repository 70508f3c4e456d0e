"""Which workloads share a queue.

Two workloads of one model in one partition need less than two partitions: their batches fill each other, and
what each partition costs by itself is paid once. All of a group are held to its strictest SLO, so groups are
filled in the order of SLOs (`partitioner`), with what pools carry (`pool_offers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import FloatArray
from controlplane.planning.capacity.families import Group, families
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.options import (
    ServingOption,
    cheapest_first,
    pool_options,
    serving_options,
)
from controlplane.planning.joint.queue_sharing.pairs import Demand, pair_sides
from controlplane.planning.joint.queue_sharing.partitioner import OfferedGroup, partition_family
from controlplane.planning.joint.queue_sharing.pool_offers import PART, Parts, PoolOffers, Pools
from controlplane.planning.judge.queues import Queues

MOST_TOGETHER = 16
"""Workloads of a group: limits the impact of a workload that exceeds its rate."""
_HARDSHIPS = (4.0, 2.0, 1.5)
"""Times that neighbours' effect on a full batch is counted: small batches feel more. A partition of all
families is tried with each."""
_MOST_CUTS = 8
"""Partitions of one family, each corrected by what the exact queue said of the one before."""
_MANY_WORKLOADS = 100
"""From so many on no equal parts are tried where pairs pay: they need no fewer GPUs."""

Pool = tuple[Group, int | None, int | None]
"""A group with its servers and their batch, see `Grouping`."""
FixedGpu = tuple[tuple[int, int], ...]
"""The partitions of a GPU: of each its group's number and the index of its share."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Every workload in one group.

    `servers[n]` is how many servers group n has and `batch[n]` their batch, None where the search decides.
    `fixed_gpus` are GPUs of which it is settled what stands there.
    """

    groups: tuple[Group, ...]
    servers: tuple[int | None, ...]
    batch: tuple[int | None, ...]
    fixed_gpus: tuple[FixedGpu, ...] = ()

    @staticmethod
    def of(pools: Sequence[Pool], fixed_gpus: Sequence[FixedGpu] = ()) -> Grouping:
        """These pools, in order."""
        groups, servers, batch = zip(*pools, strict=True)
        return Grouping(groups, servers, batch, tuple(fixed_gpus))

    @staticmethod
    def apart(workloads: Sequence[Workload]) -> Grouping:
        """Every workload with a queue of its own."""
        return Grouping(tuple((w,) for w in workloads), *((None,) * len(workloads),) * 2)


def options_of(grouping: Grouping, gpu_types: Mapping[str, GpuType]) -> list[list[ServingOption]]:
    """All options of a grouping's groups, those with the servers that it asks for first."""
    found = serving_options(grouping.groups, gpu_types)
    wanted = {
        n: Item(grouping.groups[n], count, grouping.batch[n])
        for n, count in enumerate(grouping.servers)
        if count is not None
    }
    for name, gpu_type in gpu_types.items():
        known = {(n, o.item.servers) for n, own in enumerate(found) for o in own if o.gpu_type == name}
        new = {n: item for n, item in wanted.items() if item.batch or (n, item.servers) not in known}
        for n, option in zip(new, pool_options(list(new.values()), gpu_type), strict=True):
            if option is not None:
                found[n].append(option)
    for n, item in wanted.items():
        found[n].sort(
            key=lambda option, item=item: (  # type: ignore[misc]
                option.item.servers != item.servers,
                option.item.batch != item.batch,
                cheapest_first(option, gpu_types),
            )
        )
    return found


def groupings(workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType]) -> Iterator[Grouping]:
    """Promising groupings, without repetition; none where no two workloads may share a queue."""
    rule = next(iter(gpu_types.values())).rule
    kin = families(workloads, rule)
    if all(len(family) == 1 for family in kin):
        return
    queues = Queues()
    parts = {name: Parts.of(gpu_type) for name, gpu_type in gpu_types.items()}
    pools: list[list[Pools]] = []
    for family in kin:
        slo = np.array([w.slo_ms for w in family])
        types = gpu_types.items() if len(family) > 1 else ()
        pools.append([Pools.of(t, parts[name], family[0].model, slo, queues) for name, t in types])
    seen = set()
    paired = _with_pairs(kin, pools) if rule is Rule.P99 and len(gpu_types) == 1 else None
    if paired is not None:
        seen.add(paired)
        yield paired
        if len(workloads) > _MANY_WORKLOADS:
            return
    for hardship in _HARDSHIPS:
        found: list[Pool] = []
        for n, family in enumerate(kin):
            if pools[n]:
                cut = _partitioned(family, pools[n], hardship)
                pools[n] = cut.pools
                found += cut.groups
            else:
                found.append((family, None, None))
        grouping = Grouping.of(found)
        if grouping not in seen:
            seen.add(grouping)
            yield grouping


def _with_pairs(kin: Sequence[Group], pools: Sequence[Sequence[Pools]]) -> Grouping | None:
    """A grouping for GPUs on which two families stand side by side; None where no pair pays."""
    shared = {n: own[0] for n, own in enumerate(pools) if own and own[0].served}
    if not shared:
        return None
    demand = [Demand(p.model, p.slo_ms, sum(w.rate_rps for w in kin[n])) for n, p in shared.items()]
    sides, price = pair_sides(next(iter(shared.values())).gpu_type, demand)
    if not any(sides):
        return None
    of_family = {n: (cost, own) for n, cost, own in zip(shared, price, sides, strict=True)}
    found: list[Pool] = []
    stand: dict[int, list[list[tuple[int, int]]]] = {}
    # The family that gains most from pairs comes first: the others fill what stands beside it.
    for n in sorted(range(len(kin)), key=lambda n: of_family[n][0] if n in of_family else 1.0):
        if n not in of_family:
            found.append((kin[n], None, None))
            continue
        own = of_family[n][1]
        left = {pair: len(rows[0]) for pair, rows in stand.items()}
        cut = _partitioned(kin[n], [shared[n].with_sides(own)], _HARDSHIPS[0], left)
        for number, side in enumerate(own, 1):
            where = [
                (len(found) + k, side.column)
                for k, at in enumerate(cut.stand)
                if at == number
                for _ in range(cut.groups[k][1] or 0)
            ]
            stand.setdefault(side.pair, []).append(where)
        found += cut.groups
    gpus = [
        tuple(part for part in parts if part is not None)
        for pair in sorted(stand)
        for parts in itertools.zip_longest(*stand[pair])
    ]
    return Grouping.of(found, gpus)


@dataclass(frozen=True, slots=True)
class _Partitioned:
    """A family in groups, where each group stands (see `pool_offers`), and its pools as known by then."""

    groups: list[Pool]
    stand: list[int]
    pools: list[Pools]


def _partitioned(
    family: Group,
    pools: list[Pools],
    hardship: float,
    left: Mapping[int, int] = MappingProxyType({}),
) -> _Partitioned:
    """The family in groups; `hardship` and `left`: see `Pools.offers`.

    Under P99 the exact queue is asked about all groups whose neighbours are known, and the family is
    partitioned again with what it said.
    """
    rates = np.array([w.rate_rps for w in family])
    for _ in range(_MOST_CUTS):
        offers = PoolOffers.of_all([p.offers(hardship, left) for p in pools])
        cut = partition_family(rates, offers, MOST_TOGETHER)
        batch: list[int | None] = [None] * len(cut)
        if pools[0].gpu_type.rule is not Rule.P99:
            break
        before = pools
        pools = [_checked(p, n, cut, rates, offers, batch) for n, p in enumerate(pools)]
        if all(now is then for now, then in zip(pools, before, strict=True)):
            break
    servers = [None if g.offer is None else int(offers.servers[g.offer]) for g in cut]
    stand = [PART if g.offer is None else int(offers.stand[g.offer]) for g in cut]
    groups = [tuple(family[i] for i in g.members) for g in cut]
    return _Partitioned(list(zip(groups, servers, batch, strict=True)), stand, pools)


def _checked(
    pools: Pools,
    source: int,
    cut: Sequence[OfferedGroup],
    rates: FloatArray,
    offers: PoolOffers,
    batch: list[int | None],
) -> Pools:
    """The pools lowered where the exact queue refuses a group; fills in the groups' `batch`."""
    for stand in range(len(pools.sides) + 1):
        there = [
            (k, g, g.offer)
            for k, g in enumerate(cut)
            if g.offer is not None and offers.stand[g.offer] == stand and offers.source[g.offer] == source
        ]
        if not there:
            continue
        strictest = pools.slo_ms[[g.members[0] for _, g, _ in there]]
        rate = np.array([rates[list(g.members)].sum() for _, g, _ in there])
        servers = offers.servers[[offer for _, _, offer in there]]
        best, refused = pools.check(strictest, rate, servers, stand)
        for i, (k, _, _) in enumerate(there):
            batch[k] = int(best[i])
            if refused[i]:
                pools = pools.lowered(float(strictest[i]), int(servers[i]), stand)
    return pools

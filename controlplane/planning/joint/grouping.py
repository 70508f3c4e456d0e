"""Which workloads of a family share a queue; `capacity.items.families` says which may.

Two workloads of one model in one partition need less than two partitions: their batches fill each other, and
what each partition costs by itself is paid once. All of a group are held to its strictest SLO, so groups are
filled in the order of SLOs (`partition`), with what pools carry (`offers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import FloatArray
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.items import Group, Item, families
from controlplane.planning.capacity.options import (
    ServingOption,
    cheapest_first,
    pool_options,
    serving_options,
)
from controlplane.planning.joint.offers import CARES, PART, Offer, Parts, Pools, offers_for
from controlplane.planning.joint.pairs import pair_sides
from controlplane.planning.joint.partition import OfferedGroup, cheapest_partition
from controlplane.planning.judge.queues import QueueCache

MOST_TOGETHER = 16
"""Workloads of a group: limits the impact of a workload that exceeds its rate."""
_INTERFERENCE_FACTORS = (4.0, 2.0, 1.5)
"""Times that neighbours' effect on a full batch is counted: small batches feel more. A partition of all
families is tried with each."""
_MOST_CUTS = 8
"""Partitions of one family, each corrected by what the exact queue said of the one before."""
_MANY_WORKLOADS = 100
"""From so many on no equal parts are tried where pairs pay: they need no fewer GPUs."""


class FixedPart(NamedTuple):
    """A partition of which it is settled where it stands: its group's number and the index of its share."""

    group: int
    share: int


FixedGpu = tuple[FixedPart, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """A group with the number of its servers and their batch, None where the search decides."""

    group: Group
    servers: int | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Grouping:
    """Every workload in one group. `fixed_gpus` are GPUs of which it is settled what stands there."""

    pools: tuple[Pool, ...]
    fixed_gpus: tuple[FixedGpu, ...] = ()

    @staticmethod
    def apart(workloads: Sequence[Workload]) -> Grouping:
        """Every workload with a queue of its own."""
        return Grouping(tuple(Pool((w,)) for w in workloads))


def options_of(grouping: Grouping, gpu_types: Mapping[str, GpuType]) -> list[list[ServingOption]]:
    """All options of a grouping's groups, those with the servers that it asks for first."""
    found = serving_options([pool.group for pool in grouping.pools], gpu_types)
    wanted = {
        n: Item(pool.group, pool.servers, pool.batch)
        for n, pool in enumerate(grouping.pools)
        if pool.servers is not None
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
    every_family = families(workloads, rule)
    if all(len(family) == 1 for family in every_family):
        return
    queues = QueueCache()
    parts = {name: Parts.of(gpu_type) for name, gpu_type in gpu_types.items()}
    pools: list[list[Pools]] = []
    for family in every_family:
        slo = np.array([w.slo_ms for w in family])
        types = gpu_types.items() if len(family) > 1 else ()
        pools.append([Pools.of(t, parts[name], family[0].model, slo, queues) for name, t in types])
    seen = set()
    for paired in _with_pairs(every_family, pools) if rule is Rule.P99 and len(gpu_types) == 1 else ():
        if paired not in seen:
            seen.add(paired)
            yield paired
    if seen and len(workloads) > _MANY_WORKLOADS:
        return
    for interference in _INTERFERENCE_FACTORS:
        found: list[Pool] = []
        for n, family in enumerate(every_family):
            if pools[n]:
                shared = _shared(family, pools[n], interference)
                pools[n] = shared.pools
                found += shared.groups
            else:
                found.append(Pool(family))
        grouping = Grouping(tuple(found))
        if grouping not in seen:
            seen.add(grouping)
            yield grouping


def _with_pairs(every_family: Sequence[Group], pools: Sequence[Sequence[Pools]]) -> Iterator[Grouping]:
    """Groupings for GPUs on which two families stand side by side; none where no pair pays."""
    served = {n: own[0] for n, own in enumerate(pools) if own and own[0].served}
    if not served:
        return
    sides, price = pair_sides(next(iter(served.values())).gpu_type, [every_family[n] for n in served])
    if not any(sides):
        return
    price_of = dict(zip(served, price, strict=True))
    # Fuller GPUs leave less for shadows: with less care a demand takes a GPU more as often as one less.
    demanded = any(w.shadow.covers is not None for family in every_family for w in family)
    for care in CARES[: 1 if demanded else None]:
        with_sides = {n: served[n].with_sides(own, care) for n, own in zip(served, sides, strict=True)}
        yield _side_by_side(every_family, with_sides, price_of)


def _side_by_side(
    every_family: Sequence[Group], served: Mapping[int, Pools], price_of: Mapping[int, float]
) -> Grouping:
    """Groups that fill pairs and whole GPUs; `served` and `price_of`: of families, by number, with pairs."""
    found: list[Pool] = []
    stand: dict[int, list[list[FixedPart]]] = {}
    # The family that gains most from pairs comes first: the others fill what stands beside it.
    for n in sorted(range(len(every_family)), key=lambda n: price_of.get(n, 1.0)):
        if n not in served:
            found.append(Pool(every_family[n]))
            continue
        left = {pair: len(rows[0]) for pair, rows in stand.items()}
        shared = _shared(every_family[n], [served[n]], _INTERFERENCE_FACTORS[0], left)
        for number, side in enumerate(served[n].sides, 1):
            where = [
                FixedPart(len(found) + k, side.column)
                for k, at in enumerate(shared.stand)
                if at == number
                for _ in range(shared.groups[k].servers or 0)
            ]
            stand.setdefault(side.pair, []).append(where)
        found += shared.groups
    gpus = [
        tuple(part for part in parts if part is not None)
        for pair in sorted(stand)
        for parts in itertools.zip_longest(*stand[pair])
    ]
    return Grouping(tuple(found), tuple(gpus))


@dataclass(frozen=True, slots=True)
class _Shared:
    """A family in groups, where each group stands (see `offers`), and its pools as known by then."""

    groups: list[Pool]
    stand: list[int]
    pools: list[Pools]


def _shared(
    family: Group, pools: list[Pools], interference: float, left: Mapping[int, int] = MappingProxyType({})
) -> _Shared:
    """The family in groups; `interference` and `left`: see `offers_for`.

    Under P99 the exact queue is asked about all groups whose neighbours are known; what it refuses is
    offered for less, and the family is partitioned again.
    """
    rates, pools = np.array([w.rate_rps for w in family]), list(pools)
    for _ in range(_MOST_CUTS):
        offers = offers_for(pools, interference, left)
        groups = cheapest_partition(rates, offers, MOST_TOGETHER)
        batch, refused = _asked(pools, groups, rates) if pools[0].gpu_type.rule is Rule.P99 else ({}, {})
        for n, offer in refused.items():
            strictest = family[groups[n].members[0]]
            pools[offer.source] = pools[offer.source].lowered(strictest.slo_ms, offer)
        if not refused:
            break
    found = [
        Pool(
            tuple(family[i] for i in group.members),
            group.offer.servers if group.offer else None,
            batch.get(n),
        )
        for n, group in enumerate(groups)
    ]
    return _Shared(found, [group.offer.stand if group.offer else PART for group in groups], pools)


def _asked(
    pools: Sequence[Pools], groups: Sequence[OfferedGroup], rates: FloatArray
) -> tuple[dict[int, int], dict[int, Offer]]:
    """The best batch of each group whose neighbours are known, and the offers with which even that is late.

    Both by the group's number, and by the exact queue.
    """
    there: dict[tuple[int, int], dict[int, Offer]] = {}
    for n, group in enumerate(groups):
        if group.offer is not None and group.offer.stand != PART:
            there.setdefault((group.offer.source, group.offer.stand), {})[n] = group.offer
    batches: dict[int, int] = {}
    refused: dict[int, Offer] = {}
    for (source, stand), offers in there.items():
        members = [list(groups[n].members) for n in offers]
        slo_ms = pools[source].slo_ms[[own[0] for own in members]]
        rate_rps = np.array([rates[own].sum() for own in members])
        servers = np.array([offer.servers for offer in offers.values()])
        batch, late = pools[source].ask(slo_ms, rate_rps, servers, stand)
        batches |= dict(zip(offers, batch.tolist(), strict=True))
        refused |= {n: offer for (n, offer), is_late in zip(offers.items(), late, strict=True) if is_late}
    return batches, refused

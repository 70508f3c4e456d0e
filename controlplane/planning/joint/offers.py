"""What pools of one model cost and carry, as offers for groups of its workloads.

Offered are whole GPUs, equal parts of one, and sides of pairs (`pairs`). Equal parts are taken to be slowed
as by neighbours of the usual kind; what really stands together is decided by the packing.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planning.capacity.gpu_types import BatchTimes, GpuType
from controlplane.planning.capacity.items import ItemArrays
from controlplane.planning.capacity.p99_table import possible_batches, usual_rate
from controlplane.planning.capacity.tolerance import best_batches
from controlplane.planning.joint.pairs import Side
from controlplane.planning.judge.queues import QueueCache, sojourn_times

WHOLE, PART = 0, -1
"""Where servers stand: on whole GPUs, on equal parts of one; from 1 on in a pair, as `Pools.sides` says."""
_MOST_PARTS = 8
"""The smallest share offered is this part of a GPU."""
_USUAL_BATCH = 8
"""Of the neighbours that a part is measured beside."""
_TABLE_CARE = 0.99
"""Part of what the table says that a pool carries, before the exact queue is asked."""
_NEAR, _LESS = 0.2, 0.01
"""Where the exact queue refuses a pool: SLOs this near (in logarithms) carry so much less."""


@dataclass(frozen=True, slots=True)
class Care:
    """How carefully pools are offered.

    `spare`: every partition must tolerate this much more, since a pool that the exact queue refuses takes a
    server more. `left_over`: relative cost of a side whose other side stands already and would otherwise have
    no neighbour.
    """

    spare: float
    left_over: float


CARES = Care(1.005, 0.9), Care(1.001, 0.95)
"""The usual care, and less of it, which saves a GPU of some lists and takes one more for others."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A whole GPU and equal parts of it: `column` (parts,) are shares by index, `count` of them fit one GPU.

    `slowdown` (models, parts): what neighbours do to a full batch, the mean over their models.
    """

    column: IntArray
    count: IntArray
    slowdown: FloatArray

    @staticmethod
    def of(gpu_type: GpuType) -> Parts:
        """Ask the latency model about every two models at each part."""
        grid = gpu_type.percents
        column = gpu_type.floor(100.0 / np.arange(1, _MOST_PARTS + 1) + 1e-9)
        column = np.unique(column[column >= 0])[::-1]
        count = np.floor(100.0 / grid[column] + 1e-9).astype(np.int64)
        models = len(gpu_type.models)
        own, beside, part = np.indices((models, models, column.size)).reshape(3, -1)
        row = np.repeat(beside[:, None], int(count.max()), axis=1)
        row[:, 0] = own
        largest = np.array([gpu_type.device.profiles[m].largest_batch for m in gpu_type.models])
        batch = np.minimum(_USUAL_BATCH, largest)[row].astype(np.float64)
        percent = np.broadcast_to(grid[column][part][:, None], row.shape).copy()
        here = np.arange(row.shape[1]) < count[part][:, None]
        slowed, _ = gpu_type.ask(Slots(row, batch, percent, here))
        alone, _ = gpu_type.ask(Slots.alone(own, batch[:, 0], percent[:, 0]))
        ratio = (slowed[:, 0] / alone[:, 0]).reshape(models, models, column.size)
        return Parts(column, count, np.maximum(ratio.mean(axis=1), 1.0))


@dataclass(frozen=True, slots=True)
class Pools:
    """Pools of one model on one GPU type; `slo_ms` (SLOs,) are those of its workloads, rising.

    `trust` (stands, SLOs, servers): what a pool on whole GPUs, and on each of `sides`, carries by the exact
    queue, over what the table says. `by_table`: rates of `parts` looked up so far, by interference
    and care.
    """

    gpu_type: GpuType
    parts: Parts
    model: str
    slo_ms: FloatArray
    trust: FloatArray
    queues: QueueCache
    sides: tuple[Side, ...] = ()
    care: Care = CARES[0]
    by_table: MutableMapping[tuple[float, Care], FloatArray] = field(default_factory=dict)

    @staticmethod
    def of(gpu_type: GpuType, parts: Parts, model: str, slo_ms: FloatArray, queues: QueueCache) -> Pools:
        """As the table says, with some care under P99."""
        trust = _TABLE_CARE if gpu_type.rule is Rule.P99 else 1.0
        return Pools(gpu_type, parts, model, slo_ms, np.full((1, slo_ms.size, MOST_SERVERS), trust), queues)

    def with_sides(self, sides: Sequence[Side], care: Care) -> Pools:
        """With these sides on offer too, before the exact queue was asked about them."""
        unknown = np.full((len(sides), *self.trust.shape[1:]), _TABLE_CARE)
        return replace(self, trust=np.concatenate([self.trust[:1], unknown]), sides=tuple(sides), care=care)

    @property
    def served(self) -> bool:
        """Whether this GPU type has a profile of the model."""
        return self.model in self.gpu_type.device.profiles

    def curve(self, stand: int) -> FloatArray:
        """Times in ms of all batches (batches,)."""
        if stand != WHOLE:
            return self.sides[stand - 1].times.execution[:, 0]
        whole: FloatArray = self.gpu_type.alone.execution[self.gpu_type.number_of(self.model), :, -1]
        return whole

    def ask(
        self, slo_ms: FloatArray, rate_rps: FloatArray, servers: IntArray, stand: int
    ) -> tuple[IntArray, BoolArray]:
        """The best batch of each pool that stands there (pools,), and whether the exact queue refuses it.

        Tried are the table's batch and the largest one that is executed within the SLO.
        """
        models, known, _ = self.gpu_type.alone.execution.shape
        curve = np.broadcast_to(self.curve(stand)[:, None], (models, known, 1))
        every, poisson = [self.model] * slo_ms.size, np.zeros(slo_ms.size, dtype=np.bool_)
        pools = ItemArrays.of(self.gpu_type, every, rate_rps / servers, slo_ms, servers, poisson)
        by_table = best_batches(BatchTimes(curve, curve), pools, self.gpu_type).batch[:, 0]
        possible = possible_batches(self.gpu_type)
        if stand != WHOLE:
            possible = self.sides[stand - 1].batches
            by_table = possible[np.maximum(np.searchsorted(possible, by_table, side="right") - 1, 0)]
        in_time = np.searchsorted(self.curve(stand)[possible - 1], slo_ms, side="right") - 1
        batches = np.array([by_table, possible[np.maximum(in_time, 0)]])
        curves = np.where(np.isfinite(self.curve(stand)), self.curve(stand), 0.0) + np.zeros((slo_ms.size, 1))
        rate, dispersion = rate_rps * self.care.spare, np.ones(slo_ms.size)
        own = servers, dispersion, pools.outside_ms, pools.jitter, self.queues
        p99 = np.array([sojourn_times(rate, curves, batch, *own).p99_ms for batch in batches])
        best = p99.argmin(axis=0)[None]
        batch, least = (np.take_along_axis(of, best, axis=0)[0] for of in (batches, p99))
        return batch, least > slo_ms

    def lowered(self, slo_ms: float, offer: Offer) -> Pools:
        """With an offer's kind of pools carrying less at this SLO and those near."""
        trust = self.trust.copy()
        near = np.abs(np.log(self.slo_ms / slo_ms)) < _NEAR
        # How pools of all sizes differ is known of whole GPUs only.
        sizes = slice(offer.servers - 1, offer.servers) if offer.stand == WHOLE else slice(None)
        trust[offer.stand, near, sizes] *= 1.0 - _LESS
        return replace(self, trust=trust)

    def on_parts(self, interference: float) -> FloatArray:
        """What a server on each of `parts` carries by the table: (SLOs, servers, parts)."""
        if not self.served:
            return np.zeros((self.slo_ms.size, MOST_SERVERS, self.parts.count.size))
        if (key := (interference, self.care)) not in self.by_table:
            number = self.gpu_type.number_of(self.model)
            slowed = self.care.spare * (1.0 + (self.parts.slowdown[number] - 1.0) * interference)
            times = self.gpu_type.alone.of_model(number, self.parts.column).slowed(slowed)
            self.by_table[key] = usual_rate(self.gpu_type, self.model, times, self.slo_ms)
        return self.by_table[key]


@dataclass(frozen=True, slots=True)
class Offer:
    """A pool that may serve a group: its cost, its servers, where they stand, the number of its `Pools`."""

    cost: float
    servers: int
    stand: int
    source: int


@dataclass(frozen=True, slots=True)
class Offers:
    """All offers, (offers,), see `Offer`.

    `rate` (SLOs, offers) is what they carry per second within each SLO, 0 for nothing. `stock` (stands,):
    servers that may stand in one place, infinite where there is no limit.
    """

    cost: FloatArray
    rate: FloatArray
    servers: IntArray
    stand: IntArray
    source: IntArray
    stock: FloatArray

    def at(self, number: int) -> Offer:
        """The one with this number."""
        servers, stand, source = (int(of[number]) for of in (self.servers, self.stand, self.source))
        return Offer(float(self.cost[number]), servers, stand, source)


def offers_for(pools: Sequence[Pools], interference: float, left: Mapping[int, int]) -> Offers:
    """All pools on offer, of GPU types with the same SLOs; only one may have sides.

    `interference`: how many times neighbours' effect on a full batch a part feels. `left`: of pairs by
    number, how many of the other side stand without this one, if that is known.
    """
    each = [_offers(own, n, interference, left) for n, own in enumerate(pools)]
    return Offers(
        np.concatenate([o.cost for o in each]),
        np.concatenate([o.rate for o in each], axis=1),
        np.concatenate([o.servers for o in each]),
        np.concatenate([o.stand for o in each]),
        np.concatenate([o.source for o in each]),
        max((o.stock for o in each), key=len),
    )


def _offers(pools: Pools, source: int, interference: float, left: Mapping[int, int]) -> Offers:
    """Those of one GPU type, the cheapest first."""
    counts, parts, price = np.arange(1, MOST_SERVERS + 1), pools.parts.count, pools.gpu_type.price
    on_parts = pools.on_parts(interference) * counts[:, None] * pools.trust[WHOLE][..., None]
    rates = [on_parts.reshape(pools.slo_ms.size, -1)]
    servers = [np.repeat(counts, parts.size)]
    cost = [(price * counts[:, None] / parts).ravel()]
    stand = [np.tile(np.where(parts == 1, WHOLE, PART), counts.size)]
    for n, side in enumerate(pools.sides, 1):
        usual = usual_rate(
            pools.gpu_type, pools.model, side.times.slowed(pools.care.spare), pools.slo_ms, side.batches
        )
        rates.append(usual[..., 0] * counts * pools.trust[n])
        servers.append(counts)
        cost.append(price * side.cost * (pools.care.left_over if side.pair in left else 1.0) * counts)
        stand.append(np.full_like(counts, n))
    all_servers, all_costs = np.concatenate(servers), np.concatenate(cost)
    order = np.lexsort((all_servers, all_costs))
    return Offers(
        all_costs[order],
        np.concatenate(rates, axis=1)[:, order],
        all_servers[order],
        np.concatenate(stand)[order],
        np.full(order.size, source),
        np.array([np.inf, *(left.get(side.pair, np.inf) for side in pools.sides)]),
    )

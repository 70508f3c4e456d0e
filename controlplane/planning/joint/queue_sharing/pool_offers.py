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
from controlplane.planning.capacity import waiting_times
from controlplane.planning.capacity.gpu_types import AloneTimes, GpuType
from controlplane.planning.capacity.items import ItemArrays
from controlplane.planning.capacity.largest_rate import usual_rate
from controlplane.planning.capacity.tolerance import best_batches
from controlplane.planning.joint.queue_sharing.pairs import Side
from controlplane.planning.judge.queues import Queues, waits

WHOLE, PART = 0, -1
"""Where servers stand: on whole GPUs, on equal parts of one; from 1 on in a pair, as `Pools.sides` says."""
_MOST_PARTS = 8
"""The smallest share offered is this part of a GPU."""
_USUAL_BATCH = 8
"""Of the neighbours that a part is measured beside."""
_SPARE = 1.005
"""Every partition must tolerate this much more: a pool that the exact queue refuses takes a server more."""
_TABLE_CARE = 0.99
"""Part of what the table says that a pool carries, before the exact queue is asked."""
_LEFT_OVER = 0.9
"""Relative cost of a side whose other side stands already and would otherwise have no neighbour."""
_NEAR, _LESS = 0.2, 0.01
"""Where the exact queue refuses a pool: SLOs this near (in logarithms) carry so much less."""


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
        column = np.searchsorted(grid, 100.0 / np.arange(1, _MOST_PARTS + 1) + 1e-9, side="right") - 1
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
    queue, over what the table says. `by_table`: rates of `parts` looked up so far, by hardship.
    """

    gpu_type: GpuType
    parts: Parts
    model: str
    slo_ms: FloatArray
    trust: FloatArray
    queues: Queues
    sides: tuple[Side, ...] = ()
    by_table: MutableMapping[float, FloatArray] = field(default_factory=dict)

    @staticmethod
    def of(gpu_type: GpuType, parts: Parts, model: str, slo_ms: FloatArray, queues: Queues) -> Pools:
        """As the table says, with some care under P99."""
        trust = _TABLE_CARE if gpu_type.rule is Rule.P99 else 1.0
        return Pools(gpu_type, parts, model, slo_ms, np.full((1, slo_ms.size, MOST_SERVERS), trust), queues)

    def with_sides(self, sides: Sequence[Side]) -> Pools:
        """With these sides on offer too, before the exact queue was asked about them."""
        unknown = np.full((len(sides), *self.trust.shape[1:]), _TABLE_CARE)
        return replace(self, trust=np.concatenate([self.trust[:1], unknown]), sides=tuple(sides))

    @property
    def served(self) -> bool:
        """Whether this GPU type has a profile of the model."""
        return self.model in self.gpu_type.device.profiles

    @property
    def number(self) -> int:
        """The model's place in the latency model."""
        return self.gpu_type.number_of(self.model)

    def curve(self, stand: int) -> FloatArray:
        """Times in ms of all batches (batches,)."""
        if stand != WHOLE:
            return self.sides[stand - 1].execution
        whole: FloatArray = self.gpu_type.alone.execution[self.number, :, -1]
        return whole

    def check(
        self, slo_ms: FloatArray, rate_rps: FloatArray, servers: IntArray, stand: int
    ) -> tuple[IntArray, BoolArray]:
        """The best batch of each pool that stands there (pools,), and whether the exact queue refuses it.

        Tried are the table's batch and the largest one that is executed within the SLO.
        """
        models, known, _ = self.gpu_type.alone.execution.shape
        curve = np.broadcast_to(self.curve(stand)[:, None], (models, known, 1))
        pools = ItemArrays.of_pools(self.gpu_type, self.model, rate_rps / servers, slo_ms, servers)
        by_table = best_batches(AloneTimes(curve, curve), pools, self.gpu_type.rule)[0][:, 0]
        possible = np.array([b for b in waiting_times.BATCHES if b <= known])
        if stand != WHOLE:
            possible = self.sides[stand - 1].batches
            by_table = possible[np.maximum(np.searchsorted(possible, by_table, side="right") - 1, 0)]
        in_time = np.searchsorted(self.curve(stand)[possible - 1], slo_ms, side="right") - 1
        batches = np.array([by_table, possible[np.maximum(in_time, 0)]])
        p99 = np.array([self._p99(rate_rps * _SPARE, batch, servers, stand) for batch in batches])
        best = p99.argmin(axis=0)[None]
        batch = np.take_along_axis(batches, best, axis=0)[0]
        return batch, np.take_along_axis(p99, best, axis=0)[0] > slo_ms

    def _p99(self, rate_rps: FloatArray, batch: IntArray, servers: IntArray, stand: int) -> FloatArray:
        """Of pools that stand there, by the exact queue; all (pools,)."""
        profile = self.gpu_type.device.profiles[self.model]
        curve = self.curve(stand)
        curves = np.where(np.isfinite(curve), curve, 0.0) + np.zeros((rate_rps.size, 1))
        outside, jitter = (np.full(rate_rps.size, x or 0.0) for x in (profile.frontend_ms, profile.jitter))
        poisson = np.ones(rate_rps.size)
        return waits(rate_rps, curves, batch, servers, poisson, outside, jitter, self.queues).p99_ms

    def lowered(self, slo_ms: float, servers: int, stand: int) -> Pools:
        """With pools there that carry less at this SLO and those near: of so many servers, or any."""
        trust = self.trust.copy()
        near = np.abs(np.log(self.slo_ms / slo_ms)) < _NEAR
        # How pools of all sizes differ is known of whole GPUs only.
        sizes = slice(servers - 1, servers) if stand == WHOLE else slice(None)
        trust[stand, near, sizes] *= 1.0 - _LESS
        return replace(self, trust=trust)

    def offers(self, hardship: float, left: Mapping[int, int]) -> PoolOffers:
        """All pools on offer.

        `hardship`: how many times neighbours' effect on a full batch a part feels. `left`: of pairs by
        number, how many of the other side stand without this one, if that is known.
        """
        counts = np.arange(1, MOST_SERVERS + 1)
        servers = np.repeat(counts, self.parts.count.size)
        cost = (self.gpu_type.price * counts[:, None] / self.parts.count).ravel()
        stand = np.tile(np.where(self.parts.count == 1, WHOLE, PART), counts.size)
        if not self.served:
            nothing = np.zeros((self.slo_ms.size, cost.size))
            return PoolOffers(cost, nothing, servers, stand, np.zeros_like(servers), np.full(1, np.inf))
        each = self._on_parts(hardship)
        rate = [(each * counts[:, None] * self.trust[WHOLE][..., None]).reshape(self.slo_ms.size, -1)]
        for n, side in enumerate(self.sides, 1):
            times = AloneTimes(side.execution[:, None] * _SPARE, side.cycle[:, None] * _SPARE)
            each = usual_rate(self.gpu_type, self.model, times, self.slo_ms, side.batches)
            rate.append(each[..., 0] * counts * self.trust[n])
            part = _LEFT_OVER if side.pair in left else 1.0
            cost = np.append(cost, self.gpu_type.price * side.cost * part * counts)
            servers, stand = np.append(servers, counts), np.append(stand, np.full_like(counts, n))
        rates = np.concatenate(rate, axis=1)
        order = np.lexsort((servers, cost))
        stock = np.array([np.inf, *(left.get(side.pair, np.inf) for side in self.sides)])
        source = np.zeros_like(servers)
        return PoolOffers(cost[order], rates[:, order], servers[order], stand[order], source, stock)

    def _on_parts(self, hardship: float) -> FloatArray:
        """What a server on each of `parts` carries by the table: (SLOs, servers, parts)."""
        if hardship not in self.by_table:
            alone = self.gpu_type.alone
            slowed = _SPARE * (1.0 + (self.parts.slowdown[self.number] - 1.0) * hardship)
            own = (t[self.number][:, self.parts.column] * slowed for t in (alone.execution, alone.cycle))
            self.by_table[hardship] = usual_rate(self.gpu_type, self.model, AloneTimes(*own), self.slo_ms)
        return self.by_table[hardship]


@dataclass(frozen=True, slots=True)
class PoolOffers:
    """Pools that may serve a group, (offers,): `cost`, the number of `servers`, and where they `stand`.

    `rate` (SLOs, offers) is what they carry per second within each SLO, 0 for nothing. `source` numbers the
    `Pools` that an offer comes from. `stock` (stands,): servers that may stand in one place, infinite where
    there is no limit.
    """

    cost: FloatArray
    rate: FloatArray
    servers: IntArray
    stand: IntArray
    source: IntArray
    stock: FloatArray

    @staticmethod
    def of_all(several: Sequence[PoolOffers]) -> PoolOffers:
        """Offers of several GPU types with the same SLOs. Only one may have sides."""
        return PoolOffers(
            np.concatenate([o.cost for o in several]),
            np.concatenate([o.rate for o in several], axis=1),
            np.concatenate([o.servers for o in several]),
            np.concatenate([o.stand for o in several]),
            np.concatenate([np.full(o.cost.size, n) for n, o in enumerate(several)]),
            max((o.stock for o in several), key=len),
        )

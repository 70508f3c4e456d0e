"""What groups of one model may cost: the cheapest servers that carry a rate within an SLO.

Only whole GPUs and equal parts of one are offered. Parts are taken to be slowed as by neighbours of the usual
kind; which partitions really stand together is the packing's to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planners import waiting
from controlplane.planners.board import JITTER_P99, Queues, ask, waits
from controlplane.planners.menu import FULL_BATCH, Alone, Asked, tolerated
from controlplane.planners.protocol import Device

PARTS = 8
"""The smallest share offered is this part of a GPU."""
USUAL_BATCH = 8
"""Of the neighbours that a part is measured beside."""
SPARE = 1.005
"""Every partition must tolerate this much more: a pool that the exact queue refuses takes a server more."""
TABLE_ERROR = 0.02
"""Of what a pool of whole GPUs carries."""
LOOKS = 4
"""SLOs of a model that the exact queue is asked about."""
FARTHEST = (0.8, 1.1)
"""What it carries is found between these times what the table says."""
HALVINGS = 5
NEAR, LESS = 0.2, 0.01
"""Where the exact queue refuses a pool: SLOs this near (in logarithms) carry so much less."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A whole GPU of a type and equal parts of it: `column` (parts,) are shares' indices, `count` fit one.

    `slowdown` (models, parts): what the others do to a full batch, the mean over their models.
    """

    column: IntArray
    count: IntArray
    slowdown: FloatArray

    @staticmethod
    def of(device: Device, quantile: float | None) -> Parts:
        """Asks the latency model about every pair of models at each part."""
        grid = np.array(device.pool.device.grid.percents())
        column = np.searchsorted(grid, 100.0 / np.arange(1, PARTS + 1) + 1e-9, side="right") - 1
        column = np.unique(column[column >= 0])[::-1]
        count = np.floor(100.0 / grid[column] + 1e-9).astype(np.int64)
        models = len(device.latency.models)
        asked, beside, part = np.indices((models, models, column.size)).reshape(3, -1)
        row = np.repeat(beside[:, None], int(count.max()), axis=1)
        row[:, 0] = asked
        largest = np.array([device.profiles[m].largest_batch for m in device.latency.models])
        batch = np.minimum(USUAL_BATCH, largest)[row].astype(np.float64)
        percent = np.broadcast_to(grid[column][part][:, None], row.shape).copy()
        here = np.arange(row.shape[1]) < count[part][:, None]
        slow, _ = ask(device.latency, Slots(row, batch, percent, here), quantile)
        base, _ = ask(device.latency, Slots.alone(asked, batch[:, 0], percent[:, 0]), quantile)
        ratio = (slow[:, 0] / base[:, 0]).reshape(models, models, column.size)
        return Parts(column, count, np.maximum(ratio.mean(axis=1), 1.0))


@dataclass(frozen=True, slots=True)
class Market:
    """Where offers for one model on one GPU type come from: `slo_ms` (SLOs,) rise, `price` is a GPU's.

    `truth` (SLOs, servers): what a pool of whole GPUs carries by the exact queue, over the table's word.
    """

    device: Device
    parts: Parts
    price: float
    alone: Alone
    model: str
    slo_ms: FloatArray
    rule: Rule
    truth: FloatArray
    queues: Queues

    @staticmethod
    def of(
        device: Device, parts: Parts, price: float, alone: Alone, model: str, slo_ms: FloatArray, rule: Rule,
        queues: Queues,
    ) -> Market:  # fmt: skip
        """By the table's word, with `TABLE_ERROR` under P99 to spare."""
        word = 1.0 - TABLE_ERROR if rule is Rule.P99 else 1.0
        truth = np.full((slo_ms.size, MOST_SERVERS), word)
        return Market(device, parts, price, alone, model, slo_ms, rule, truth, queues)

    def heard(self, rate_rps: float) -> Market:
        """As the exact queue says of some SLOs; between two of them, along the SLO's logarithm.

        `rate_rps` is all that can be asked of a pool.
        """
        if self.rule is not Rule.P99 or self.model not in self.device.profiles:
            return self
        some = np.unique(np.quantile(self.slo_ms, np.linspace(0.0, 1.0, LOOKS), method="nearest"))
        whole = np.array([self.alone.execution.shape[2] - 1])
        index = self.device.latency.models.index(self.model)
        table = _carried(self.device, self.alone, index, whole, np.ones(1), some, self.rule)[:, :, 0]
        counts = np.array(waiting.SERVERS)
        useful = max(1, int(np.count_nonzero(table[-1, 0] * (counts - 1) < rate_rps)))
        counts = counts[:useful]
        table = table[:, counts - 1]
        at = np.nonzero(table > 0.0)
        slo, servers, rate = some[at[0]], counts[at[1]], table[at]
        batch = self.patient_batch(slo)
        low, high = np.full(rate.size, FARTHEST[0]), np.full(rate.size, FARTHEST[1])
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            kept = self.waits_ms(rate * middle * servers, batch, servers) <= slo
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
        found = np.ones(table.shape)
        found[at] = low
        along = [np.interp(np.log(self.slo_ms), np.log(some), told) for told in found.T]
        every = np.arange(1, MOST_SERVERS + 1)
        return replace(self, truth=np.array([np.interp(every, counts, row) for row in np.array(along).T]))

    def patient_batch(self, slo_ms: FloatArray) -> IntArray:
        """The largest that a whole GPU serves within each SLO: who is held to an SLO by waiting fills it."""
        known = np.array([b for b in waiting.BATCHES if b <= self.alone.execution.shape[1]])
        full = self.alone.execution[self.device.latency.models.index(self.model), known - 1, -1]
        batch: IntArray = known[np.maximum(np.searchsorted(full, slo_ms, side="right") - 1, 0)]
        return batch

    def waits_ms(self, rate_rps: FloatArray, batch: IntArray, servers: IntArray) -> FloatArray:
        """The P99 of pools of whole GPUs by the exact queue; all (pools,)."""
        profile = self.device.profiles[self.model]
        curve = self.alone.execution[self.device.latency.models.index(self.model), :, -1]
        curves = np.where(np.isfinite(curve), curve, 0.0) + np.zeros((rate_rps.size, 1))
        return waits(
            rate_rps, curves, batch, servers, np.zeros(rate_rps.size, dtype=np.bool_),
            np.full(rate_rps.size, profile.frontend_ms or 0.0), np.full(rate_rps.size, profile.jitter or 0.0),
            self.queues,
        ).p99_ms  # fmt: skip

    def asked(
        self, slo_ms: FloatArray, rate_rps: FloatArray, servers: IntArray
    ) -> tuple[IntArray, BoolArray]:
        """The best batch of each pool of whole GPUs (pools,), and whether the exact queue refuses it."""
        last = Alone(self.alone.execution[:, :, -1:], self.alone.cycle[:, :, -1:])
        index = self.device.latency.models.index(self.model)
        pools = Asked.of_pools(self.device, index, rate_rps / servers, slo_ms, servers)
        batches = np.array([tolerated(last, pools, self.rule)[0][:, 0], self.patient_batch(slo_ms)])
        waited = np.array([self.waits_ms(rate_rps * SPARE, batch, servers) for batch in batches])
        best = waited.argmin(axis=0)[None]
        batch = np.take_along_axis(batches, best, axis=0)[0]
        return batch, np.take_along_axis(waited, best, axis=0)[0] > slo_ms

    def lowered(self, slo_ms: float, servers: int) -> Market:
        """With pools of so many servers that carry less, at this SLO and those near."""
        truth = self.truth.copy()
        near = np.abs(np.log(self.slo_ms / slo_ms)) < NEAR
        truth[near, servers - 1] *= 1.0 - LESS
        return replace(self, truth=truth)

    def offers(self, hardship: float) -> Offers:
        """`hardship`: how many times neighbours' effect on a full batch a part feels."""
        counts = np.arange(1, MOST_SERVERS + 1)
        servers = np.repeat(counts, self.parts.count.size)
        cost = (self.price * counts[:, None] / self.parts.count).ravel()
        whole = np.tile(self.parts.count == 1, counts.size)
        if self.model not in self.device.profiles:
            return Offers(
                cost, np.zeros((self.slo_ms.size, cost.size)), servers, whole, np.zeros_like(servers)
            )
        index = self.device.latency.models.index(self.model)
        parts, slowed = self.parts, 1.0 + (self.parts.slowdown[index] - 1.0) * hardship
        each = _carried(self.device, self.alone, index, parts.column, SPARE * slowed, self.slo_ms, self.rule)
        rate = (each * counts[:, None] * self.truth[..., None]).reshape(self.slo_ms.size, -1)
        order = np.lexsort((servers, cost))
        return Offers(cost[order], rate[:, order], servers[order], whole[order], np.zeros_like(servers))


@dataclass(frozen=True, slots=True)
class Offers:
    """What serves a group, (offers,): `cost`, how many `servers`, and whether they are `whole` GPUs.

    `rate` (SLOs, offers) is what they carry per second within each SLO of a market, 0 for nothing.
    """

    cost: FloatArray
    rate: FloatArray
    servers: IntArray
    whole: BoolArray
    market: IntArray

    @staticmethod
    def of_all(several: Sequence[Offers]) -> Offers:
        """Those of several markets with the same SLOs; `market` numbers them."""
        return Offers(
            np.concatenate([o.cost for o in several]), np.concatenate([o.rate for o in several], axis=1),
            np.concatenate([o.servers for o in several]), np.concatenate([o.whole for o in several]),
            np.concatenate([np.full(o.cost.size, n) for n, o in enumerate(several)]),
        )  # fmt: skip


def _carried(
    device: Device, alone: Alone, model: int, column: IntArray, slowed: FloatArray, slo_ms: FloatArray,
    rule: Rule,
) -> FloatArray:  # fmt: skip
    """Requests per second into each server of a pool: (SLOs, servers, shares)."""
    known = alone.execution.shape[1]
    batch = np.array([b for b in waiting.BATCHES if b <= known])
    execution = alone.execution[model][:, column] * slowed
    cycle = alone.cycle[model][:, column] * slowed
    if rule is not Rule.P99:
        every = 1000.0 * np.arange(1, known + 1)[:, None] / cycle
        most = np.array([np.where(execution <= d / 2.0, every, 0.0).max(axis=0) for d in slo_ms])
        return np.repeat(most[:, None], MOST_SERVERS, axis=1)
    from controlplane.planners.capacity_kernel import most_carried

    profile = device.profiles[device.latency.models[model]]
    first, found = execution[:1], np.zeros((slo_ms.size, MOST_SERVERS, column.size))
    within = slo_ms - (profile.frontend_ms or 0.0)
    # The least wait at this load or any higher: what is carried grows with what may be waited.
    table = np.minimum.accumulate(waiting.pools()[..., ::-1], axis=-1)[..., ::-1]
    table = table + JITTER_P99 * (profile.jitter or 0.0)
    for k, size in enumerate(batch.tolist()):
        full = execution[size - 1][None]
        known_times = np.where(np.isfinite(full), full, 1.0)
        thin = (first / known_times - 1.0 / size) / max(1.0 - 1.0 / size, 0.5)
        most = most_carried(
            within, full[None], np.clip(thin, 0.0, 1.0)[None], first, table[:, k : k + 1],
            np.array([float(size)]), np.array(waiting.LOADS), np.array(waiting.SHAPES), 1.0,
        )[:, :, 0]  # fmt: skip
        # The table says little of batches that hardly ever fill.
        fills = full <= FULL_BATCH * within[:, None]
        found = np.maximum(found, np.where(fills[:, None], most, 0.0) if size > 1 else most)
    return found

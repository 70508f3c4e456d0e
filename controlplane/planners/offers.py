"""What groups of one model may cost: the cheapest servers that carry a rate within an SLO.

Offered are whole GPUs, equal parts of one, and parts beside a given other (`pairs`). Equal parts are taken to
be slowed as by neighbours of the usual kind; which really stand together is the packing's to find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planners import waiting
from controlplane.planners.board import Queues, ask, waits
from controlplane.planners.carrying import carried
from controlplane.planners.menu import Alone, Asked, tolerated
from controlplane.planners.pairs import Side
from controlplane.planners.protocol import Device

PARTS = 8
"""The smallest share offered is this part of a GPU."""
USUAL_BATCH = 8
"""Of the neighbours that a part is measured beside."""
SPARE = 1.005
"""Every partition must tolerate this much more: a pool that the exact queue refuses takes a server more."""
TABLE_ERROR = 0.01
"""Of what a pool of whole GPUs carries, or of parts beside given others."""
WHOLE, USUAL = 0, -1
"""Where servers stand: on whole GPUs, on equal parts; from 1 on beside others as `Market.sides` says."""
LEFT_OVER = 0.9
"""What a part costs beside another that stands already, by which it would stay empty."""
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

    `truth` (stands, SLOs, servers): what a pool on whole GPUs, and of each of `sides`, carries by the exact
    queue, over the table's word.
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
    sides: tuple[Side, ...] = ()

    @staticmethod
    def of(
        device: Device, parts: Parts, price: float, alone: Alone, model: str, slo_ms: FloatArray, rule: Rule,
        queues: Queues,
    ) -> Market:  # fmt: skip
        """By the table's word, with `TABLE_ERROR` under P99 to spare."""
        word = 1.0 - TABLE_ERROR if rule is Rule.P99 else 1.0
        truth = np.full((1, slo_ms.size, MOST_SERVERS), word)
        return Market(device, parts, price, alone, model, slo_ms, rule, truth, queues)

    def heard(self, rate_rps: float) -> Market:
        """As the exact queue says of some SLOs; between two of them, along the SLO's logarithm.

        `rate_rps` is all that can be asked of a pool.
        """
        if self.rule is not Rule.P99 or self.model not in self.device.profiles:
            return self
        some = np.unique(np.quantile(self.slo_ms, np.linspace(0.0, 1.0, LOOKS), method="nearest"))
        own = self.alone.execution[self.number][:, -1:], self.alone.cycle[self.number][:, -1:]
        table = carried(self.device, self.model, *own, some, self.rule)[:, :, 0]
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
        return replace(self, truth=np.array([[np.interp(every, counts, row) for row in np.array(along).T]]))

    def beside(self, sides: Sequence[Side]) -> Market:
        """With these parts on offer too, of which the exact queue has said nothing."""
        known = np.full((len(sides), *self.truth.shape[1:]), 1.0 - TABLE_ERROR)
        return replace(self, truth=np.concatenate([self.truth[:1], known]), sides=tuple(sides))

    @property
    def number(self) -> int:
        """The model's place in the latency model."""
        return self.device.latency.models.index(self.model)

    def curve(self, stand: int) -> FloatArray:
        """Times in ms of all batches (batches,)."""
        found: FloatArray = (
            self.alone.execution[self.number, :, -1] if stand == WHOLE else self.sides[stand - 1].execution
        )
        return found

    def patient_batch(self, slo_ms: FloatArray, stand: int = WHOLE) -> IntArray:
        """The largest that is served within each SLO: who is held to an SLO by waiting fills it."""
        known = np.array([b for b in waiting.BATCHES if b <= self.alone.execution.shape[1]])
        if stand != WHOLE:
            known = self.sides[stand - 1].batches
        full = self.curve(stand)[known - 1]
        batch: IntArray = known[np.maximum(np.searchsorted(full, slo_ms, side="right") - 1, 0)]
        return batch

    def waits_ms(
        self, rate_rps: FloatArray, batch: IntArray, servers: IntArray, stand: int = WHOLE
    ) -> FloatArray:
        """The P99 of pools that stand there by the exact queue; all (pools,)."""
        profile = self.device.profiles[self.model]
        curve = self.curve(stand)
        curves = np.where(np.isfinite(curve), curve, 0.0) + np.zeros((rate_rps.size, 1))
        return waits(
            rate_rps, curves, batch, servers, np.zeros(rate_rps.size, dtype=np.bool_),
            np.full(rate_rps.size, profile.frontend_ms or 0.0), np.full(rate_rps.size, profile.jitter or 0.0),
            self.queues,
        ).p99_ms  # fmt: skip

    def asked(
        self, slo_ms: FloatArray, rate_rps: FloatArray, servers: IntArray, stand: int
    ) -> tuple[IntArray, BoolArray]:
        """The best batch of each pool that stands there (pools,), and whether the exact queue refuses it."""
        models, known, _ = self.alone.execution.shape
        curve = np.broadcast_to(self.curve(stand)[:, None], (models, known, 1))
        pools = Asked.of_pools(self.device, self.number, rate_rps / servers, slo_ms, servers)
        likely = tolerated(Alone(curve, curve), pools, self.rule)[0][:, 0]
        if stand != WHOLE:
            own = self.sides[stand - 1].batches
            likely = own[np.maximum(np.searchsorted(own, likely, side="right") - 1, 0)]
        batches = np.array([likely, self.patient_batch(slo_ms, stand)])
        waited = np.array([self.waits_ms(rate_rps * SPARE, batch, servers, stand) for batch in batches])
        best = waited.argmin(axis=0)[None]
        batch = np.take_along_axis(batches, best, axis=0)[0]
        return batch, np.take_along_axis(waited, best, axis=0)[0] > slo_ms

    def lowered(self, slo_ms: float, servers: int, stand: int) -> Market:
        """With pools there that carry less at this SLO and those near: with so many servers, or any."""
        truth = self.truth.copy()
        near = np.abs(np.log(self.slo_ms / slo_ms)) < NEAR
        # How pools of all sizes differ is known of whole GPUs only.
        several = slice(servers - 1, servers) if stand == WHOLE else slice(None)
        truth[stand, near, several] *= 1.0 - LESS
        return replace(self, truth=truth)

    def offers(self, hardship: float, left: Mapping[int, int]) -> Offers:
        """`hardship`: how many times neighbours' effect on a full batch a part feels.

        `left`: of pairs by number, how many of the other side stand without this one, if that is known.
        """
        counts = np.arange(1, MOST_SERVERS + 1)
        servers = np.repeat(counts, self.parts.count.size)
        cost = (self.price * counts[:, None] / self.parts.count).ravel()
        stand = np.tile(np.where(self.parts.count == 1, WHOLE, USUAL), counts.size)
        if self.model not in self.device.profiles:
            nothing = np.zeros((self.slo_ms.size, cost.size))
            return Offers(cost, nothing, servers, stand, np.zeros_like(servers), np.full(1, np.inf))
        slowed = SPARE * (1.0 + (self.parts.slowdown[self.number] - 1.0) * hardship)
        own = self.alone.execution[self.number], self.alone.cycle[self.number]
        own_slowed = own[0][:, self.parts.column] * slowed, own[1][:, self.parts.column] * slowed
        each = carried(self.device, self.model, *own_slowed, self.slo_ms, self.rule)
        rate = [(each * counts[:, None] * self.truth[WHOLE][..., None]).reshape(self.slo_ms.size, -1)]
        for n, side in enumerate(self.sides, 1):
            slow = side.execution[:, None] * SPARE, side.cycle[:, None] * SPARE
            each = carried(self.device, self.model, *slow, self.slo_ms, self.rule, side.batches)
            rate.append(each[..., 0] * counts * self.truth[n])
            half = LEFT_OVER if side.pair in left else 1.0
            cost = np.append(cost, self.price * side.cost * half * counts)
            servers, stand = np.append(servers, counts), np.append(stand, np.full_like(counts, n))
        rates = np.concatenate(rate, axis=1)
        order = np.lexsort((servers, cost))
        stock = np.array([np.inf, *(left.get(side.pair, np.inf) for side in self.sides)])
        return Offers(
            cost[order], rates[:, order], servers[order], stand[order], np.zeros_like(servers), stock
        )


@dataclass(frozen=True, slots=True)
class Offers:
    """What serves a group, (offers,): `cost`, how many `servers`, and where they `stand` (see `WHOLE`).

    `rate` (SLOs, offers) is what they carry per second within each SLO of a market, 0 for nothing. `stock`
    (stands,): of all servers that stand in one place there are no more, infinite where nobody counts.
    """

    cost: FloatArray
    rate: FloatArray
    servers: IntArray
    stand: IntArray
    market: IntArray
    stock: FloatArray

    @staticmethod
    def of_all(several: Sequence[Offers]) -> Offers:
        """Those of several markets with the same SLOs; `market` numbers them. Only one may have sides."""
        return Offers(
            np.concatenate([o.cost for o in several]), np.concatenate([o.rate for o in several], axis=1),
            np.concatenate([o.servers for o in several]), np.concatenate([o.stand for o in several]),
            np.concatenate([np.full(o.cost.size, n) for n, o in enumerate(several)]),
            max((o.stock for o in several), key=len),
        )  # fmt: skip

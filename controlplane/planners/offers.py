"""What groups of one model may cost: the cheapest servers that carry a rate within an SLO.

Only whole GPUs and equal parts of one are offered. Parts are taken to be slowed as by neighbours of the usual
kind; which partitions really stand together is the packing's to find.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planners import waiting
from controlplane.planners.board import JITTER_P99, ask, waits
from controlplane.planners.menu import FULL_BATCH, Alone, Asked, tolerated
from controlplane.planners.protocol import Device

PARTS = 8
"""The smallest share offered is this part of a GPU."""
USUAL_BATCH = 8
"""Of the neighbours that a part is measured beside."""
SPARE = 1.005
"""Every partition must tolerate this much more: a pool that the exact queue refuses takes a server more."""
LOOKS = 4
"""SLOs of a model that the exact queue is asked about."""
FARTHEST = (0.7, 1.1)
"""What it carries is found between these times what the table says."""
HALVINGS = 6


@dataclass(frozen=True, slots=True)
class Market:
    """Where offers for one model on one GPU type come from: `slo_ms` (SLOs,) rise, `price` is a GPU's.

    `truth` (SLOs, servers): what a pool of whole GPUs carries by the exact queue, over the table's word.
    """

    device: Device
    price: float
    alone: Alone
    model: str
    slo_ms: FloatArray
    rule: Rule
    quantile: float | None
    truth: FloatArray

    @staticmethod
    def of(
        device: Device, price: float, alone: Alone, model: str, slo_ms: FloatArray, rate_rps: float,
        rule: Rule, quantile: float | None,
    ) -> Market:  # fmt: skip
        """`rate_rps` is all that can be asked of a pool."""
        truth = np.ones((slo_ms.size, MOST_SERVERS))
        market = Market(device, price, alone, model, slo_ms, rule, quantile, truth)
        return market._heard(rate_rps) if rule is Rule.P99 and model in device.profiles else market

    def _heard(self, rate_rps: float) -> Market:
        """Ask the exact queue about some SLOs; between two of them, along the SLO's logarithm."""
        some = np.unique(np.quantile(self.slo_ms, np.linspace(0.0, 1.0, LOOKS), method="nearest"))
        whole = np.array([self.alone.execution.shape[2] - 1])
        index = self.device.latency.models.index(self.model)
        table = _carried(self.device, self.alone, index, whole, np.ones(1), some, self.rule)[:, :, 0]
        counts = np.arange(1, MOST_SERVERS + 1)
        useful = max(1, int(np.count_nonzero(table[-1] * (counts - 1) < rate_rps)))
        table, counts = table[:, :useful], counts[:useful]
        at = np.nonzero(table > 0.0)
        profile = self.device.profiles[self.model]
        slo, servers, rate = some[at[0]], counts[at[1]], table[at]
        last = Alone(self.alone.execution[:, :, -1:], self.alone.cycle[:, :, -1:])
        low, high = np.full(rate.size, FARTHEST[0]), np.full(rate.size, FARTHEST[1])
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            asked = Asked.of_pools(self.device, index, rate * middle, slo, servers)
            batch = tolerated(last, asked, self.rule)[0][:, 0]
            heard = waits(
                rate * middle * servers, last.execution[index, :, 0] + np.zeros((rate.size, 1)), batch,
                servers, asked.constant, np.full(rate.size, profile.frontend_ms or 0.0),
                np.full(rate.size, profile.jitter or 0.0),
            )  # fmt: skip
            kept = heard.p99_ms <= slo
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
        found = np.ones(table.shape)
        found[at] = low
        truth = np.ones((self.slo_ms.size, MOST_SERVERS))
        for n in range(MOST_SERVERS):
            known = found[:, min(n, useful - 1)]
            truth[:, n] = np.interp(np.log(self.slo_ms), np.log(some), known)
        return replace(self, truth=truth)

    def offers(self, hardship: float) -> Offers:
        """`hardship`: how many times neighbours' effect on a full batch a part feels."""
        counts = np.arange(1, MOST_SERVERS + 1)
        grid = np.array(self.device.pool.device.grid.percents())
        column = np.searchsorted(grid, 100.0 / np.arange(1, PARTS + 1) + 1e-9, side="right") - 1
        column = np.unique(column[column >= 0])[::-1]
        if self.model not in self.device.profiles:
            nothing = np.zeros((self.slo_ms.size, 1))
            return Offers(nothing + np.inf, nothing, nothing.astype(np.int64))
        index = self.device.latency.models.index(self.model)
        slowed = 1.0 + (_slowdowns(self.device, index, grid[column], self.quantile) - 1.0) * hardship
        each = _carried(self.device, self.alone, index, column, SPARE * slowed, self.slo_ms, self.rule)
        parts = np.floor(100.0 / grid[column] + 1e-9)
        cost = (self.price * counts[:, None] / parts).ravel()
        rate = (each * counts[:, None] * self.truth[..., None]).reshape(self.slo_ms.size, -1)
        servers = np.repeat(counts, column.size)
        order = np.lexsort((servers, cost))
        return Offers._rising(cost[order], rate[:, order], servers[order])


@dataclass(frozen=True, slots=True)
class Offers:
    """For each SLO of a market (rows) its offers, cheapest first; shapes (SLOs, offers).

    An offer carries `rate` requests per second for `cost` and is `servers` partitions. Those that a cheaper
    one outdoes have an infinite cost.
    """

    cost: FloatArray
    rate: FloatArray
    servers: IntArray

    @staticmethod
    def _rising(cost: FloatArray, rate: FloatArray, servers: IntArray) -> Offers:
        """Without offers that a cheaper one outdoes."""
        best = np.maximum.accumulate(rate, axis=1)
        better = np.diff(best, axis=1, prepend=0.0) > 0.0
        return Offers(
            np.where(better, cost, np.inf), best, np.where(better, servers, 0)
        )  # fmt: skip

    def of_row(self, row: int) -> Ladder:
        """The offers within one SLO."""
        known = np.isfinite(self.cost[row])
        return Ladder(
            self.rate[row, known].tolist(), self.cost[row, known].tolist(), self.servers[row, known].tolist()
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rising offers: rates per second, what they cost, with how many servers."""

    rate: list[float]
    cost: list[float]
    servers: list[int]

    def cheapest(self, rate: float) -> tuple[float, int]:
        """Cost and servers of the first offer that carries this; infinite and 0 where none does."""
        at = bisect_left(self.rate, rate)
        return (self.cost[at], self.servers[at]) if at < len(self.rate) else (math.inf, 0)


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


def _slowdowns(device: Device, model: int, percents: FloatArray, quantile: float | None) -> FloatArray:
    """How much a full batch is slowed by as many equal parts as fit; the mean over neighbours' models."""
    found = np.ones(percents.size)
    for n, percent in enumerate(percents.tolist()):
        beside = int(100.0 / percent + 1e-9) - 1
        if not beside:
            continue
        others = np.arange(len(device.latency.models))
        row = np.column_stack([np.full(others.size, model), np.repeat(others[:, None], beside, axis=1)])
        largest = np.array([device.profiles[m].largest_batch for m in device.latency.models])
        batch = np.minimum(USUAL_BATCH, largest)[row].astype(np.float64)
        together = Slots.of(row, batch, np.full(row.shape, percent))
        alone = Slots.alone(np.array([model]), batch[:1, :1].ravel(), np.array([percent]))
        slow, _ = ask(device.latency, together, quantile)
        base, _ = ask(device.latency, alone, quantile)
        found[n] = max(1.0, float(np.mean(slow[:, 0] / base[0, 0])))
    return found

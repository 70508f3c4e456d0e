"""What each share of each GPU type is worth to each item, before anybody stands beside it.

An item is what one partition serves: a workload, a server of a workload's pool, or several small workloads of
one model. For every share the menu names the batch that tolerates the most slowdown, and that slowdown. A set
of items then fits a GPU where each is slowed by no more than its share tolerates: the latency model is asked
for slowdowns only, and the queue not at all, while a plan is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, ShadowPlace, ShadowPolicy, Workload
from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planners import waiting
from controlplane.planners.board import JITTER_P99, ask
from controlplane.planners.protocol import Device
from controlplane.planners.verify import LARGEST_BATCH

POOL_CARE = 0.985
"""The table's pools come from one stream of arrivals; this much is left for its noise."""
WORTH = 0.01
"""A larger batch must tolerate this much more slowdown, relatively, to be chosen."""
AT_ONCE = 256
"""Items worked on together: bounds memory."""


@dataclass(frozen=True, slots=True)
class Item:
    """One partition's workloads. `servers`: of the pool it belongs to; its rate is one server's."""

    workloads: tuple[Workload, ...]
    servers: int = 1

    @property
    def model(self) -> str:
        """The one model of its workloads."""
        return self.workloads[0].model

    @property
    def rate_rps(self) -> float:
        """What arrives at one server."""
        return sum(w.rate_rps for w in self.workloads) / self.servers

    @property
    def slo_ms(self) -> float:
        """The strictest."""
        return min(w.slo_ms for w in self.workloads)

    @property
    def name(self) -> str:
        """Of its partition; servers of a pool append their number."""
        return "+".join(w.name for w in self.workloads)

    def memory_mb(self, device: Device) -> float | None:
        """Told, else measured, else unknown."""
        told = [w.memory_mb for w in self.workloads if w.memory_mb is not None]
        return max(told) if told else device.profiles[self.model].memory_mb

    def memory_with_shadow_mb(self, device: Device) -> float:
        """What it takes of its GPU, a hot shadow beside it included; 0 where unknown."""
        here = any(
            w.shadow.policy is ShadowPolicy.HOT and w.shadow.place is ShadowPlace.SAME_GPU
            for w in self.workloads
        )
        return (self.memory_mb(device) or 0.0) * (2.0 if here else 1.0)


@dataclass(frozen=True, slots=True)
class Alone:
    """Times of every model alone at every batch and share, (models, batches, shares), in ms."""

    execution: FloatArray
    cycle: FloatArray

    @staticmethod
    def of(device: Device, quantile: float | None) -> Alone:
        """Batches beyond a model's largest are infinite."""
        shares = np.array(device.pool.device.grid.percents())
        names = device.latency.models
        largest = [min(LARGEST_BATCH, device.profiles[n].largest_batch) for n in names]
        shape = (len(names), max(largest, default=1), shares.size)
        model, batch, percent = np.meshgrid(
            np.arange(shape[0]), np.arange(1, shape[1] + 1), shares, indexing="ij"
        )
        slots = Slots.alone(model.ravel(), batch.ravel(), percent.ravel())
        execution, cycle = (a.reshape(shape) for a in ask(device.latency, slots, quantile))
        # A larger batch or a smaller share is never faster, whatever a fit says.
        execution = np.maximum.accumulate(execution, axis=1)
        for m, most in enumerate(largest):
            execution[m, most:], cycle[m, most:] = np.inf, np.inf
        return Alone(execution, cycle)


@dataclass(frozen=True, slots=True)
class Correction:
    """How the exact queue differs from the table, per item (items,).

    `scale`: times the slowdown an item tolerates, alone. `excess`: neighbours slow small batches more than
    the full one that a latency model is asked about; their effect counts this many times.
    """

    scale: FloatArray
    excess: FloatArray

    @staticmethod
    def none(items: int) -> Correction:
        """The table as it is."""
        return Correction(np.ones(items), np.ones(items))


@dataclass(frozen=True, slots=True)
class Menu:
    """All items on one GPU type: rows are items, columns shares.

    `model` (items,); `batch`, `execution_tolerance` and `cycle_tolerance` (items, shares): a partition keeps
    its promise where execution and cycle are slowed by no more. `least` (items,) is the index of the smallest
    share that holds the item alone, the number of shares where none does. `memory_mb` (items,).
    """

    device: Device
    alone: Alone
    percents: FloatArray
    model: IntArray
    batch: IntArray
    execution_tolerance: FloatArray
    cycle_tolerance: FloatArray
    least: IntArray
    memory_mb: FloatArray

    @staticmethod
    def of(items: Sequence[Item], device: Device, rule: Rule, quantile: float | None, alone: Alone) -> Menu:
        """Items whose model has no profile fit nowhere."""
        percents = np.array(device.pool.device.grid.percents())
        index = {name: i for i, name in enumerate(device.latency.models)}
        model = np.array([index.get(i.model, -1) for i in items], dtype=np.int64)
        shape = (len(items), percents.size)
        batch = np.ones(shape, dtype=np.int64)
        execution, cycle = np.zeros(shape), np.zeros(shape)
        for m, name in enumerate(device.latency.models):
            for servers in sorted({i.servers for i in items}):
                chosen = [n for n, i in enumerate(items) if model[n] == m and i.servers == servers]
                for start in range(0, len(chosen), AT_ONCE):
                    rows = np.array(chosen[start : start + AT_ONCE])
                    some = [items[n] for n in rows.tolist()]
                    rate = np.array([i.rate_rps for i in some])
                    slo = np.array([i.slo_ms for i in some])
                    if rule is Rule.P99:
                        profile = device.profiles[name]
                        slo = slo - (profile.frontend_ms or 0.0)
                        found = _under_p99(alone, m, rate, slo, servers, JITTER_P99 * (profile.jitter or 0.0))
                    else:
                        found = _under_half_slo(alone, m, rate, slo)
                    batch[rows], execution[rows], cycle[rows] = found
        fits = (execution >= 1.0) & (cycle >= 1.0)
        least = np.where(fits.any(axis=1), fits.argmax(axis=1), percents.size)
        memory = np.array(
            [i.memory_with_shadow_mb(device) if model[n] >= 0 else 0.0 for n, i in enumerate(items)]
        )
        menu = Menu(device, alone, percents, model, batch, execution, cycle, least, memory)
        menu._one_batch_a_pool(items)
        if rule is Rule.P99:
            menu._calibrate_constant(items)
        return menu

    def _one_batch_a_pool(self, items: Sequence[Item]) -> None:
        """Servers of one queue serve the same batch: that of the share they would most likely get."""
        profiles = self.device.profiles
        for n, item in enumerate(items):
            if item.servers == 1 or self.least[n] == self.percents.size:
                continue
            m, profile = int(self.model[n]), profiles[item.model]
            fixed = int(self.batch[n, min(int(self.least[n]) + 1, self.percents.size - 1)])
            self.batch[n] = fixed
            if np.isinf(self.cycle_tolerance[n, 0]):
                self.execution_tolerance[n] = (
                    POOL_CARE
                    * waiting.tolerance(
                        np.array([item.rate_rps]),
                        np.array([max(item.slo_ms - (profile.frontend_ms or 0.0), 0.0)]),
                        self.alone.execution[m, fixed - 1],
                        self.alone.execution[m, 0],
                        item.servers,
                        waiting.BATCHES.index(fixed),
                        JITTER_P99 * (profile.jitter or 0.0),
                    )[0]
                )
            else:
                self.execution_tolerance[n] = item.slo_ms / 2.0 / self.alone.execution[m, fixed - 1]
                self.cycle_tolerance[n] = 1000.0 * fixed / item.rate_rps / self.alone.cycle[m, fixed - 1]
            fits = (self.execution_tolerance[n] >= 1.0) & (self.cycle_tolerance[n] >= 1.0)
            self.least[n] = int(fits.argmax()) if fits.any() else self.percents.size

    def _calibrate_constant(self, items: Sequence[Item]) -> None:
        """The table knows Poisson arrivals; where they are constant, scale to what the queue itself says."""
        from controlplane.latency import queueing

        for n, item in enumerate(items):
            if len(item.workloads) > 1 or item.workloads[0].arrivals is not Arrivals.CONSTANT:
                continue
            if self.model[n] < 0:
                continue
            for at in range(self.percents.size):
                b = int(self.batch[n, at])
                curve = self.alone.execution[self.model[n], :b, at]
                if not np.all(np.isfinite(curve)):
                    continue
                low, high = 0.0, 0.998 * 1000.0 * b / (item.rate_rps * curve[-1])
                for _ in range(10):
                    middle = (low + high) / 2.0
                    p99 = queueing.solve(
                        [item.rate_rps * item.servers], curve * middle, b, item.servers, Arrivals.CONSTANT
                    ).p99_ms[0]
                    low, high = (middle, high) if p99 <= item.slo_ms else (low, middle)
                self.execution_tolerance[n, at] = max(low, self.execution_tolerance[n, at])
            fits = self.execution_tolerance[n] >= 1.0
            self.least[n] = int(fits.argmax()) if fits.any() else self.percents.size

    def index_of(self, model: str) -> int:
        """A model's place in the latency model."""
        return self.device.latency.models.index(model)

    def smallest(self, slowdown: FloatArray | float) -> FloatArray:
        """The smallest share, in percent, at which each item tolerates this; infinite where none does."""
        asked = np.broadcast_to(slowdown, self.least.shape)[:, None]
        fits = (self.execution_tolerance >= asked) & (self.cycle_tolerance >= asked)
        return np.where(fits.any(axis=1), self.percents[fits.argmax(axis=1)], np.inf)

    def beside(self, slowdown: FloatArray | float) -> FloatArray:
        """As `smallest`; a whole GPU for an item that holds alone only."""
        size = self.smallest(slowdown)
        return np.where(np.isfinite(size) | ~np.isfinite(self.smallest(1.0)), size, 100.0)

    def corrected(self, by: Correction) -> Menu:
        """The same menu by what the exact queue said of each item."""
        scaled = self.execution_tolerance * by.scale[:, None]
        execution = 1.0 + (scaled - 1.0) / by.excess[:, None]
        fits = (execution >= 1.0) & (self.cycle_tolerance >= 1.0)
        least = np.where(fits.any(axis=1), fits.argmax(axis=1), self.percents.size)
        return replace(self, execution_tolerance=execution, least=least)


def _under_half_slo(
    alone: Alone, m: int, rate: FloatArray, slo: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    execution, cycle = alone.execution[m], alone.cycle[m]
    batch = np.arange(1, execution.shape[0] + 1, dtype=np.float64)
    slack = (slo / 2.0)[:, None, None] / execution
    keeps_up = (1000.0 / rate)[:, None, None] * (batch[:, None] / cycle)
    worst = np.minimum(slack, keeps_up)
    best = worst.argmax(axis=1)
    at = best[:, None, :]
    return (
        best + 1,
        np.take_along_axis(slack, at, axis=1)[:, 0],
        np.take_along_axis(keeps_up, at, axis=1)[:, 0],
    )


def _under_p99(
    alone: Alone, m: int, rate: FloatArray, slo: FloatArray, servers: int, jitter: float
) -> tuple[IntArray, FloatArray, FloatArray]:
    execution = alone.execution[m]
    shape = (rate.size, execution.shape[1])
    tolerances = []
    for k, b in enumerate(waiting.BATCHES):
        if b > execution.shape[0] or not np.isfinite(execution[b - 1]).all():
            break
        tolerances.append(
            waiting.tolerance(rate, np.maximum(slo, 0.0), execution[b - 1], execution[0], servers, k, jitter)
        )
    found = np.stack(tolerances)
    # The greedy batcher rarely fills a larger batch, and a smaller one disturbs neighbours less.
    enough = (found >= found.max(axis=0) * (1.0 - WORTH)).argmax(axis=0)
    best = np.take_along_axis(found, enough[None], axis=0)[0]
    batch = np.array(waiting.BATCHES)[enough]
    if servers > 1:
        best = best * POOL_CARE
    # A queue settles where even cycles would: execution is at least as long, so nothing more is asked.
    return batch, best, np.full(shape, np.inf)

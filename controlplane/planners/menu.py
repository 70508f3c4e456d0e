"""What each share of each GPU type is worth to each item, before anybody stands beside it.

An item is what one partition serves: a workload, a server of a workload's pool, or several small workloads of
one model. For every share the menu names the batch that tolerates the most slowdown, and that slowdown. A set
of items then fits a GPU where each is slowed by no more than its share tolerates: the latency model is asked
for slowdowns only, and the queue not at all, while a plan is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, ShadowPlace, ShadowPolicy, Workload
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planners import waiting
from controlplane.planners.board import JITTER_P99, ask
from controlplane.planners.protocol import Device
from controlplane.planners.verify import LARGEST_BATCH

POOL_CARE = 0.985
"""The table's pools come from one stream of arrivals; this much is left for its noise."""
WORTH = 0.01
"""A larger batch must tolerate this much more slowdown, relatively, to be chosen."""
FULL_BATCH = 0.6
"""A full batch takes no more of its SLO: what the table says of one that hardly ever fills is far off."""
TYPICAL_SLOWDOWN = 1.04
"""Beside average neighbours; only a guess."""
LONGEST_NAME = 120
"""Leaves room for a number."""
AT_ONCE = 256
"""Items worked on together: bounds memory."""


@dataclass(frozen=True, slots=True)
class Item:
    """One partition's workloads: one queue, held to the strictest SLO, their rates added.

    `servers`: of the pool it belongs to; its rate is one server's. `batch`: the one for all shares, None for
    each share's best.
    """

    workloads: tuple[Workload, ...]
    servers: int = 1
    batch: int | None = None

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
    def constant(self) -> bool:
        """Whether its arrivals are: several streams together are not."""
        return len(self.workloads) == 1 and self.workloads[0].arrivals is Arrivals.CONSTANT

    @property
    def name(self) -> str:
        """Of its partition: its shortest workload's, the first of them; servers of a pool append a number."""
        return min((w.name for w in self.workloads), key=lambda name: (len(name), name))[:LONGEST_NAME]

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
    share that holds the item alone, the number of shares where none does; `least_percent` that share,
    infinite where none does, and `likely_percent` what it probably takes beside others. `memory_mb` (items,).
    """

    device: Device
    alone: Alone
    percents: FloatArray
    model: IntArray
    batch: IntArray
    execution_tolerance: FloatArray
    cycle_tolerance: FloatArray
    memory_mb: FloatArray
    least: IntArray
    least_percent: FloatArray
    likely_percent: FloatArray

    @staticmethod
    def of(items: Sequence[Item], device: Device, rule: Rule, quantile: float | None, alone: Alone) -> Menu:
        """Items whose model has no profile fit nowhere."""
        # Servers of a pool are one item several times.
        distinct = list({id(i): i for i in items}.values())
        place = {id(i): n for n, i in enumerate(distinct)}
        asked = Asked.of(distinct, device)
        percents = np.array(device.pool.device.grid.percents())
        shape = (len(distinct), percents.size)
        batch = np.ones(shape, dtype=np.int64)
        execution, cycle = np.zeros(shape), np.zeros(shape)
        known = np.flatnonzero(asked.model >= 0)
        batch[known], execution[known], cycle[known] = tolerated(alone, asked.take(known), rule)
        told = np.array([i.batch or 0 for i in distinct], dtype=np.int64)
        _one_batch_a_pool(alone, asked, rule, told, batch, execution, cycle)
        if rule is Rule.P99:
            _calibrate_constant(alone, asked, batch, execution)
        memory = np.array(
            [
                i.memory_with_shadow_mb(device) if m >= 0 else 0.0
                for i, m in zip(distinct, asked.model, strict=True)
            ]
        )
        rows = np.array([place[id(i)] for i in items], dtype=np.int64)
        return Menu._of(
            device,
            alone,
            percents,
            asked.model[rows],
            batch[rows],
            execution[rows],
            cycle[rows],
            memory[rows],
        )

    @staticmethod
    def _of(
        device: Device, alone: Alone, percents: FloatArray, model: IntArray, batch: IntArray,
        execution: FloatArray, cycle: FloatArray, memory_mb: FloatArray,
    ) -> Menu:  # fmt: skip
        least, likely = _least(execution, cycle), _least(execution, cycle, TYPICAL_SLOWDOWN)
        size = np.append(percents, np.inf)
        beside = np.where(likely < percents.size, size[likely], size[least])
        return Menu(
            device, alone, percents, model, batch, execution, cycle, memory_mb, least, size[least], beside
        )

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
        return Menu._of(
            self.device, self.alone, self.percents, self.model, self.batch, execution, self.cycle_tolerance,
            self.memory_mb,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """Items as arrays (items,): rates are of one server, SLOs without the time outside the queue."""

    model: IntArray
    rate: FloatArray
    slo_ms: FloatArray
    queue_slo_ms: FloatArray
    servers: IntArray
    jitter: FloatArray
    constant: BoolArray

    @staticmethod
    def of(items: Sequence[Item], device: Device) -> Asked:
        """Models without a profile are -1."""
        index = {name: i for i, name in enumerate(device.latency.models)}
        model = np.array([index.get(i.model, -1) for i in items], dtype=np.int64)
        slo = np.array([i.slo_ms for i in items], dtype=np.float64)
        profiles = [device.profiles.get(i.model) for i in items]
        outside = np.array([(p.frontend_ms or 0.0) if p else 0.0 for p in profiles])
        return Asked(
            model,
            np.array([i.rate_rps for i in items], dtype=np.float64),
            slo,
            np.maximum(slo - outside, 0.0),
            np.array([i.servers for i in items], dtype=np.int64),
            JITTER_P99 * np.array([(p.jitter or 0.0) if p else 0.0 for p in profiles]),
            np.array([i.constant for i in items], dtype=np.bool_),
        )

    @staticmethod
    def of_pools(
        device: Device, model: int, rate: FloatArray, slo_ms: FloatArray, servers: IntArray
    ) -> Asked:
        """Pools of one model with Poisson arrivals."""
        profile = device.profiles[device.latency.models[model]]
        return Asked(
            np.full(rate.size, model),
            rate,
            slo_ms,
            np.maximum(slo_ms - (profile.frontend_ms or 0.0), 0.0),
            servers,
            np.full(rate.size, JITTER_P99 * (profile.jitter or 0.0)),
            np.zeros(rate.size, dtype=np.bool_),
        )

    def take(self, rows: IntArray) -> Asked:
        """These items."""
        return Asked(*(getattr(self, name)[rows] for name in Asked.__slots__))

    def tolerance(self, alone: Alone, batch_index: IntArray) -> FloatArray:
        """By the waiting table, with one batch for each item; 0 where its model knows no such batch."""
        batch = np.array(waiting.BATCHES)[batch_index]
        full = alone.execution[self.model, batch - 1]
        known = np.isfinite(full).all(axis=1)
        found = waiting.tolerance(
            self.rate, self.queue_slo_ms, np.where(known[:, None], full, 1.0), alone.execution[self.model, 0],
            self.servers, batch_index, self.jitter,
        )  # fmt: skip
        found *= np.where(self.servers > 1, POOL_CARE, 1.0)[:, None]
        return np.where(known[:, None], found, 0.0)


def _least(execution: FloatArray, cycle: FloatArray, slowdown: float = 1.0) -> IntArray:
    fits = (execution >= slowdown) & (cycle >= slowdown)
    return np.where(fits.any(axis=1), fits.argmax(axis=1), fits.shape[1])


def tolerated(alone: Alone, asked: Asked, rule: Rule) -> tuple[IntArray, FloatArray, FloatArray]:
    """The best batch of each item at each share of `alone`; by how much execution and cycle may be slowed."""
    shape = (asked.model.size, alone.execution.shape[2])
    batch = np.ones(shape, dtype=np.int64)
    execution, cycle = np.zeros(shape), np.zeros(shape)
    for start in range(0, asked.model.size, AT_ONCE):
        rows = np.arange(start, min(start + AT_ONCE, asked.model.size))
        batch[rows], execution[rows], cycle[rows] = _tolerated(alone, asked.take(rows), rule)
    return batch, execution, cycle


def _tolerated(alone: Alone, asked: Asked, rule: Rule) -> tuple[IntArray, FloatArray, FloatArray]:
    return (_under_p99 if rule is Rule.P99 else _under_half_slo)(alone, asked)


def _under_half_slo(alone: Alone, asked: Asked) -> tuple[IntArray, FloatArray, FloatArray]:
    execution, cycle = alone.execution[asked.model], alone.cycle[asked.model]
    batch = np.arange(1, execution.shape[1] + 1, dtype=np.float64)
    slack = (asked.slo_ms / 2.0)[:, None, None] / execution
    keeps_up = (1000.0 / asked.rate)[:, None, None] * (batch[:, None] / cycle)
    worst = np.minimum(slack, keeps_up)
    best = worst.argmax(axis=1)
    at = best[:, None, :]
    return (
        best + 1,
        np.take_along_axis(slack, at, axis=1)[:, 0],
        np.take_along_axis(keeps_up, at, axis=1)[:, 0],
    )


def _under_p99(alone: Alone, asked: Asked) -> tuple[IntArray, FloatArray, FloatArray]:
    batches = [b for b in waiting.BATCHES if b <= alone.execution.shape[1]]
    items = asked.model.size
    every = asked.take(np.tile(np.arange(items), len(batches)))
    found = every.tolerance(alone, np.repeat(np.arange(len(batches)), items))
    found = found.reshape(len(batches), items, -1)
    for k, batch in enumerate(batches[1:], 1):
        rarely = alone.execution[asked.model, batch - 1] > FULL_BATCH * asked.queue_slo_ms[:, None]
        found[k][rarely] = 0.0
    # The greedy batcher rarely fills a larger batch, and a smaller one disturbs neighbours less.
    enough = (found >= found.max(axis=0) * (1.0 - WORTH)).argmax(axis=0)
    best = np.take_along_axis(found, enough[None], axis=0)[0]
    # A queue settles where even cycles would: execution is at least as long, so nothing more is asked.
    return np.array(batches)[enough], best, np.full_like(best, np.inf)


def _one_batch_a_pool(
    alone: Alone, asked: Asked, rule: Rule, told: IntArray, batch: IntArray, execution: FloatArray,
    cycle: FloatArray,
) -> None:  # fmt: skip
    """Servers of one pool serve the same batch: as told, else that of the share they would likely get."""
    least = _least(execution, cycle)
    last = batch.shape[1] - 1
    rows = np.flatnonzero((told > 0) | ((asked.servers > 1) & (least <= last)))
    if not rows.size:
        return
    fixed = np.where(told[rows] > 0, told[rows], batch[rows, np.minimum(least[rows] + 1, last)])
    batch[rows] = fixed[:, None]
    pools = asked.take(rows)
    if rule is Rule.P99:
        execution[rows] = pools.tolerance(alone, np.searchsorted(waiting.BATCHES, fixed))
        return
    execution[rows] = pools.slo_ms[:, None] / 2.0 / alone.execution[pools.model, fixed - 1]
    full = (1000.0 * fixed / pools.rate)[:, None]
    cycle[rows] = full / alone.cycle[pools.model, fixed - 1]


def _calibrate_constant(alone: Alone, asked: Asked, batch: IntArray, execution: FloatArray) -> None:
    """The table knows Poisson arrivals; where they are constant, scale to what the queue itself says."""
    from controlplane.latency import queueing

    rows, shares = np.nonzero((asked.constant & (asked.model >= 0))[:, None] & (batch > 0))
    if not rows.size:
        return
    item, own = asked.take(rows), batch[rows, shares]
    sizes = np.minimum(np.arange(1, own.max() + 1), own[:, None])
    curves = alone.execution[item.model[:, None], sizes - 1, shares[:, None]]
    full = curves[:, -1]
    low, high = np.zeros(rows.size), 0.998 * 1000.0 * own / (item.rate * full)
    for _ in range(10):
        middle = (low + high) / 2.0
        slowed = curves * middle[:, None]
        p99 = queueing.solve(
            item.rate * item.servers, slowed, own, item.servers, [Arrivals.CONSTANT] * rows.size
        ).p99_ms
        kept = p99 + item.jitter * slowed[:, -1] <= item.queue_slo_ms
        low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    execution[rows, shares] = np.maximum(low, execution[rows, shares])

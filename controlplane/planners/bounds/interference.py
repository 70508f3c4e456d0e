"""Interference between partitions on one GPU, for the lower bound.

The latency model is asked about pairs on a lattice of shares and batches; between its points the least of the
corners counts. Several neighbours slow a partition by no less than the sum of what each does to it: a latency
model of which samples say otherwise has no `PairEffects`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planners.evaluation.evaluate import SLACK
from controlplane.planners.serving.gpu_types import GpuType
from controlplane.planners.serving.largest_rate import BatchTimes
from controlplane.planners.serving.lower_bound import (
    bound_batches,
    bound_pool_sizes,
    bound_rate,
    calibration_spread,
)

GROUPS = (1, 2, 4, 6, 10, 16)
"""Where a group of batches begins; it ends before the next."""
MOST_KNOTS = 40
"""Shares of the lattice besides the least one: all where the grid has steps of 2.5 %."""
_LATTICE_ERROR = 0.002
"""By how much less a pair may be slowed between the lattice's points; on the V100 catalogue 0.6 %,
where a batch size was measured side by side and those around it were not."""
_PAIRS = 2000
"""Pairs asked about to see whether it is more: then twice what was seen."""
_MOST_ERROR = 0.03
"""Beyond it the lattice says nothing about this latency model."""
LEVELS = 1.0 + np.concatenate(
    [
        np.arange(0.0, 0.02, 0.004),
        np.arange(0.02, 0.2, 0.01),
        np.arange(0.2, 0.3, 0.02),
        [0.3, 0.35, 0.4, 0.5],
    ]
)
"""Slowdowns that are distinguished; one counts as the next below."""
_SAMPLES = 500
"""Sets of four that a latency model is asked about."""


@dataclass(frozen=True, slots=True)
class PairEffects:
    """How much a neighbour slows a partition at least, relative to its time alone, less 1.

    `effect` (models, groups of batches, shares, models, groups, shares): the second three are the
    neighbour's; infinite where both do not fit. `models` are numbers of the latency model's, `batches` those
    of each group.
    """

    models: tuple[int, ...]
    batches: tuple[IntArray, ...]
    effect: FloatArray

    @staticmethod
    def of(gpu_type: GpuType, models: Sequence[int]) -> PairEffects | None:
        """None where a neighbour speeds something up or several do not add up.

        And where a model does not serve all batches, as one whose batches count requests of several
        inferences.
        """
        percents, batch = gpu_type.percents, bound_batches(gpu_type)
        if not np.isfinite(gpu_type.alone.execution[np.array(models)][:, batch - 1]).all():
            return None
        if not adds_up(gpu_type, models, batch):
            return None
        starts = np.array([b for b in GROUPS if b <= batch[-1]])
        group = np.searchsorted(starts, batch, side="right") - 1
        ends = np.array([batch[group == g][-1] for g in range(starts.size)])
        step = max(1, -(percents.size // -MOST_KNOTS))
        knots = np.unique(np.append(np.arange(percents.size - 1, 0, -step), 0))
        # Of a group the lesser effect at its ends, of a neighbour that of its smallest batch.
        at = _on_lattice(gpu_type, np.array(models), starts, starts, knots)
        for g in np.flatnonzero(ends > starts).tolist():
            more = _on_lattice(gpu_type, np.array(models), ends[g : g + 1], starts, knots)
            at[:, g] = np.minimum(at[:, g], more[:, 0])
        low = np.searchsorted(knots, np.arange(percents.size), side="right") - 1
        high = np.searchsorted(knots, np.arange(percents.size))
        at = np.minimum(at[:, :, low], at[:, :, high])
        at = np.minimum(at[..., low], at[..., high])
        error = _error(gpu_type, np.array(models), batch, group, at)
        if error > _MOST_ERROR or float(at.min()) < -error:
            return None
        at = np.maximum((1.0 + at) * (1.0 - error) - 1.0, 0.0)
        fits = percents[:, None] + percents <= 100.0 * (1.0 + SLACK)
        # In one memory layout, whatever that of the answers: else the kernels are compiled once more.
        effect = np.ascontiguousarray(np.where(fits[None, None, :, None, None, :], at, np.inf))
        return PairEffects(tuple(models), tuple(batch[group == g] for g in range(starts.size)), effect)

    @property
    def least(self) -> FloatArray:
        """By the least harmful neighbour that fits: (models, groups, shares)."""
        found: FloatArray = self.effect.min(axis=(3, 4, 5))
        return found

    @property
    def on_one(self) -> FloatArray:
        """How much a batch of one is slowed at least, relative to what the same neighbours do to a full one.

        (models, groups, shares); since neighbours add up it holds for several as for one.
        """
        slows = np.isfinite(self.effect) & (self.effect > 0.0)
        full = np.where(slows, self.effect, 1.0)
        found = np.where(slows, self.effect[:, :1] / full, np.inf).min(axis=(3, 4, 5))
        answer: FloatArray = np.where(np.isfinite(found), found, 0.0)
        return answer

    def slowed(self, gpu_type: GpuType, model: int, group: int, limit_ms: float) -> BatchTimes:
        """Times of a group of a model's batches; cases are `LEVELS`, the first alone."""
        alone, batches, m = gpu_type.alone, self.batches[group], self.models.index(model)
        in_time = alone.execution[model, batches - 1] <= limit_ms
        execution, cycle = (
            np.where(in_time, times[model, batches - 1], np.inf) * LEVELS[:, None, None]
            for times in (alone.execution, alone.cycle)
        )
        least = self.least[m, 0]
        effect = np.maximum(
            np.where(np.isfinite(least), least, 0.0), self.on_one[m, group] * (LEVELS[:, None] - 1.0)
        )
        effect[0] = 0.0
        return BatchTimes(batches, execution, cycle, alone.execution[model, 0] * (1.0 + effect))


@dataclass(frozen=True, slots=True)
class MutualRates:
    """What servers carry on one GPU type, by what their neighbours do to them.

    `rate` (groups of batches, levels, shares, classes of all families, pool sizes) is per second into one
    server; `span` (models, 2) are the classes of each model of `effects`, from and to.
    """

    effects: PairEffects
    rate: FloatArray
    span: IntArray

    @staticmethod
    def of(
        gpu_type: GpuType,
        limit_ms: Mapping[int, float],
        grouped: Sequence[Sequence[Workload]],
        slos: Sequence[FloatArray],
    ) -> MutualRates | None:
        """`grouped` are families, those of a model together, and `slos` the SLOs of each one's classes.

        `limit_ms` as in `FastestTimes.of`. None where no `PairEffects` are known.
        """
        effects = PairEffects.of(gpu_type, [*limit_ms])
        if effects is None:
            return None
        first = np.cumsum([0, *(s.size for s in slos)]).tolist()
        sizes = len(bound_pool_sizes(gpu_type.rule))
        shape = len(effects.batches), LEVELS.size, gpu_type.percents.size, first[-1], sizes
        rate, span = np.zeros(shape), np.zeros((len(effects.models), 2), dtype=np.int64)
        for family, slo, begin in zip(grouped, slos, first, strict=False):
            m = gpu_type.number_of(family[0].model)
            if m < 0:
                continue
            constant = family[0].arrivals is Arrivals.CONSTANT
            for g in range(len(effects.batches)):
                times = effects.slowed(gpu_type, m, g, limit_ms[m])
                most = bound_rate(gpu_type, family[0].model, times, slo, constant)
                # Slower is never better, whatever the table says.
                most = np.maximum.accumulate(most[:, :, ::-1], axis=2)[:, :, ::-1]
                rate[g, :, :, begin : begin + slo.size] = most.transpose(2, 3, 0, 1)
            row = span[effects.models.index(m)]
            row[:] = row[0] if row[1] else begin, begin + slo.size
        return MutualRates(effects, rate, span)


def _on_lattice(
    gpu_type: GpuType, models: IntArray, batch: IntArray, theirs: IntArray, knots: IntArray
) -> FloatArray:
    """Effects on `batch` by `theirs`: as `PairEffects.effect`, with shares at `knots` only."""
    percents = gpu_type.percents[knots]
    shape = (models.size, batch.size, knots.size, models.size, theirs.size, knots.size)
    found = np.full(shape, np.inf)
    # A corner beyond a full GPU is asked about: a share beside it may lie in its cell.
    near = percents[:, None] + percents <= 100.0 + 2.0 * np.diff(percents).max(initial=0.0)
    m, b, s, n, h, r = np.nonzero(np.broadcast_to(near[None, None, :, None, None, :], shape))
    pair = np.column_stack([models[m], models[n]])
    sizes = np.column_stack([batch[b], theirs[h]])
    execution, _ = gpu_type.ask(Slots.of(pair, sizes, np.column_stack([percents[s], percents[r]])))
    alone = gpu_type.alone.execution[models[m], batch[b] - 1, knots[s]]
    found[m, b, s, n, h, r] = execution[:, 0] / alone - 1.0
    return found


def _error(
    gpu_type: GpuType, models: IntArray, batch: IntArray, group: IntArray, effect: FloatArray
) -> float:
    """By how much less than `effect` (as in `PairEffects`) a pair may be slowed, relative to its time."""
    percents = gpu_type.percents
    chance = np.random.default_rng(0)
    share = chance.integers(0, percents.size, (4 * _PAIRS, 2))
    share = share[percents[share].sum(axis=1) <= 100.0][:_PAIRS]
    model, size = chance.choice(models.size, share.shape), chance.choice(batch.size, share.shape)
    slots = Slots.of(models[model], batch[size].astype(np.float64), percents[share])
    execution, _ = gpu_type.ask(slots)
    alone = gpu_type.alone.execution[models[model[:, 0]], batch[size[:, 0]] - 1, share[:, 0]]
    own, other = group[size].T
    least = 1.0 + effect[model[:, 0], own, share[:, 0], model[:, 1], other, share[:, 1]]
    return max(_LATTICE_ERROR, 2.0 * float((1.0 - execution[:, 0] / alone / least).max(initial=0.0)))


def adds_up(gpu_type: GpuType, models: Sequence[int], batch: IntArray) -> bool:
    """Whether, in samples, no neighbour speeds anything up and several slow by no less than their sum."""
    if calibration_spread(gpu_type.device.latency) > 1.0:
        return False
    percents, chance = gpu_type.percents, np.random.default_rng(0)
    # Small ones are drawn more often, else hardly any four would fit.
    drawn = percents[(percents.size * chance.random((100 * _SAMPLES, 4)) ** 3).astype(np.int64)]
    percent = drawn[drawn.sum(axis=1) <= 100.0][:_SAMPLES]
    model = chance.choice(models, percent.shape)
    size = chance.choice(batch, percent.shape).astype(np.float64)

    def times(*columns: int) -> FloatArray:
        at = list(columns)
        execution, _ = gpu_type.ask(Slots.of(model[:, at], size[:, at], percent[:, at]))
        return execution[:, 0]

    alone = times(0)
    one, two, three = (times(0, n) - alone for n in (1, 2, 3))
    slowed = [(alone + one, 0.0), (times(0, 1, 2), one + two), (times(0, 1, 2, 3), one + two + three)]
    return all(bool((found >= alone * (1.0 - 1e-9) + least).all()) for found, least in slowed)

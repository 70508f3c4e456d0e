"""How much neighbours slow a partition at least, and what it then carries: for the closer lower bound.

An option is a model, a group of batches and a share. The latency model is asked about every pair of options;
several neighbours slow a partition by no less than the sum of what each does to it. Samples check that, and
what they find less is taken from all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement, product

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planning.capacity.gpu_types import BatchTimes, GpuType
from controlplane.planning.capacity.lower_bound import wait_error
from controlplane.planning.capacity.p99_table import largest_rate, possible_batches

POOLS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 8))
"""Sizes of pools that are distinguished, from and to: each has the servers of the first, which carry what the
last one's do."""
LEVELS = np.array([*np.arange(0.0, 0.2, 0.01), 0.2, 0.225, 0.25, 0.3, 0.35, 0.4, 0.5])
"""Slowdowns that are distinguished, less 1; one counts as the next below."""
_GROUP_STARTS = (1, 2, 4, 8, 16, 32)
"""Where a group of batches begins; it ends before the next. Those that are measured side by side."""
_MOST_OPTIONS = 1500
_SAMPLES = 20_000
"""Sets of two, of three and of four partitions that the latency model is asked about."""
_LEAST_ERROR, _MOST_ERROR = 0.002, 0.03
"""Relative, of a time: twice what samples found is counted; beyond the latter nothing is said."""
_NEIGHBOUR_PERCENTS = (0.0, 10.0, 30.0, 60.0)
"""Shares of three neighbours: a fitted model does not always call the least share the least harmful."""
_ROWS_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True)
class PairEffects:
    """All options of one GPU type, and what one does to another at least.

    `model`, `group` and `share` (options,) are numbers; `batches` those of each group. `effect` (options,
    options): by how much the second slows the first, relative to its time alone; infinite where both do not
    fit. `by_three` (options,): by how much the least harmful three do. `on_one` (options,): how much a batch
    of one is slowed at least, relative to what slows the option.
    """

    gpu_type: GpuType
    batches: tuple[IntArray, ...]
    model: IntArray
    group: IntArray
    share: IntArray
    effect: FloatArray = field(default_factory=lambda: np.empty(0))
    by_three: FloatArray = field(default_factory=lambda: np.empty(0))
    on_one: FloatArray = field(default_factory=lambda: np.empty(0))

    @staticmethod
    def of(gpu_type: GpuType, models: IntArray) -> PairEffects | None:
        """Of these models; None where pairs do not say what several neighbours do, or are too many."""
        batch, percents = possible_batches(gpu_type), gpu_type.percents
        starts = np.array([b for b in _GROUP_STARTS if b <= batch[-1]])
        shape = models.size, starts.size, percents.size
        served = np.isfinite(gpu_type.alone.execution[models][:, batch - 1]).all()
        if not served or np.prod(shape) > _MOST_OPTIONS:
            return None
        number = np.searchsorted(starts, batch, side="right") - 1
        batches = tuple(batch[number == g] for g in range(starts.size))
        m, group, share = (index.ravel() for index in np.indices(shape))
        own = PairEffects(gpu_type, batches, models[m], group, share)
        effect = np.minimum(own._by_one(0), own._by_one(-1))
        three = np.minimum(own._by_three(models, 0), own._by_three(models, -1))
        errors = [own._error(width, lambda o: effect[o[:, :1], o[:, 1:]].sum(axis=1)) for width in (2, 3, 4)]
        pairs, threes = np.maximum.reduce(errors), own._error(4, lambda o: three[o[:, 0]])
        if max(pairs.max(), threes.max()) > _MOST_ERROR:
            return None
        effect = np.maximum((1.0 + effect) * (1.0 - pairs[:, None]) - 1.0, 0.0)
        three = np.maximum((1.0 + three) * (1.0 - threes) - 1.0, 0.0)
        single = effect.reshape(*shape, -1)[:, :1].repeat(starts.size, axis=1).reshape(effect.shape)
        slows = np.isfinite(effect) & (effect > 0.0)
        ratio = np.divide(single, effect, out=np.full(effect.shape, np.inf), where=slows).min(axis=1)
        on_one = np.where(np.isfinite(ratio), ratio, 0.0)
        return replace(own, effect=effect, by_three=three, on_one=on_one)

    @property
    def percent(self) -> FloatArray:
        """The share of each option."""
        return np.asarray(self.gpu_type.percents[self.share])

    def _by_one(self, place: int) -> FloatArray:
        """`effect` on the first or last batch of each group by the smallest of the neighbour's."""
        batch, percent = np.array([b[place] for b in self.batches])[self.group], self.percent
        least = np.array([b[0] for b in self.batches])[self.group]
        found = np.full((percent.size, percent.size), np.inf)
        own, other = np.nonzero(percent[:, None] + percent <= 100.0 + 1e-9)
        for start in range(0, own.size, _ROWS_AT_ONCE):
            a, b = own[start : start + _ROWS_AT_ONCE], other[start : start + _ROWS_AT_ONCE]
            beside = self.model[b][:, None], least[b][:, None], percent[b][:, None]
            found[a, b] = self._slowed(a, batch[a], beside)
        return found

    def _by_three(self, models: IntArray, place: int) -> FloatArray:
        """`by_three` on the first or last batch of each group."""
        batch, percent = np.array([b[place] for b in self.batches])[self.group], self.percent
        found = np.full(percent.size, np.inf)
        grid = self.gpu_type.percents
        shares = np.unique(grid[np.minimum(np.searchsorted(grid, _NEIGHBOUR_PERCENTS), grid.size - 1)])
        for share, three in product(shares, combinations_with_replacement(models.tolist(), 3)):
            a = np.flatnonzero(percent + 3.0 * share <= 100.0 + 1e-9)
            beside = np.array([three]), np.ones((1, 3)), np.full((1, 3), share)
            found[a] = np.minimum(found[a], self._slowed(a, batch[a], beside))
        return found

    def _slowed(
        self, option: IntArray, batch: IntArray, beside: tuple[FloatArray | IntArray, ...]
    ) -> FloatArray:
        """How much options with these batches are slowed, in time or in throughput, whichever is less.

        `beside` are models, batches and shares of the neighbours: (options, neighbours).
        """
        own = self.model[option], batch, self.percent[option]
        columns = [
            np.column_stack([mine, np.broadcast_to(theirs, (option.size, theirs.shape[1]))])
            for mine, theirs in zip(own, beside, strict=True)
        ]
        at, alone = (self.model[option], batch - 1, self.share[option]), self.gpu_type.alone
        execution, cycle = (times[:, 0] for times in self.gpu_type.ask(Slots.of(*columns)))
        return np.asarray(np.minimum(execution / alone.execution[at], cycle / alone.cycle[at]) - 1.0)

    def _error(self, width: int, felt: Callable[[IntArray], FloatArray]) -> FloatArray:
        """By how much less than `felt` the first of so many options may be slowed: (options,).

        With any batches; one for all shares of a model's group of batches.
        """
        chance, percent = np.random.default_rng(0), self.percent
        # Small shares are drawn more often, else hardly any four would fit.
        order = np.argsort(percent, kind="stable")
        drawn = order[(order.size * chance.random((50 * _SAMPLES, width)) ** (width - 1)).astype(np.int64)]
        option = drawn[percent[drawn].sum(axis=1) <= 100.0][:_SAMPLES]
        batch = np.choose(self.group[option], [chance.choice(b, option.shape) for b in self.batches])
        others = option[:, 1:]
        beside = self.model[others], batch[:, 1:], percent[others]
        ratio = (1.0 + self._slowed(option[:, 0], batch[:, 0], beside)) / (1.0 + felt(option))
        group = np.arange(percent.size) // self.gpu_type.percents.size
        least = np.ones(int(group[-1]) + 1)
        np.minimum.at(least, group[option[:, 0]], ratio)
        return np.asarray(np.maximum(_LEAST_ERROR, 2.0 * (1.0 - least))[group])

    def carried(self, model: int, slo_ms: FloatArray) -> FloatArray:
        """Requests per second into one server of each option of a model: (options, levels, SLOs, pools)."""
        gpu_type, alone = self.gpu_type, self.gpu_type.alone
        times = BatchTimes(alone.execution[model], alone.cycle[model])
        found = []
        for g, batches in enumerate(self.batches):
            here = (self.model == model) & (self.group == g)
            slowed = [times.slowed(1.0 + level) for level in LEVELS]
            # A batch of one beside the same neighbours.
            first = [1.0 + self.on_one[here] * level for level in LEVELS]
            execution = np.concatenate([t.execution for t in slowed], axis=1)
            execution[0] = np.concatenate([times.execution[0] * factor for factor in first])
            cycle = np.concatenate([t.cycle for t in slowed], axis=1)
            wait = np.tile(1.0 - wait_error(alone.execution[model], batches), LEVELS.size)
            asked = BatchTimes(execution, cycle)
            sizes = [last for _, last in POOLS]
            rate = largest_rate(gpu_type, gpu_type.models[model], asked, batches, slo_ms, sizes, wait)
            rate = rate.reshape(slo_ms.size, -1, LEVELS.size, gpu_type.percents.size)
            # Slower is never better, whatever the table says.
            rate = np.maximum.accumulate(rate[:, :, ::-1], axis=2)[:, :, ::-1]
            found.append(rate.transpose(3, 2, 0, 1))
        return np.concatenate(found)

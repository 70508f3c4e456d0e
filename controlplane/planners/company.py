"""What the partitions of a GPU do to each other, for the lower bound: who earns much also harms.

The latency model is asked about pairs on a lattice of shares and batches; between its points the least of the
corners counts. Several neighbours slow a partition by no less than the sum of what each does to it: a latency
model of which samples say otherwise has no `Company`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import FloatArray, IntArray, LatencyModel, Slots
from controlplane.planners.board import ask
from controlplane.planners.capacity import Fastest, batches_told_apart, bends, carried, pool_sizes
from controlplane.planners.contents import unsteady
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import Device
from controlplane.planners.standby import SLACK

GROUPS = (1, 2, 4, 6, 10, 16)
"""Where a group of batches begins; it ends before the next."""
MOST_KNOTS = 40
"""Shares of the lattice besides the least one: all where the grid has steps of 2.5 %."""
LATTICE_ERROR = 0.002
"""By how much less a pair may be slowed between the lattice's points; on the V100 catalogue 0.15 %."""
PAIRS = 2000
"""That are asked about to see whether it is more: then twice what was seen."""
MOST_ERROR = 0.02
"""Beyond it the lattice says nothing about this latency model."""
LEVELS = 1.0 + np.concatenate(
    [
        np.arange(0.0, 0.02, 0.004),
        np.arange(0.02, 0.2, 0.01),
        np.arange(0.2, 0.3, 0.02),
        [0.3, 0.35, 0.4, 0.5],
    ]
)
"""Slowdowns that are told apart; one counts as the next below."""
SAMPLES = 500
"""Companies of four that a latency model is asked about."""


@dataclass(frozen=True, slots=True)
class Company:
    """How much a neighbour slows a partition at least, relative to its time alone, less 1.

    `effect` (models, groups of batches, shares, models, groups, shares): the second three are the
    neighbour's; infinite where both do not fit. `models` as the latency model numbers them, `batches` those
    of each group.
    """

    models: tuple[int, ...]
    batches: tuple[IntArray, ...]
    effect: FloatArray

    @staticmethod
    def of(
        device: Device, alone: Alone, models: Sequence[int], batch: IntArray, quantile: float | None
    ) -> Company | None:
        """`batch` (batches,) rise.

        None where a neighbour speeds somebody up or several do not add up, and where a model does not serve
        all these batches, as one whose batches count requests of several inferences.
        """
        if not np.isfinite(alone.execution[np.array(models)][:, batch - 1]).all():
            return None
        percents = np.array(device.pool.device.grid.percents())
        if not adds_up(device.latency, models, batch, percents, quantile):
            return None
        starts = np.array([b for b in GROUPS if b <= batch[-1]])
        group = np.searchsorted(starts, batch, side="right") - 1
        ends = np.array([batch[group == g][-1] for g in range(starts.size)])
        step = max(1, -(percents.size // -MOST_KNOTS))
        knots = np.unique(np.append(np.arange(percents.size - 1, 0, -step), 0))
        # Of a group the lesser effect at its ends, of a neighbour that of its smallest batch.
        at = _asked(device, alone, np.array(models), starts, starts, knots, quantile)
        for g in np.flatnonzero(ends > starts).tolist():
            more = _asked(device, alone, np.array(models), ends[g : g + 1], starts, knots, quantile)
            at[:, g] = np.minimum(at[:, g], more[:, 0])
        low = np.searchsorted(knots, np.arange(percents.size), side="right") - 1
        high = np.searchsorted(knots, np.arange(percents.size))
        at = np.minimum(at[:, :, low], at[:, :, high])
        at = np.minimum(at[..., low], at[..., high])
        error = _error(device, alone, np.array(models), batch, group, at, quantile)
        if error > MOST_ERROR or float(at.min()) < -error:
            return None
        at = np.maximum((1.0 + at) * (1.0 - error) - 1.0, 0.0)
        fits = percents[:, None] + percents <= 100.0 * (1.0 + SLACK)
        # In one layout, whatever that of the answers: for another one all would be compiled once more.
        effect = np.ascontiguousarray(np.where(fits[None, None, :, None, None, :], at, np.inf))
        return Company(tuple(models), tuple(batch[group == g] for g in range(starts.size)), effect)

    @property
    def least(self) -> FloatArray:
        """By the least harmful neighbour that fits: (models, groups, shares)."""
        found: FloatArray = self.effect.min(axis=(3, 4, 5))
        return found

    @property
    def likewise(self) -> FloatArray:
        """How much a batch of one is slowed at least, relative to what the same neighbours do to a full one.

        (models, groups, shares); since neighbours add up it holds for several as for one.
        """
        slows = np.isfinite(self.effect) & (self.effect > 0.0)
        full = np.where(slows, self.effect, 1.0)
        found = np.where(slows, self.effect[:, :1] / full, np.inf).min(axis=(3, 4, 5))
        answer: FloatArray = np.where(np.isfinite(found), found, 0.0)
        return answer

    def slowed(self, alone: Alone, limit_ms: Mapping[int, float]) -> list[Fastest]:
        """Times of each group of batches at each of `LEVELS`, the first alone; see `Fastest`."""
        found = []
        times = LEVELS[:, None, None]
        least = self.least[:, 0]
        first = np.where(np.isfinite(least), least, 0.0)
        for batches, likewise in zip(self.batches, np.moveaxis(self.likewise, 1, 0), strict=True):
            shape = (LEVELS.size, len(alone.execution), batches.size, alone.execution.shape[2])
            execution, cycle = np.full(shape, np.inf), np.full(shape, np.inf)
            lone = np.full((shape[0], shape[1], shape[3]), np.inf)
            for n, m in enumerate(self.models):
                own = alone.execution[m, batches - 1]
                in_time = own <= limit_ms[m]
                execution[:, m] = np.where(in_time, own * times, np.inf)
                cycle[:, m] = np.where(in_time, alone.cycle[m, batches - 1] * times, np.inf)
                felt = np.maximum(first[n], likewise[n] * (LEVELS[1:, None] - 1.0))
                lone[0, m], lone[1:, m] = alone.execution[m, 0], alone.execution[m, 0] * (1.0 + felt)
            found.append(Fastest(batches, execution, cycle, lone, bends(alone, batches)))
        return found


@dataclass(frozen=True, slots=True)
class Mutual:
    """What servers carry on one GPU type, by what their neighbours do to them.

    `carried` (groups of batches, levels, shares, classes of all families, pool sizes) is per second into one
    server; `span` (models, 2) are the classes of each model of `company`, from and to.
    """

    company: Company
    carried: FloatArray
    span: IntArray

    @staticmethod
    def of(
        device: Device, alone: Alone, limit_ms: Mapping[int, float], grouped: Sequence[Sequence[Workload]],
        slos: Sequence[FloatArray], rule: Rule, quantile: float | None,
    ) -> Mutual | None:  # fmt: skip
        """`grouped` are families, those of a model together, and `slos` the SLOs of each one's classes.

        `limit_ms` as in `Fastest.of`. None where no `Company` is known.
        """
        company = Company.of(device, alone, [*limit_ms], batches_told_apart(alone, rule), quantile)
        if company is None:
            return None
        first = np.cumsum([0, *(s.size for s in slos)]).tolist()
        sizes = len(company.batches), LEVELS.size, alone.execution.shape[2], first[-1], len(pool_sizes(rule))
        told, span = np.zeros(sizes), np.zeros((len(company.models), 2), dtype=np.int64)
        for g, fastest in enumerate(company.slowed(alone, limit_ms)):
            for family, slo, begin in zip(grouped, slos, first, strict=False):
                if family[0].model not in device.latency.models:
                    continue
                m = device.latency.models.index(family[0].model)
                most = carried(fastest, device, m, slo, rule, family[0].arrivals is Arrivals.CONSTANT)
                # Slower is never better, whatever the table says.
                most = np.maximum.accumulate(most[:, :, ::-1], axis=2)[:, :, ::-1]
                told[g, :, :, begin : begin + slo.size] = most.transpose(2, 3, 0, 1)
                row = span[company.models.index(m)]
                row[:] = row[0] if row[1] else begin, begin + slo.size
        return Mutual(company, told, span)


def _asked(
    device: Device, alone: Alone, models: IntArray, batch: IntArray, theirs: IntArray, knots: IntArray,
    quantile: float | None,
) -> FloatArray:  # fmt: skip
    """Effects on the lattice, on `batch` by `theirs`: as `Company.effect`, with shares at `knots` only."""
    percents = np.array(device.pool.device.grid.percents())[knots]
    shape = (models.size, batch.size, knots.size, models.size, theirs.size, knots.size)
    told = np.full(shape, np.inf)
    # A corner beyond a full GPU is asked about: a share beside it may lie in its cell.
    near = percents[:, None] + percents <= 100.0 + 2.0 * np.diff(percents).max(initial=0.0)
    m, b, s, n, h, r = np.nonzero(np.broadcast_to(near[None, None, :, None, None, :], shape))
    slots = Slots.of(
        np.column_stack([models[m], models[n]]), np.column_stack([batch[b], theirs[h]]),
        np.column_stack([percents[s], percents[r]]),
    )  # fmt: skip
    execution, _ = ask(device.latency, slots, quantile)
    told[m, b, s, n, h, r] = execution[:, 0] / alone.execution[models[m], batch[b] - 1, knots[s]] - 1.0
    return told


def _error(
    device: Device, alone: Alone, models: IntArray, batch: IntArray, group: IntArray, effect: FloatArray,
    quantile: float | None,
) -> float:  # fmt: skip
    """By how much less than `effect` (as `Company.effect`) a pair may be slowed, relative to its time."""
    percents = np.array(device.pool.device.grid.percents())
    chance = np.random.default_rng(0)
    share = chance.integers(0, percents.size, (4 * PAIRS, 2))
    share = share[percents[share].sum(axis=1) <= 100.0][:PAIRS]
    who, size = chance.choice(models.size, share.shape), chance.choice(batch.size, share.shape)
    slots = Slots.of(models[who], batch[size].astype(np.float64), percents[share])
    told, _ = ask(device.latency, slots, quantile)
    slowed = told[:, 0] / alone.execution[models[who[:, 0]], batch[size[:, 0]] - 1, share[:, 0]]
    own, other = group[size].T
    least = 1.0 + effect[who[:, 0], own, share[:, 0], who[:, 1], other, share[:, 1]]
    return max(LATTICE_ERROR, 2.0 * float((1.0 - slowed / least).max(initial=0.0)))


def adds_up(
    latency: LatencyModel,
    models: Sequence[int],
    batch: IntArray,
    percents: FloatArray,
    quantile: float | None,
) -> bool:
    """Whether, in samples, nobody is faster beside a neighbour and several slow by no less than their sum."""
    if unsteady(latency) > 1.0:
        return False
    chance = np.random.default_rng(0)
    # Small ones are drawn more often, else hardly any four would fit.
    drawn = percents[(percents.size * chance.random((100 * SAMPLES, 4)) ** 3).astype(np.int64)]
    percent = drawn[drawn.sum(axis=1) <= 100.0][:SAMPLES]
    who = chance.choice(models, percent.shape)
    size = chance.choice(batch, percent.shape).astype(np.float64)

    def times(*columns: int) -> FloatArray:
        at = list(columns)
        told, _ = ask(latency, Slots.of(who[:, at], size[:, at], percent[:, at]), quantile)
        return told[:, 0]

    alone = times(0)
    one, two, three = (times(0, n) - alone for n in (1, 2, 3))
    room = alone * (1.0 - 1e-9)
    slowed = [(alone + one, 0.0), (times(0, 1, 2), one + two), (times(0, 1, 2, 3), one + two + three)]
    return all(bool((told >= room + least).all()) for told, least in slowed)

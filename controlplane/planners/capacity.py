"""The most that a partition can carry: requests per second by SLO, servers, neighbours and share.

What a plan's judge will find is no less kind than this: the least harmful neighbours that there can be, any
batch, and the waiting table's error taken in the partition's favour.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.planners import waiting
from controlplane.planners.board import JITTER_P99, ask
from controlplane.planners.contents import unsteady
from controlplane.planners.menu import Alone
from controlplane.planners.protocol import Device
from controlplane.planners.standby import SLACK

WAIT_ERROR = 0.05
"""The waiting table calls no P99 longer by more than this for the best of batches, shorter it may: that only
lowers the bound. It knows t(k) as a straight line: where that bends by more, the error is as large."""
NEIGHBOURS = 3
"""Whose number is told apart; more slow nobody less."""
FEW_MODELS = 6
"""With more models only one neighbour is looked at: their companies are too many to ask about."""
NEIGHBOUR_PERCENTS = (0.0, 10.0, 30.0, 60.0)
"""What neighbours may have: a fitted model does not always call the least share the least harmful."""
HARM_ERROR = 0.008
"""By how much those not asked about may be less harmful; on the V100 catalogue 0.7 %."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """Times in ms beside k neighbours, the least harmful ones: (k, models, batches, shares).

    The last k stands for all beyond it. Infinite where that many neighbours leave no such share, and where a
    batch alone takes too long. `batch` (batches,) names the batches, `first` (k, models, shares) is t(1),
    `bend` (models, batches, shares) see `bends`.
    """

    batch: IntArray
    execution: FloatArray
    cycle: FloatArray
    first: FloatArray
    bend: FloatArray

    @staticmethod
    def of(
        device: Device, alone: Alone, limit_ms: Mapping[int, float], rule: Rule, quantile: float | None,
        neighbours: int = NEIGHBOURS,
    ) -> Fastest:  # fmt: skip
        """Up to so many neighbours are told apart.

        `limit_ms`: models that may stand on this GPU type, as the latency model numbers them, with the time
        that a batch may take.
        """
        batch = batches_told_apart(alone, rule)
        models = sorted(limit_ms)
        most = neighbours if len(models) <= FEW_MODELS else min(neighbours, 1)
        shape = (most + 1, len(alone.execution), batch.size, alone.execution.shape[2])
        execution, cycle = np.full(shape, np.inf), np.full(shape, np.inf)
        for m, limit in limit_ms.items():
            in_time = alone.execution[m, batch - 1] <= limit
            execution[0, m] = np.where(in_time, alone.execution[m, batch - 1], np.inf)
            cycle[0, m] = np.where(in_time, alone.cycle[m, batch - 1], np.inf)
        asked = np.nonzero(np.isfinite(execution[0]))
        kind = 1.0 - HARM_ERROR
        for k in range(1, most + 1):
            for company in itertools.combinations_with_replacement(models, k):
                _beside(device, asked, company, batch, quantile, execution[k], cycle[k])
            execution[k] = np.maximum(execution[k] * kind, execution[k - 1])
            cycle[k] = np.maximum(cycle[k] * kind, cycle[k - 1])
        steady = unsteady(device.latency)
        first = execution[:, :, 0] / steady
        return Fastest(batch, execution / steady, cycle / steady, first, bends(alone, batch))


def _beside(
    device: Device, asked: tuple[IntArray, ...], company: Sequence[int], batch: IntArray,
    quantile: float | None, execution: FloatArray, cycle: FloatArray,
) -> None:  # fmt: skip
    """Lower both (models, batches, shares) to what they are beside these neighbours, where `asked`."""
    percents = np.array(device.pool.device.grid.percents())
    least = {float(percents[np.searchsorted(percents, p)]) for p in NEIGHBOUR_PERCENTS}
    for percent in sorted(least):
        fits = percents[asked[2]] + len(company) * percent <= 100.0 + SLACK
        if not fits.any():
            break
        m, b, s = (index[fits] for index in asked)
        width = (m.size, len(company))
        slots = Slots.of(
            np.column_stack([m, np.broadcast_to(company, width)]),
            np.column_stack([batch[b], np.ones(width)]),
            np.column_stack([percents[s], np.full(width, percent)]),
        )
        told, told_cycle = ask(device.latency, slots, quantile)
        execution[m, b, s] = np.minimum(execution[m, b, s], told[:, 0])
        cycle[m, b, s] = np.minimum(cycle[m, b, s], told_cycle[:, 0])


def bends(alone: Alone, batch: IntArray) -> FloatArray:
    """How far t(k) lies below the line from t(1) to t(b), relative to it: (models, batches, shares)."""
    found = np.zeros((len(alone.execution), batch.size, alone.execution.shape[2]))
    for n, b in enumerate(batch.tolist()):
        part = (np.arange(b) / max(b - 1, 1))[:, None]
        own = alone.execution[:, :b]
        known = np.where(np.isfinite(own), own, 1.0)
        line = known[:, :1] * (1.0 - part) + known[:, -1:] * part
        found[:, n] = (1.0 - known / line).max(axis=1)
    return found


def batches_told_apart(alone: Alone, rule: Rule) -> IntArray:
    """All that a partition may have, rising: under P99 those of the waiting table."""
    known = alone.execution.shape[1]
    return np.array([b for b in (waiting.BATCHES if rule is Rule.P99 else range(1, known + 1)) if b <= known])


def pool_sizes(rule: Rule) -> tuple[tuple[int, int], ...]:
    """Sizes of pools that are told apart, from and to: each carries what the largest does.

    Those of the waiting table: between two of them it calls some waits too long.
    """
    if rule is not Rule.P99:
        return ((1, MOST_SERVERS),)
    ends = (0, *(c for c in waiting.SERVERS if c < MOST_SERVERS), MOST_SERVERS)
    return tuple((before + 1, end) for before, end in itertools.pairwise(ends))


def carried(
    fastest: Fastest, device: Device, model: int, slo_ms: FloatArray, rule: Rule, constant: bool
) -> FloatArray:
    """Requests per second into one server: (SLOs, pool sizes, neighbours, shares), 0 where none does.

    `model` as the latency model numbers it; `slo_ms` (SLOs,). With constant arrivals nothing waits that need
    not, so only times and capacity count.
    """
    execution, cycle = fastest.execution[:, model], fastest.cycle[:, model]
    batch = fastest.batch[:, None]
    profile = device.profiles[device.latency.models[model]]
    room = 1.0 + SLACK
    if rule is not Rule.P99:
        most = 1000.0 * batch / cycle * room
        found = [np.where(execution <= d / 2.0 * room, most, 0.0).max(axis=1) for d in slo_ms]
        return np.array(found)[:, None]
    slo = (slo_ms - (profile.frontend_ms or 0.0)) * room
    first = fastest.first[:, model, None]
    if constant:
        most = 1000.0 * batch / execution
        found = [np.where(first <= d, most, 0.0).max(axis=1) for d in slo]
        return np.repeat(np.array(found)[:, None], len(pool_sizes(rule)), axis=1)
    from controlplane.planners.capacity_kernel import most_carried

    rows = np.array([most - 1 for _, most in pool_sizes(rule)])
    columns = np.searchsorted(waiting.BATCHES, fastest.batch)
    table = waiting.pools()[rows][:, columns] + JITTER_P99 * (profile.jitter or 0.0)
    full = np.where(np.isfinite(execution), execution, 1.0)
    thin = np.clip((first / full - 1.0 / batch) / np.maximum(1.0 - 1.0 / batch, 0.5), 0.0, 1.0)
    return most_carried(
        slo, execution, thin, first[:, 0], table, fastest.batch.astype(np.float64), np.array(waiting.LOADS),
        np.array(waiting.SHAPES), 1.0 - np.maximum(WAIT_ERROR, fastest.bend[model]),
    )  # fmt: skip

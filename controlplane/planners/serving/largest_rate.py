"""The most requests per second that a server carries within an SLO: the waiting-time table inverted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planners.evaluation.evaluate import SLACK
from controlplane.planners.evaluation.queues import JITTER_P99
from controlplane.planners.serving import waiting_times
from controlplane.planners.serving.gpu_types import AloneTimes, GpuType
from controlplane.planners.serving.tolerance import MOST_OF_SLO

POOL_SIZES = tuple(range(1, MOST_SERVERS + 1))
_SLOS_AT_ONCE = 64
"""Bounds memory, and keeps arrays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Times of one model in ms, for several cases of neighbours: what a largest rate is calculated from.

    `batch` (batches,) names the batches; `execution` and `cycle` are (cases, batches, shares), infinite where
    a batch is not possible; `first` (cases, shares) is t(1).
    """

    batch: IntArray
    execution: FloatArray
    cycle: FloatArray
    first: FloatArray


def largest_rate(
    times: BatchTimes,
    gpu_type: GpuType,
    model: str,
    slo_ms: FloatArray,
    pool_sizes: Sequence[int] = POOL_SIZES,
    wait_factor: FloatArray | float = 1.0,
    most_of_slo: float = math.inf,
) -> FloatArray:
    """Requests per second into one server, with the best batch: (SLOs, pool sizes, cases, shares).

    Waits count `wait_factor` (batches, shares) times; a batch larger than 1 takes at most `most_of_slo` of
    the SLO. Under half-SLO all pools carry the same, and both are without effect.
    """
    tolerant = 1.0 + SLACK
    if gpu_type.rule is not Rule.P99:
        capacity = 1000.0 * times.batch[:, None] / times.cycle * tolerant
        in_time = [times.execution <= slo / 2.0 * tolerant for slo in slo_ms]
        rates = np.array([np.where(held, capacity, 0.0).max(axis=1) for held in in_time])
        return np.repeat(rates[:, None], len(pool_sizes), axis=1)
    profile = gpu_type.device.profiles[model]
    queue_slo = (slo_ms - (profile.frontend_ms or 0.0)) * tolerant
    columns = np.searchsorted(waiting_times.BATCHES, times.batch)
    table = waiting_times.all_pool_sizes()[np.array(pool_sizes) - 1][:, columns]
    table = table + JITTER_P99 * (profile.jitter or 0.0)
    batch, first = times.batch[:, None], times.first[:, None]
    full = np.where(np.isfinite(times.execution), times.execution, np.inf)
    first_part = np.divide(first, full, out=np.ones_like(full), where=np.isfinite(full))
    shape = waiting_times.shape_of(first_part, batch)
    cell, part = waiting_times.between(shape)
    row, part = np.arange(batch.size)[:, None], part[..., None]
    waits = (1.0 - part) * table[:, row, cell] + part * table[:, row, cell + 1]
    # The least wait at this load or any higher: it must rise with the load.
    waits = np.minimum.accumulate(waits[..., ::-1], axis=-1)[..., ::-1]
    most, wait_ms, longest = 1000.0 * batch / full, full * wait_factor, np.where(batch > 1, full, 0.0)
    found = []
    for start in range(0, queue_slo.size, _SLOS_AT_ONCE):
        slo = queue_slo[start : start + _SLOS_AT_ONCE, None, None, None]
        late = (slo < first * wait_factor) | (longest > most_of_slo * slo)
        # (SLOs, pool sizes, cases, batches, shares)
        load = largest_loads((slo / wait_ms)[:, None], waits)
        found.append(np.where(late[:, None], 0.0, most * load).max(axis=3))
    return np.concatenate(found)


def largest_loads(allowed: FloatArray, waits: FloatArray) -> FloatArray:
    """The largest load at which a row of waits, in full batches' times, is at most `allowed`.

    `waits` (..., loads) rise along a row; `allowed` is broadcast against the other axes. Where a row bends
    up, no wait lies below the lines through the entries on either side; where it bends down, none below the
    line between these two.
    """
    loads, last = np.array(waiting_times.LOADS), waits.shape[-1] - 1
    at = np.full(np.broadcast_shapes(allowed.shape, waits.shape[:-1]), -1)
    for entry in range(last + 1):
        at += waits[..., entry] <= allowed
    inner = np.clip(at, 1, last - 1)
    rise = np.diff(waits)
    with np.errstate(divide="ignore"):
        slope = np.where(rise > 0.0, np.diff(loads) / rise, np.inf).ravel()
    row = np.arange(rise[..., 0].size).reshape(waits.shape[:-1])

    def along(begin: IntArray) -> FloatArray:
        """Where the line from entry `begin` to the next one reaches `allowed`."""
        low, rising = waits.ravel()[row * (last + 1) + begin], slope[row * last + begin]
        reached = np.maximum(loads[begin] + (allowed - low) * rising, loads[inner])
        return np.where(rising < np.inf, reached, loads[inner + 1])

    with np.errstate(invalid="ignore"):
        after = np.where(inner + 1 < last, along(np.minimum(inner + 1, last - 1)), np.inf)
        load = np.maximum(along(inner), np.minimum(along(inner - 1), after))
    load = np.minimum(load, loads[inner + 1])
    answer: FloatArray = np.where(at == last, 1.0, np.where(at <= 0, loads[np.minimum(at + 1, last)], load))
    return answer


def usual_rate(
    gpu_type: GpuType,
    model: str,
    alone: AloneTimes,
    slo_ms: FloatArray,
    batches: IntArray | None = None,
) -> FloatArray:
    """The rate that plans count on: (SLOs, servers, columns).

    `alone` holds a model's times (batches, columns) at whatever shares and beside whatever neighbours;
    `batches` are those that may be used, None for all.
    """
    known = alone.execution.shape[0]
    possible = np.arange(1, known + 1) if gpu_type.rule is not Rule.P99 else np.array(waiting_times.BATCHES)
    possible = possible[possible <= known]
    if batches is not None:
        possible = possible[np.isin(possible, batches)]
    execution, cycle = alone.execution[None, possible - 1], alone.cycle[None, possible - 1]
    times = BatchTimes(possible, execution, cycle, alone.execution[None, 0])
    return largest_rate(times, gpu_type, model, slo_ms, most_of_slo=MOST_OF_SLO)[:, :, 0]

"""The most requests per second that a server carries within an SLO: the waiting-time table inverted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.capacity import waiting_times
from controlplane.planning.capacity.gpu_types import AloneTimes, GpuType
from controlplane.planning.capacity.tolerance import MOST_OF_SLO
from controlplane.planning.judge.evaluate import SLACK
from controlplane.planning.judge.queues import JITTER_P99

POOL_SIZES = tuple(range(1, MOST_SERVERS + 1))
_SLOS_AT_ONCE = 64
"""Bounds memory, and keeps arrays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Times of one model in ms: what a largest rate is calculated from.

    `batch` (batches,) names the batches; `execution` and `cycle` are (batches, shares), infinite where a
    batch is not possible; `first` (shares,) is t(1).
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
    """Requests per second into one server, with the best batch: (SLOs, pool sizes, shares).

    Waits count `wait_factor` (batches, shares) times; a batch larger than 1 takes at most `most_of_slo` of
    the SLO. Under half-SLO all pools carry the same, and both are without effect.
    """
    batch, full, first = times.batch[:, None], times.execution, times.first
    if gpu_type.rule is not Rule.P99:
        in_time = full <= slo_ms[:, None, None] / 2.0 * (1.0 + SLACK)
        rates = np.where(in_time, 1000.0 * batch / times.cycle * (1.0 + SLACK), 0.0).max(axis=1)
        return np.repeat(rates[:, None], len(pool_sizes), axis=1)
    profile = gpu_type.device.profiles[model]
    queue_slo = (slo_ms - (profile.frontend_ms or 0.0)) * (1.0 + SLACK)
    waits = _waits(times, pool_sizes) + JITTER_P99 * (profile.jitter or 0.0)
    most, wait_ms, longest = 1000.0 * batch / full, full * wait_factor, np.where(batch > 1, full, 0.0)
    found = []
    for start in range(0, queue_slo.size, _SLOS_AT_ONCE):
        slo = queue_slo[start : start + _SLOS_AT_ONCE, None, None]
        late = (slo < first * wait_factor) | (longest > most_of_slo * slo)
        # (SLOs, pool sizes, batches, shares)
        load = largest_loads((slo / wait_ms)[:, None], waits)
        found.append(np.where(late[:, None], 0.0, most * load).max(axis=2))
    return np.concatenate(found)


def _waits(times: BatchTimes, pool_sizes: Sequence[int]) -> FloatArray:
    """The least P99 at each load or any higher, in full batches' times: (pool sizes, batches, shares, loads).

    It must rise with the load.
    """
    columns = np.searchsorted(waiting_times.BATCHES, times.batch)
    table = waiting_times.all_pool_sizes()[np.array(pool_sizes) - 1][:, columns]
    known = np.isfinite(times.execution)
    first_part = np.divide(times.first, times.execution, out=np.ones(known.shape), where=known)
    cell, part = waiting_times.between(waiting_times.shape_of(first_part, times.batch[:, None]))
    row, part = np.arange(times.batch.size)[:, None], part[..., None]
    waits = (1.0 - part) * table[:, row, cell] + part * table[:, row, cell + 1]
    return np.asarray(np.minimum.accumulate(waits[..., ::-1], axis=-1)[..., ::-1])


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
    times = BatchTimes(possible, alone.execution[possible - 1], alone.cycle[possible - 1], alone.execution[0])
    return largest_rate(times, gpu_type, model, slo_ms, most_of_slo=MOST_OF_SLO)

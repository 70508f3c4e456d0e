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
    from controlplane.planners.serving.largest_rate_kernel import largest_rates

    profile = gpu_type.device.profiles[model]
    queue_slo = (slo_ms - (profile.frontend_ms or 0.0)) * tolerant
    columns = np.searchsorted(waiting_times.BATCHES, times.batch)
    table = waiting_times.all_pool_sizes()[np.array(pool_sizes) - 1][:, columns]
    grid = np.array(waiting_times.LOADS), np.array(waiting_times.SHAPES)
    factor = np.broadcast_to(wait_factor, times.execution.shape[1:])
    waits = table + JITTER_P99 * (profile.jitter or 0.0)
    question = queue_slo, times.batch.astype(np.float64), times.execution, times.first
    answer: FloatArray = largest_rates(*question, waits, *grid, np.ascontiguousarray(factor), most_of_slo)
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

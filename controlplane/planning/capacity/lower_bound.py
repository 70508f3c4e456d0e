"""A lower bound of what plans cost.

Every request is put on the share that serves it for the least money, with table errors in its favour, without
neighbours, and with parts of GPUs for sale. Every model is loaded once, all of a GPU in one process, for the
part of its memory that it takes. The larger of both costs counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.calibration import Calibrated
from controlplane.latency.protocol import FloatArray, IntArray, LatencyModel
from controlplane.planning.capacity.gpu_types import BatchTimes, GpuType
from controlplane.planning.capacity.items import Group, families
from controlplane.planning.capacity.p99_table import largest_rate, possible_batches
from controlplane.planning.judge.evaluate import SLACK
from controlplane.planning.judge.placements import PROCESS, memory_of

_ROUNDING = 1e-6
_WAIT_ERROR = 0.05
"""The table says a P99 that is at most so much too long, for the best of batches. It knows t(k) as a straight
line: where t(k) bends by more, the error is as large."""


def lower_bound(workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType]) -> float:
    """A cost that no plan for these workloads goes below, if each of them fits some GPU."""
    if not workloads:
        return 0.0
    every_family = families(workloads, next(iter(gpu_types.values())).rule)
    of_shares = sum(_cost(family, gpu_types) for family in every_family)
    return attainable(max(of_shares, _memory_cost(workloads, gpu_types)), gpu_types)


def attainable(cost: float, gpu_types: Mapping[str, GpuType]) -> float:
    """The least that a plan which costs at least this can cost: whole GPUs where all cost the same."""
    prices = {gpu_type.price for gpu_type in gpu_types.values()}
    one = min(prices)
    return math.ceil(cost / one - _ROUNDING) * one if len(prices) == 1 and one else cost


def _cost(family: Group, gpu_types: Mapping[str, GpuType]) -> float:
    slo_ms, constant = np.array([w.slo_ms for w in family]), family[0].arrivals is Arrivals.CONSTANT
    cheapest = np.full(slo_ms.size, np.inf)
    for gpu_type in gpu_types.values():
        model = gpu_type.number_of(family[0].model)
        if model < 0:
            continue
        rate = bound_rate(gpu_type, family[0].model, slo_ms, constant)
        cost = np.broadcast_to(gpu_type.price * gpu_type.percents / 100.0, rate.shape)
        per_request = np.divide(cost, rate, out=np.full(rate.shape, np.inf), where=rate > 0.0)
        cheapest = np.minimum(cheapest, per_request.min(axis=1))
    rates = np.array([w.rate_rps for w in family])
    return float(rates[np.isfinite(cheapest)] @ cheapest[np.isfinite(cheapest)])


def _memory_cost(workloads: Sequence[Workload], gpu_types: Mapping[str, GpuType]) -> float:
    cost: dict[str, float] = {}
    for w in workloads:
        known = [_memory_part(w, t) * t.price for t in gpu_types.values() if t.number_of(w.model) >= 0]
        cost[w.model] = max(cost.get(w.model, 0.0), min(known, default=0.0))
    return sum(cost.values())


def _memory_part(workload: Workload, gpu_type: GpuType) -> float:
    """The part of a GPU's memory that a workload's model takes at least; 0 where that is unknown."""
    device = gpu_type.device.pool.device
    process_mb, needed_mb = device.hardware.get(PROCESS, 0.0), memory_of(workload, gpu_type.device, 1)
    if device.memory_mb is None or needed_mb is None:
        return 0.0
    return max(needed_mb - process_mb, 0.0) / max(device.memory_mb - process_mb, needed_mb)


def bound_rate(gpu_type: GpuType, model: str, slo_ms: FloatArray, constant: bool) -> FloatArray:
    """The most requests per second that any plan puts on one server: (SLOs, shares), 0 for none.

    At the same load a server of the largest pool waits least, but for 0.3 % of noise in the table.
    """
    alone, number, batches = gpu_type.alone, gpu_type.number_of(model), possible_batches(gpu_type)
    spread = calibration_spread(gpu_type.device.latency)
    times = BatchTimes(alone.execution[number] / spread, alone.cycle[number] / spread)
    if constant and gpu_type.rule is Rule.P99:
        # No request has to wait, so only times and capacity count.
        outside = gpu_type.device.profiles[model].frontend_ms or 0.0
        in_time = times.execution[0] <= (slo_ms[:, None] - outside) * (1.0 + SLACK)
        most = (1000.0 * batches[:, None] / times.execution[batches - 1]).max(axis=0)
        return np.where(in_time, most, 0.0)
    wait_factor = 1.0 - wait_error(alone.execution[number], batches)
    return largest_rate(gpu_type, model, times, batches, slo_ms, (MOST_SERVERS,), wait_factor)[:, 0]


def wait_error(execution: FloatArray, batch: IntArray) -> FloatArray:
    """How much too long the table's P99 may be, relatively: (batches, shares).

    At least as much as t(k) lies below the line from t(1) to t(b).
    """
    known = np.where(np.isfinite(execution), execution, 1.0)
    found = np.zeros((batch.size, known.shape[1]))
    for n, b in enumerate(batch.tolist()):
        part = (np.arange(b) / max(b - 1, 1))[:, None]
        line = known[0] * (1.0 - part) + known[b - 1] * part
        found[n] = (1.0 - known[:b] / line).max(axis=0)
    return np.maximum(_WAIT_ERROR, found)


def calibration_spread(latency: LatencyModel) -> float:
    """How much faster a model may be beside more neighbours than beside fewer, by measured factors."""
    if not isinstance(latency, Calibrated):
        return 1.0
    factors: dict[str, list[float]] = {}
    for f in latency.factors:
        factors.setdefault(f.model, [1.0]).append(f.factor)
    return max(max(own) / min(own) for own in factors.values())

"""The order in which requests of a partition with several models leave the gateway, from its plan. Pure.

Shortest predicted service first, in ranks whose times differ by a factor of two or more. Each rank further
back, a request lets later ones pass that come up to `overtake_ms` after it; ranks that a plan relies on go
strictly one before the other. A busy server does a millisecond of work in a millisecond, so this is the
deficit, in predicted milliseconds, from which on a request goes first: 0 is first come, first served,
and a very large one is shortest first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu
from controlplane.domain.serving import (
    LARGEST_DEFICIT_MS,
    LONGEST_MS,
    OVERTAKES_MS,
    PROMISE_WINDOW_S,
    Order,
    Precedence,
    ranks_of,
)

_NOISE = 2.0
"""Standard deviations of a Poisson count that a promise allows."""
_PLANNED_NOISE = 3.0
"""The same where a plan relies on the order: what chance puts back then counts against a P99."""
_OF_SLO = 0.5
"""The part of the strictest SLO that waiting work may take before a partition counts as overloaded."""


def order_of(plan: Plan, overtake_ms: int | None) -> Order:
    """Return the precedences of the plan's partitions in which several models take turns.

    With None only of those whose order the plan relies on. Leaves out partitions of pools, and those with a
    model whose time the plan does not predict.
    """
    partitions = Counter(placement.endpoint for _, _, placement in plan.placements())
    found: dict[str, Precedence] = {}
    for _, partition in plan.partitions():
        alone = all(partitions[placement.endpoint] == 1 for placement in partition.workloads)
        step_ms = OVERTAKES_MS if partition.ordered else overtake_ms
        if partition.turns and alone and step_ms is not None:
            found |= _precedences(partition, step_ms)
    return found


def with_errors(plan: Plan, errors: Mapping[tuple[str, str], float]) -> Plan:
    """Return the plan with its execution times multiplied by the errors of (model, type of GPU)."""

    def corrected(placement: Placement, gpu_type: str) -> Placement:
        planned, error = placement.predicted, errors.get((placement.model, gpu_type))
        if error is None or planned.execution_ms is None:
            return placement
        return replace(placement, predicted=replace(planned, execution_ms=error * planned.execution_ms))

    def partitions(gpu: PlannedGpu) -> tuple[Partition, ...]:
        return tuple(
            replace(p, workloads=tuple(corrected(w, gpu.type) for w in p.workloads)) for p in gpu.partitions
        )

    return replace(plan, gpus=tuple(replace(gpu, partitions=partitions(gpu)) for gpu in plan.gpus))


def _precedences(partition: Partition, overtake_ms: int) -> Order:
    batches = {served.model: served.batch for served in partition.models}
    times = {p.endpoint: p.predicted.execution_ms for p in partition.workloads}
    known = {endpoint: ms for endpoint, ms in times.items() if ms is not None}
    if len(known) < len(times):
        return {}
    ranks = ranks_of(known)
    if partition.ordered:
        planned = {served.model: served.rank or 0 for served in partition.models}
        ranks = {p.endpoint: planned[p.model] for p in partition.workloads}
    inside = requests_inside(partition)
    waiting = max(inside, _waiting_in_time(partition.workloads, batches, known))
    return {
        p.endpoint: Precedence(
            partition.id,
            min(ranks[p.endpoint] * overtake_ms, LONGEST_MS),
            inside,
            waiting,
            promised(p.requests_rps, _PLANNED_NOISE if partition.ordered else _NOISE),
            served_ms=max(1, round(known[p.endpoint] * p.client_batch / batches[p.model])),
            deficit_ms=0 if partition.ordered else min(overtake_ms, LARGEST_DEFICIT_MS),
        )
        for p in partition.workloads
    }


def requests_inside(partition: Partition) -> int:
    """Return how many requests a server holds at once: a full batch, and another that gathers meanwhile.

    The second keeps the server busy while an answer and a request pass the gateway. Where a plan relies on
    the order there is none: the judge counts that time, and what waits can still be passed.
    """
    clients = {model: min(p.client_batch for p in those) for model, those in partition.queues().items()}
    batch = max(max(1, s.batch // clients.get(s.model, 1)) * s.instances for s in partition.models)
    return batch if partition.ordered else 2 * batch


def promised(rate_rps: float, noise: float = _NOISE) -> int:
    """Return the requests that a promised rate allows in a window; Poisson arrivals stay below it."""
    expected = rate_rps * PROMISE_WINDOW_S
    return math.ceil(expected + noise * math.sqrt(expected))


def _waiting_in_time(
    workloads: Sequence[Placement], batches: Mapping[str, int], times_ms: Mapping[str, float]
) -> int:
    """Return how many requests, mixed as planned, are served within the allowed part of the strictest SLO."""
    rate = sum(p.requests_rps for p in workloads)
    busy = sum(p.rate_rps * times_ms[p.endpoint] / batches[p.model] for p in workloads)
    strictest_ms = min(p.slo_ms for p in workloads)
    return math.floor(_OF_SLO * strictest_ms * rate / busy) if busy > 0.0 else 0

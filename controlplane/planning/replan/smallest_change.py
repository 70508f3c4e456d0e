"""The smallest change of the running plan that holds other rates, and what its GPUs hold beyond those.

In this order: nothing that runs (the servers hold the rates as they are), only batches, then what costs
least, moves included: fewer servers of the pools, more of them, the GPUs whose promises break, everything.

Capacity comes in steps, of a batch or a GPU. What a step holds beyond the rates costs nothing, and a plan
that is for it needs no change before it is used up (`with_headroom`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from controlplane.domain.plan import MOST_SERVERS, Partition, Plan, PlannedGpu, Rule
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.placements import devices_left, gpu_of, largest_batch, with_partitions
from controlplane.planning.protocol import PlanRequest, Strategy
from controlplane.planning.replan.differences import Change, changes
from controlplane.planning.replan.reuse import cost_of, reused, with_stable_ids

_MULTIPLES = (1.5, 1.2, 1.1, 1.05)
"""Of the rates, tried when servers start anyway; each takes as long as a plan."""
_LARGEST = 2.0
_HALVINGS = 5

_Gpus = tuple[PlannedGpu, ...]


class Extent(StrEnum):
    """How much of what runs a plan changes."""

    NOTHING = "nothing"
    BATCHES = "batches"
    SERVERS = "servers"


@dataclass(frozen=True, slots=True)
class Changed:
    """A plan and how much it changes."""

    extent: Extent
    plan: Plan


def smallest_change(
    strategy: Strategy, request: PlanRequest, *, cheaper: bool = False, move_price: float = 1.0
) -> Changed:
    """The plan for a request that changes least about `request.previous`, which must be given.

    With `cheaper`, only a plan of lower cost is a reason to change anything. A share that starts anew counts
    as `move_price` times its cost. The plan may have infeasible workloads or violations, where no other one
    was found.
    """
    previous = request.previous
    assert previous is not None
    gpus = reused(previous, request)
    plan = None if gpus is None else judged(strategy, request, gpus)
    same = plan if plan is not None and plan.verified else None
    if same is not None and not cheaper:
        return Changed(Extent.NOTHING, same)
    if gpus is not None and not cheaper:
        other = _with_batches(gpus, request)
        plan = None if other is None else judged(strategy, request, other)
        if plan is not None and plan.verified:
            return Changed(Extent.BATCHES, plan)
    fresh = strategy.plan(request)
    others: list[Plan | None] = []
    if same is not None:
        others = [_without_spare_gpus(strategy, request, previous)]
    elif gpus is not None:
        most = burden(previous, fresh, move_price) if holds(fresh) else math.inf
        if (more := with_more_servers(gpus, request, most)) is not None:
            others = [judged(strategy, request, with_stable_ids(more, previous))]
        others.append(_repaired(strategy, request, gpus, previous))
    held = [plan for plan in (*others, fresh) if plan is not None and holds(plan)]
    best = min(held, key=lambda plan: burden(previous, plan, move_price), default=fresh)
    if same is not None and (not held or burden(previous, best, move_price) >= cost_of(same.gpus)):
        return Changed(Extent.NOTHING, same)
    return Changed(Extent.SERVERS, best)


def burden(before: Plan, after: Plan, move_price: float) -> float:
    """The cost of a plan and of the shares that start anew for it."""
    return cost_of(after.gpus) + move_price * moved_cost(before, after)


def moved_cost(before: Plan, after: Plan) -> float:
    """The cost of what runs twice while one plan replaces the other: of each partition that starts anew."""
    found = changes(before, after)
    started = {c.partition for c in found} - {c.partition for c in found if c.change is Change.STOPPED}
    free = not any(g.price_per_hour for g in after.gpus)
    return sum(
        partition.percent / 100.0 * (1.0 if free else gpu.price_per_hour)
        for gpu, partition in after.partitions()
        if partition.id in started
    )


def holds(plan: Plan) -> bool:
    """Whether every workload is served within its SLO."""
    return plan.verified and not plan.infeasible


def judged(strategy: Strategy, request: PlanRequest, gpus: Sequence[PlannedGpu]) -> Plan:
    """A plan of these GPUs for a request, which may have violations."""
    return finalise(strategy.name, request, Draft(tuple(gpus)), request.clock.monotonic())


def _without_spare_gpus(strategy: Strategy, request: PlanRequest, left: Plan) -> Plan | None:
    """The running plan without the GPUs that its pools can spare, which starts no server; None for none.

    The GPU with the smallest part of its workloads' rates goes first.
    """
    spared, total = None, _rates(left.gpus)
    for gpu in sorted(left.gpus, key=lambda g: sum(r / total[n] for n, r in _rates((g,)).items())):
        fewer = replace(left, gpus=tuple(g for g in left.gpus if g.id != gpu.id))
        gpus = reused(fewer, request)
        plan = None if gpus is None else judged(strategy, request, gpus)
        if plan is not None and plan.verified:
            left, spared = fewer, plan
    return spared


def _rates(gpus: Sequence[PlannedGpu]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for w in (w for g in gpus for p in g.partitions for w in p.workloads):
        rates[w.name] = rates.get(w.name, 0.0) + w.rate_rps
    return rates


def _with_batches(gpus: Sequence[PlannedGpu], request: PlanRequest) -> _Gpus | None:
    """The GPUs with the best batches where a promise breaks; None where batches alone keep not all of them.

    A server's batch is what its neighbours wait beside, so what is late is looked at again after each choice.
    """
    present = tuple(gpus)
    pressure = pressure_of(present, request)
    while late := late_of(pressure):
        first = min(late)
        tried = [(pressure_of(other, request), other) for other in _other_batches(present, first, request)]
        better = [(p, o) for p, o in tried if p[first] <= 1.0 and late_of(p) < late]
        if not better:
            return None
        pressure, present = min(better, key=lambda one: one[0][first])
    return present


def _other_batches(gpus: _Gpus, late: str, request: PlanRequest) -> Iterator[_Gpus]:
    """The GPUs with each other batch of a partition, and of the whole pool that it belongs to."""
    type_of = {p.id: g.type for g in gpus for p in g.partitions}
    partition = next(p for g in gpus for p in g.partitions if p.id == late)
    names = _names(partition)
    pool = {p.id for g in gpus for p in g.partitions if _names(p) == names}
    for model in partition.models:
        size = max(w.client_batch for w in partition.workloads if w.model == model.model)
        largest = min(largest_batch(request.devices[type_of[i]], model.model, size) for i in pool)
        for batch in range(size, largest + 1, size):
            if batch == model.batch:
                continue

            def changed(p: Partition, name: str = model.model, batch: int = batch) -> Partition:
                models = tuple(replace(m, batch=batch) if m.model == name else m for m in p.models)
                return replace(p, models=models) if p.id in pool else p

            yield with_partitions(gpus, changed)


def with_more_servers(gpus: _Gpus, request: PlanRequest, most_cost: float) -> _Gpus | None:
    """The GPUs with as many further servers as late pools need, each like those of its pool.

    A server goes to the fullest GPU that has room for it and whose other promises it does not break, else to
    one GPU more. None where that is not enough, or costs more than `most_cost`.
    """
    present, pressure = gpus, pressure_of(gpus, request)
    while late := late_of(pressure):
        for other in _with_one_more(present, min(late), request):
            after = pressure_of(other, request)
            if late_of(after) & pressure.keys() <= late:
                present, pressure = other, after
                break
        else:
            return None
        if cost_of(present) > most_cost:
            return None
    return present


def _with_one_more(gpus: _Gpus, late: str, request: PlanRequest) -> Iterator[_Gpus]:
    """The GPUs with one server more in the pool of a partition, on each GPU with room and on one more."""
    home, like = next((g, p) for g in gpus for p in g.partitions if p.id == late)
    names = _names(like)
    servers = sum(_names(p) == names for g in gpus for p in g.partitions)
    if servers == MOST_SERVERS or len(like.models) > 1:
        return

    def fewer(partition: Partition) -> Partition:
        if _names(partition) != names:
            return partition
        part = servers / (servers + 1)
        workloads = tuple(replace(w, rate_rps=part * w.rate_rps) for w in partition.workloads)
        return replace(partition, workloads=workloads)

    spread = with_partitions(gpus, fewer)
    further = replace(fewer(like), id=f"{late}+{servers}")
    for at, gpu in sorted(enumerate(spread), key=lambda one: -one[1].percent):
        if gpu.type == home.type and gpu.percent + further.percent <= 100.0:
            fuller = replace(gpu, partitions=(*gpu.partitions, further))
            yield (*spread[:at], fuller, *spread[at + 1 :])
    device = request.devices[home.type]
    used = sum(g.type == home.type for g in gpus)
    if device.pool.count is None or used < device.pool.count:
        yield (*spread, replace(gpu_of(0, device, [further]), id=f"more-{used}"))


def _repaired(
    strategy: Strategy, request: PlanRequest, gpus: Sequence[PlannedGpu], previous: Plan
) -> Plan | None:
    """A plan in which only GPUs with broken promises are planned anew; None where it holds not everything."""
    touched = _touched(gpus, late_of(pressure_of(gpus, request)))
    left = [g for g in gpus if g.id not in touched]
    devices = devices_left(request.devices, left)
    if not touched or not left or not devices:
        return None
    names = {name for g in gpus if g.id in touched for p in g.partitions for name in _names(p)}
    workloads = tuple(w for w in request.workloads if w.name in names)
    anew = strategy.plan(replace(request, workloads=workloads, devices=devices, previous=None))
    if not holds(anew):
        return None
    bare = with_partitions(anew.gpus, lambda p: replace(p, shadow=None))
    renamed = [replace(g, id=f"anew-{g.id}") for g in bare]
    plan = judged(strategy, request, with_stable_ids((*left, *renamed), previous))
    return plan if holds(plan) else None


def _touched(gpus: Sequence[PlannedGpu], late: set[str]) -> set[str]:
    """The GPUs with these partitions, and those that share a pool with one of them."""
    touched = {g.id for g in gpus if any(p.id in late for p in g.partitions)}
    while True:
        names = {name for g in gpus if g.id in touched for p in g.partitions for name in _names(p)}
        more = {g.id for g in gpus if any(names & _names(p) for p in g.partitions)}
        if more <= touched:
            return touched
        touched |= more


def _names(partition: Partition) -> frozenset[str]:
    return frozenset(w.name for w in partition.workloads)


# -- how near a running plan is to its limits ------------------------------------------------------------


def pressure_of(gpus: Sequence[PlannedGpu], request: PlanRequest) -> dict[str, float]:
    """What each partition is expected to need of its strictest limit: above 1 a promise breaks."""
    pressure: dict[str, float] = {}
    by_p99 = request.rule is Rule.P99
    for one in judge(gpus, request.devices, Terms(request.rule, request.deciding_quantile)):
        used = one.p99_ms / one.slo_ms if by_p99 else one.execution_ms / (one.slo_ms * 0.5)
        own = min(used, 1.0) if one.meets_slo else math.inf
        pressure[one.partition.id] = max(pressure.get(one.partition.id, 0.0), own)
    return pressure


def late_of(pressure: Mapping[str, float]) -> set[str]:
    """The partitions that break a promise."""
    return {name for name, own in pressure.items() if own > 1.0}


# -- more than the rates asked for -----------------------------------------------------------------------


def with_headroom(
    strategy: Strategy,
    request: PlanRequest,
    changed: Changed,
    *,
    cheaper: bool = False,
    move_price: float = 1.0,
) -> tuple[Changed, float]:
    """The change for a common multiple of the rates, at no higher cost, and the multiple.

    Where servers start anyway, other shares are tried; of those, the plan that holds most for what it moves.
    Where none starts, what runs stays as it is.
    """
    previous = request.previous
    assert previous is not None
    options = [(changed, 1.0)]
    if changed.extent is Extent.SERVERS and moved_cost(previous, changed.plan) > 0.0:
        for multiple in _MULTIPLES:
            scaled = _scaled(request, multiple)
            more = smallest_change(strategy, scaled, cheaper=cheaper, move_price=move_price)
            if holds(more.plan) and cost_of(more.plan.gpus) <= cost_of(changed.plan.gpus):
                options.append((more, multiple))
    found = []
    for option, multiple in options:
        plan, further = _stretched(strategy, _scaled(request, multiple), option.plan)
        found.append((replace(option, plan=plan), multiple * further))

    def held_for_moves(one: tuple[Changed, float]) -> float:
        """How far the rates may grow until the next change, for each share that starts anew."""
        moved = moved_cost(previous, one[0].plan)
        return math.log(one[1]) / moved if moved > 0.0 else math.inf

    return max(found, key=held_for_moves)


def _stretched(strategy: Strategy, request: PlanRequest, plan: Plan) -> tuple[Plan, float]:
    """The plan at the highest multiple that its servers hold as they are, to a thirtieth; the multiple."""
    low, step, best = 1.0, _LARGEST - 1.0, plan
    for _ in range(_HALVINGS):
        step /= 2.0
        scaled = _scaled(request, low + step)
        gpus = reused(plan, scaled)
        tried = None if gpus is None else judged(strategy, scaled, gpus)
        if tried is not None and tried.verified:
            low, best = low + step, tried
    return best, low


def _scaled(request: PlanRequest, multiple: float) -> PlanRequest:
    workloads = tuple(replace(w, rate_rps=multiple * w.rate_rps) for w in request.workloads)
    return replace(request, workloads=workloads)

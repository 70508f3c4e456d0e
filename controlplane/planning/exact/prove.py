"""The best plan of a small case, or the proof that a plan is the best: an integer program over GPU patterns.

    min   sum_p price_p y_p           y_p: how many GPUs hold the pattern p
    s.t.  sum_(k serves w) x_k = 1    every workload w is served in one way k, perhaps with others
          sum_p a_kp y_p >= c_k x_k   each of a service's c_k servers stands somewhere
          sum_p y_p <= count          over the patterns of one GPU type

Patterns are enumerated by tables whose error is taken in their favour; the exact queue is asked about those
that a solution uses, and what it refuses is removed, until a solution stands. The relaxation comes first:
where it costs as much as the plan to beat, that plan is proven best and no integer program is solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from controlplane.domain.plan import Plan, PlannedGpu
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.capacity.client_batches import InRequests
from controlplane.planning.capacity.context import Context
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.lower_bound import attainable, lower_bound
from controlplane.planning.capacity.options import serving_options
from controlplane.planning.capacity.sizing import SizedGpu, planned_gpus
from controlplane.planning.exact.closer_bound import closer_bound
from controlplane.planning.exact.patterns import Patterns, Services, patterns_of, settle
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.queues import QueueCache
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.reuse import with_stable_ids

OPTIMAL = "optimal"
"""`Totals.stopped_by` of a plan that is proven to be the cheapest."""
MOST_WORKLOADS = 12
MOST_PATTERNS = 25_000
"""Of one GPU type: a larger case is left to search and lower bound."""
_MOST_ROUNDS = 200
"""Programs solved, relaxed ones included."""
_MOST_NODES = 5000
"""Of one integer program's tree."""
_NEAR, _AT_ONCE = 0.05, 40
"""Patterns that cost so little more than they are worth, of a GPU's price, are asked about early."""
_USED = 1e-6
_SAME_COST = 1e-6


def prove(plan: Plan, request: PlanRequest) -> Plan:
    """The plan for `request` with what is proven of it, or a cheaper plan that is proven best.

    More than `MOST_WORKLOADS` workloads get a closer bound alone. Plans in which models take turns or shadows
    cover what is demanded are left as they are. *Best* means: over the services and patterns of `patterns`,
    with the best batch at each share.
    """
    demanded = any(w.shadow.covers is not None for w in request.workloads)
    if demanded or any(partition.turns for _, partition in plan.partitions()):
        return plan
    started = request.clock.monotonic()
    in_requests = InRequests.of(request)
    proof = _proof(plan, Context.of(in_requests.request, started))
    if proof.gpus is not None:
        draft = in_requests.counted_back(Draft(proof.gpus))
        served = {w.name for gpu in draft.gpus for p in gpu.partitions for w in p.workloads}
        refused = tuple(i for i in plan.infeasible if i.workload not in served)
        gpus = draft.gpus if request.previous is None else with_stable_ids(draft.gpus, request.previous)
        plan = finalise(plan.strategy, request, replace(draft, gpus=gpus, infeasible=refused), started)
    assert plan.totals is not None
    bounded = Draft(()).bounded(proof.bound, request.devices)
    totals = replace(
        plan.totals,
        lower_bound_cost_per_hour=bounded.bound_cost_per_hour,
        lower_bound_gpus=bounded.bound_gpus,
        stopped_by=OPTIMAL if proof.proven else plan.totals.stopped_by,
    )
    return replace(plan, totals=totals)


def _proof(plan: Plan, context: Context) -> Answer:
    """The bound, whether the plan is proven best, and a better plan's GPUs; `context` counts requests."""
    workloads, types = context.request.workloads, context.gpu_types
    refused = {i.workload for i in plan.infeasible}
    options = serving_options([(w,) for w in workloads], types)
    possible = [w for w, own in zip(workloads, options, strict=True) if own]
    without_gpu = any(w.name in refused for w in possible)
    if without_gpu:
        # Perhaps all fit after all, placed otherwise.
        answer = solve(possible, types, math.inf, context.stop)
        if answer is not None and answer.gpus is not None and _holds(answer.gpus, context.request):
            return answer
    placed = [w for w in workloads if w.name not in refused]
    cost, bound = context.cost(plan.gpus), lower_bound(placed, types)
    if bound >= cost - _SAME_COST:
        return Answer(None, bound, not without_gpu)
    answer = solve(placed, types, cost, context.stop)
    if answer is None:
        closer = min(closer_bound(placed, types, context.stop), cost)
        return Answer(None, closer, closer >= cost - _SAME_COST and not without_gpu)
    stands = answer.gpus is None or _holds(answer.gpus, context.request)
    gpus = answer.gpus if stands else None
    return Answer(gpus, max(bound, answer.bound), answer.proven and stands and not without_gpu)


def _holds(gpus: Sequence[PlannedGpu], request: PlanRequest) -> bool:
    """Whether all promises are kept, pools judged as a whole: by the slowest of their servers."""
    terms = Terms(request.rule, request.deciding_quantile)
    return all(one.meets_slo for one in judge(gpus, request.devices, terms))


@dataclass(frozen=True, slots=True)
class Answer:
    """`gpus`: a plan cheaper than the one to beat, None where there is none or none was found in time.

    `bound`: no plan costs less. `proven`: the cheaper of the two plans costs just that.
    """

    gpus: tuple[PlannedGpu, ...] | None
    bound: float
    proven: bool


def solve(
    workloads: Sequence[Workload],
    gpu_types: Mapping[str, GpuType],
    to_beat: float,
    stop: Callable[[], bool],
) -> Answer | None:
    """A plan for all workloads that costs less than `to_beat`, or the proof that there is none.

    None for a case too large.
    """
    if len(workloads) > MOST_WORKLOADS:
        return None
    candidates = _Candidates.of(Services.of(workloads, gpu_types))
    if candidates is None:
        return None
    program = IntegerProgram.of(candidates.services, candidates.patterns, candidates.type_)
    bound, whole = 0.0, False
    use: FloatArray | None = None
    for _ in range(_MOST_ROUNDS):
        if stop():
            break
        if whole:
            cost, use = program.solved(~candidates.gone)
            used = None if use is None else np.flatnonzero(use[: candidates.gone.size] > _USED)
        else:
            cost, used = program.relaxed(~candidates.gone)
        bound = max(bound, attainable(cost, gpu_types) if math.isfinite(cost) else cost)
        if bound >= to_beat - _SAME_COST:
            return Answer(None, to_beat, True)
        if used is None:
            break
        if candidates.refuse(used):
            continue
        if whole and use is not None:
            return Answer(candidates.planned(use), bound, True)
        whole = True
    return Answer(None, bound, False)


@dataclass(slots=True)
class _Candidates:
    """All patterns of all GPU types, numbered `type_`: (patterns,).

    `stands`: the shares are known to hold; `gone`: none do.
    """

    services: Services
    patterns: Patterns
    type_: IntArray
    stands: BoolArray
    gone: BoolArray
    queues: QueueCache = field(default_factory=QueueCache)

    @staticmethod
    def of(services: Services) -> _Candidates | None:
        """None where a GPU type has too many."""
        found: list[Patterns] = []
        for name in services.tables:
            own = patterns_of(services, name, MOST_PATTERNS)
            if own is None:
                return None
            found.append(own)
        patterns = Patterns.joined(found)
        type_ = np.repeat(np.arange(len(found)), [own.service.shape[0] for own in found])
        # Under half-SLO the tables are exact.
        exact = all(table.gpu_type.quantile is None for table in services.tables.values())
        stands, gone = np.full(type_.size, exact), np.zeros(type_.size, dtype=np.bool_)
        return _Candidates(services, patterns, type_, stands, gone)

    def refuse(self, used: IntArray) -> bool:
        """Ask the exact queue about these patterns, each once; whether one of them does not hold."""
        own = self.patterns
        for t, table in enumerate(self.services.tables.values()):
            asked = used[(self.type_[used] == t) & ~self.stands[used] & ~self.gone[used]]
            if asked.size:
                fits, own.share[asked] = settle(
                    table, self.queues, Patterns(own.service[asked], own.share[asked])
                )
                self.stands[asked], self.gone[asked] = fits, ~fits
        return bool(self.gone[used].any())

    def planned(self, use: FloatArray) -> tuple[PlannedGpu, ...]:
        """A solution as GPUs, fullest first."""
        count, services = self.gone.size, self.services.services
        in_use = zip(use[count:].tolist(), services, strict=True)
        left = [round(x) * service.item.servers for x, service in in_use]
        gpus: dict[str, list[SizedGpu]] = {}
        for t, (name, table) in enumerate(self.services.tables.items()):
            times = np.where(self.type_ == t, np.rint(use[:count]), 0.0).astype(np.int64)
            gpus[name] = []
            for p in np.repeat(np.arange(count), times).tolist():
                slots = zip(self.patterns.service[p].tolist(), self.patterns.share[p].tolist(), strict=True)
                pairs = []
                for service, share in slots:
                    if service >= 0 and left[service]:
                        left[service] -= 1
                        pairs.append((-share, service))
                if pairs:
                    pairs.sort()
                    items, shares = tuple(i for _, i in pairs), tuple(-s for s, _ in pairs)
                    total = sum(float(table.gpu_type.percents[s]) for s in shares)
                    gpus[name].append(SizedGpu(items, shares, total))
            gpus[name].sort(key=lambda gpu: (-gpu.total, gpu.items))
        return planned_gpus(gpus, [service.item for service in services], self.services.tables)


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """Minimise `cost` x; x are GPUs of each pattern, then services in use.

    `stands` x >= 0: each server of a service in use stands somewhere; `serves` x = 1: each workload is served
    once; `limits` x <= `most`: over the patterns of each GPU type with a limited count.
    """

    cost: FloatArray
    stands: Any
    serves: Any
    limits: Any
    most: FloatArray

    @staticmethod
    def of(services: Services, patterns: Patterns, type_: IntArray) -> IntegerProgram:
        """Of patterns on the GPU types numbered `type_` (patterns,)."""
        from scipy.sparse import coo_array, csr_array, hstack

        types = [table.gpu_type for table in services.tables.values()]
        count, shape = len(services.services), (len(services.services), type_.size)
        pattern, slot = np.nonzero(patterns.service >= 0)
        holds = coo_array((np.ones(pattern.size), (patterns.service[pattern, slot], pattern)), shape=shape)
        servers = np.array([own.item.servers for own in services.services], dtype=np.float64)
        serves = [
            [float(own.owners >> w & 1) for own in services.services] for w in range(services.workloads)
        ]
        limited = {t: n for t, own in enumerate(types) if (n := own.device.pool.count) is not None}
        limits = np.array([type_ == t for t in limited], dtype=np.float64).reshape(len(limited), type_.size)
        return IntegerProgram(
            np.concatenate([np.array([own.price for own in types])[type_], np.zeros(count)]),
            hstack([holds.tocsr(), csr_array(np.diag(-servers))]).tocsr(),
            hstack([csr_array((len(serves), type_.size)), csr_array(serves)]).tocsr(),
            hstack([csr_array(limits), csr_array((len(limited), count))]).tocsr(),
            np.array([float(n) for n in limited.values()]),
        )

    def relaxed(self, allowed: BoolArray) -> tuple[float, IntArray | None]:
        """What no solution goes below, and the patterns that nearly pay for themselves there.

        `allowed` (patterns,) are those that may be used. Infinite and None where there is no solution.
        """
        from scipy.optimize import linprog
        from scipy.sparse import vstack

        bounds = self._bounds(allowed)
        found = linprog(
            self.cost,
            A_ub=vstack([-self.stands, self.limits]),
            b_ub=np.append(np.zeros(self.stands.shape[0]), self.most),
            A_eq=self.serves,
            b_eq=np.ones(self.serves.shape[0]),
            bounds=np.column_stack([np.zeros(bounds.size), bounds]),
        )
        if found.status != 0:
            return (math.inf if found.status == 2 else 0.0), None
        over = np.where(allowed, found.lower.marginals[: allowed.size], np.inf)
        # Those in use before others that are worth as much.
        order = np.lexsort((-found.x[: allowed.size], over))[:_AT_ONCE]
        return float(found.fun), order[over[order] <= _NEAR * self.cost[order]]

    def solved(self, allowed: BoolArray) -> tuple[float, FloatArray | None]:
        """The same of whole GPUs, and the best: GPUs that hold each pattern, then whether a service is used.

        Infinite and None where there is none, None too where the tree grew too large.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        found = milp(
            self.cost,
            integrality=np.ones(self.cost.size),
            bounds=Bounds(0.0, self._bounds(allowed)),
            constraints=[
                LinearConstraint(self.stands, 0.0, np.inf),
                LinearConstraint(self.serves, 1.0, 1.0),
                LinearConstraint(self.limits, -np.inf, self.most),
            ],
            options={"node_limit": _MOST_NODES, "mip_rel_gap": 0.0},
        )
        if found.status == 0:
            return float(found.fun), np.asarray(found.x)
        below = math.inf if found.status == 2 else found.mip_dual_bound
        return (0.0 if below is None else float(below)), None

    def _bounds(self, allowed: BoolArray) -> FloatArray:
        """The most of each variable: nothing of patterns that are not allowed."""
        services = np.full(self.cost.size - allowed.size, np.inf)
        return np.concatenate([np.where(allowed, np.inf, 0.0), services])

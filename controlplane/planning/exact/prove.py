"""The best plan of a small case, or the proof that a plan is the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from controlplane.domain.plan import Plan, PlannedGpu
from controlplane.planning.capacity.client_batches import InRequests
from controlplane.planning.capacity.gpu_types import GpuType, gpu_types
from controlplane.planning.capacity.lower_bound import lower_bound
from controlplane.planning.capacity.options import serving_options
from controlplane.planning.exact.exact import Answer, solve
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.reuse import with_stable_ids

OPTIMAL = "optimal"
"""`Totals.stopped_by` of a plan that is proven to be the cheapest."""
_SAME_COST = 1e-6


def prove(plan: Plan, request: PlanRequest) -> Plan:
    """The plan for `request` with what is proven of it, or a cheaper plan that is proven best.

    More than `exact.MOST_WORKLOADS` workloads are left as they are, and so are plans in which models take
    turns. *Best* means: over the ways and contents of `gpu_contents`, with the best batch at each share.
    """
    if any(partition.turns for _, partition in plan.partitions()):
        return plan
    started = request.clock.monotonic()
    in_requests = InRequests.of(request)
    question = in_requests.request
    types = gpu_types(question.devices, question.rule, question.quantile)
    proof = _Proof(question, types, started).of(plan)
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


@dataclass(frozen=True, slots=True)
class _Proof:
    """Of a plan for `question`, which counts requests (see `client_batches`); begun at `started`."""

    question: PlanRequest
    types: dict[str, GpuType]
    started: float

    def of(self, plan: Plan) -> Answer:
        """The bound, whether the plan is proven best, and a better plan's GPUs."""
        workloads = self.question.workloads
        refused = {i.workload for i in plan.infeasible}
        options = serving_options([(w,) for w in workloads], self.types)
        possible = [w for w, own in zip(workloads, options, strict=True) if own]
        without_gpu = any(w.name in refused for w in possible)
        if without_gpu:
            # Perhaps all fit after all, placed otherwise.
            answer = solve(possible, self.types, math.inf, self.stop)
            if answer is not None and answer.gpus is not None and self._holds(answer.gpus):
                return answer
        placed = [w for w in workloads if w.name not in refused]
        cost = sum(self.types[g.type].price for g in plan.gpus)
        bound = lower_bound(placed, self.types)
        if bound >= cost - _SAME_COST:
            return Answer(None, bound, not without_gpu)
        answer = solve(placed, self.types, cost, self.stop)
        if answer is None:
            return Answer(None, bound, False)
        stands = answer.gpus is None or self._holds(answer.gpus)
        gpus = answer.gpus if stands else None
        return Answer(gpus, max(bound, answer.bound), answer.proven and stands and not without_gpu)

    def stop(self) -> bool:
        """Whether the limit in seconds is reached."""
        budget = self.question.budget_s
        return budget is not None and self.question.clock.monotonic() - self.started >= budget

    def _holds(self, gpus: tuple[PlannedGpu, ...]) -> bool:
        """Whether all promises are kept, pools judged as a whole: by the slowest of their servers."""
        terms = Terms(self.question.rule, self.question.deciding_quantile)
        return all(one.meets_slo for one in judge(gpus, self.question.devices, terms))

"""The default strategy: batch, share, GPU, servers and shadow chosen together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controlplane.domain.plan import Plan, Rule
from controlplane.planning.capacity.client_batches import InRequests
from controlplane.planning.capacity.lower_bound import lower_bound
from controlplane.planning.joint.bursts import with_bursts
from controlplane.planning.joint.choice import Choice
from controlplane.planning.joint.context import Context
from controlplane.planning.joint.turns import Turns
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.reuse import cost_of, reused, with_stable_ids


@dataclass(frozen=True, slots=True)
class Joint:
    """The default strategy.

    `iterations`: attempts to empty a GPU in each search, None for the usual number; more of them also widen
    what is tried of up to 12 workloads. `late_binding`: plans may rely on the order in which requests leave
    the gateway.
    """

    iterations: int | None = None
    late_binding: bool = False
    name: str = "joint"
    rule: Rule = Rule.P99
    latency_model: str = "ours"

    def plan(self, request: PlanRequest) -> Plan:
        """See `Strategy.plan`."""
        started = request.clock.monotonic()
        in_requests = InRequests.of(request)
        context = Context.of(in_requests.request, started)
        draft = with_bursts(in_requests.request, lambda asked: self._draft(asked, context))
        draft = in_requests.counted_back(draft)
        turns = Turns.of(context if context.request is request else Context.of(request, started), draft)
        joined = turns.fewer(draft)
        if self.late_binding:  # only for what is not saved without it
            joined = replace(turns, late_binding=True).fewer(joined)
        fresh = self._finalised(_renamed(joined, request), context, request)
        if joined is not draft and not fresh.verified:  # a shadow found no room on the GPUs that are left
            fresh = self._finalised(_renamed(draft, request), context, request)
        if request.previous is None:
            return fresh
        gpus = reused(request.previous, request)
        if gpus is None:
            return fresh
        same = self._finalised(replace(draft, gpus=gpus, infeasible=()), context, request)
        # What runs now moves nothing: it stays unless another plan costs less.
        worth = (len(fresh.infeasible), cost_of(fresh.gpus))
        return same if same.verified and (0, cost_of(same.gpus)) <= worth else fresh

    def _draft(self, request: PlanRequest, context: Context) -> Draft:
        """The draft for Poisson arrivals."""
        own = context if request is context.request else Context.of(request, context.started)
        return Choice(own, self.iterations).draft()

    def _finalised(self, draft: Draft, context: Context, request: PlanRequest) -> Plan:
        return finalise(self.name, request, _bounded(draft, context), context.started)


def _renamed(draft: Draft, request: PlanRequest) -> Draft:
    """With the ids that move least of what runs."""
    if request.previous is None:
        return draft
    return replace(draft, gpus=with_stable_ids(draft.gpus, request.previous))


def _bounded(draft: Draft, context: Context) -> Draft:
    lost = {i.workload for i in draft.infeasible}
    placed = [w for w in context.workloads if w.name not in lost]
    # The bound is one of plans without turns, which may cost less.
    bound = min(lower_bound(placed, context.gpu_types), context.cost(draft.gpus))
    return draft.bounded(bound, context.request.devices)

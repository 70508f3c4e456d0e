"""The default strategy: batch, share, GPU, servers and shadow chosen together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.plan import Infeasible, Plan, PlannedGpu, Rule
from controlplane.planning.capacity.client_batches import InRequests
from controlplane.planning.capacity.context import Context
from controlplane.planning.capacity.lower_bound import lower_bound
from controlplane.planning.explain.infeasible import with_model_limit
from controlplane.planning.joint.choice import Choice
from controlplane.planning.joint.demands import (
    Factors,
    all_hot,
    at_speed,
    covering,
    in_time_shared,
    memory_binds,
    slowed,
    undemanding,
)
from controlplane.planning.joint.spread import spread
from controlplane.planning.joint.turns import Turns
from controlplane.planning.judge.evaluate import SLACK, Evaluation, Terms, evaluate, pool_times
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.replan.reuse import cost_of, reused, with_stable_ids

_ROUNDS = 8
_FASTEST = 2.0
"""The Poisson rate grows by at most this factor in a round: a larger server may have another batch."""
_HALVINGS = 12
_ROUNDING = 1.0 + 2.0 ** (1 - _HALVINGS)
"""The largest rate that a queue holds is known to a 4096th."""

DraftOf = Callable[[PlanRequest], Draft]


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
        context = Context.of(InRequests.of(all_hot(request)).request, request.clock.monotonic())
        gpus = None if request.previous is None else reused(request.previous, request)
        same = None if gpus is None else self._finalised(Draft(gpus), context, request)
        fresh = self._fresh(request, context, {})
        if same is None or not same.verified or cost_of(same.gpus) > cost_of(fresh.gpus):
            fresh = self._as_demanded(fresh, request, context)
        if same is None or not same.verified:
            return fresh
        # What runs now moves nothing: it stays unless another plan costs less.
        worth = (len(fresh.infeasible), cost_of(fresh.gpus))
        return same if (0, cost_of(same.gpus)) <= worth else fresh

    def _as_demanded(self, fresh: Plan, request: PlanRequest, context: Context) -> Plan:
        """A plan that meets what is demanded of its shadows, and says what that costs."""
        free = undemanding(request)
        met = covering(fresh, request, lambda factors: self._fresh(request, context, factors))
        if met.totals is None or free is request:
            return met
        without = self._fresh(free, context, {})
        return replace(met, totals=replace(met.totals, gpus_for_demands=len(met.gpus) - len(without.gpus)))

    def _fresh(self, request: PlanRequest, context: Context, factors: Factors) -> Plan:
        """The cheapest plan from nothing as if models were so many times slower.

        Shadows that need not be hot are warm on a GPU whose memory is full, where that saves a GPU; those
        that must be loaded may be shared. `context` is that of the request with all of them hot.
        """
        hot = all_hot(request)
        plan = self._packed(hot, hot, context, factors)
        if hot is request or not memory_binds(plan, hot):
            return plan
        found, shared = [plan, self._packed(request, request, context, factors)], in_time_shared(request)
        if shared is not request:
            found.append(self._packed(shared, request, context, factors))
        return min(found, key=lambda p: (len(p.infeasible), not p.verified, cost_of(p.gpus)))

    def _packed(self, sized: PlanRequest, request: PlanRequest, context: Context, factors: Factors) -> Plan:
        """A plan of the request with the memory for the shadows of `sized`."""
        asked = slowed(sized, factors)
        in_requests = InRequests.of(asked)
        same = in_requests.request.workloads == context.request.workloads
        own = context if same else Context.of(in_requests.request, context.started)

        def draft_of(poisson: PlanRequest) -> Draft:
            here = own if poisson is own.request else Context.of(poisson, own.started)
            return Choice(here, self.iterations).draft()

        draft = in_requests.counted_back(_with_bursts(in_requests.request, draft_of))
        turns = Turns.of(own if own.request is asked else Context.of(asked, own.started), draft)
        joined = turns.fewer(draft)
        if self.late_binding:  # only for what is not saved without it
            joined = replace(turns, late_binding=True).fewer(joined)
        if joined.infeasible:
            joined = replace(joined, infeasible=with_model_limit(joined.infeasible, joined.gpus))
        fresh = self._covering_most(_at_speed(joined, request, factors), context, request)
        if joined is not draft and not fresh.verified:  # a shadow found no room on the GPUs that are left
            fresh = self._covering_most(_at_speed(draft, request, factors), context, request)
        return fresh

    def _covering_most(self, draft: Draft, context: Context, request: PlanRequest) -> Plan:
        """The draft's plan, or with its partitions spread where its shadows then cover more."""
        plan = self._finalised(_renamed(draft, request), context, request)
        if not plan.verified:
            return plan
        terms = Terms(request.rule, request.deciding_quantile, draft.queues)
        gpus = spread(draft.gpus, {w.name: w.shadow for w in request.workloads}, request.devices, terms)
        if gpus == draft.gpus:
            return plan
        other = self._finalised(_renamed(replace(draft, gpus=gpus), request), context, request)
        return other if other.verified and _covers(other) > _covers(plan) else plan

    def _finalised(self, draft: Draft, context: Context, request: PlanRequest) -> Plan:
        lost = {i.workload for i in draft.infeasible}
        placed = [w for w in context.workloads if w.name not in lost]
        # The bound is one of plans without turns, which may cost less.
        bound = min(lower_bound(placed, context.gpu_types), context.cost(draft.gpus))
        return finalise(self.name, request, draft.bounded(bound, request.devices), context.started)


def _covers(plan: Plan) -> list[float]:
    """What the shadows of a plan cover, the least first."""
    return sorted(p.shadow.covers or 1.0 for _, p in plan.partitions() if p.shadow is not None)


def _at_speed(draft: Draft, request: PlanRequest, factors: Factors) -> Draft:
    """A draft for a slowed request with the real rates and SLOs."""
    if not factors:
        return draft
    back = _counted_back(draft, request, {})
    return replace(back, infeasible=tuple(at_speed(i, factors) for i in draft.infeasible))


def _renamed(draft: Draft, request: PlanRequest) -> Draft:
    """With the ids that move least of what runs."""
    if request.previous is None:
        return draft
    return replace(draft, gpus=with_stable_ids(draft.gpus, request.previous))


# -- bursty workloads ------------------------------------------------------------------------------------


def _with_bursts(request: PlanRequest, draft_of: DraftOf) -> Draft:
    """The draft for a request, whose queues hold the bursts of its workloads.

    `draft_of` plans for Poisson arrivals: the tables of a search know those alone. The exact queue with the
    real arrivals says which part of its rate the servers of a workload hold; where that is too little, the
    Poisson rate grows by what is missing. A workload whose bursts no servers hold after some rounds is
    infeasible.
    """
    if request.rule is not Rule.P99 or all(w.dispersion == 1.0 for w in request.workloads):
        return draft_of(request)
    refused: list[Infeasible] = []
    while True:
        draft, held = _grown(request, draft_of)
        if not held:
            return replace(draft, infeasible=(*draft.infeasible, *refused))
        refused += [_refusal(request, name, part) for name, part in held.items()]
        request = replace(request, workloads=tuple(w for w in request.workloads if w.name not in held))


def _grown(request: PlanRequest, draft_of: DraftOf) -> tuple[Draft, Mapping[str, float]]:
    """The draft of the last round, and the parts of their rates that too small servers hold."""
    multiple = dict.fromkeys((w.name for w in request.workloads), 1.0)
    for _ in range(_ROUNDS):
        poisson = [
            replace(w, rate_rps=multiple[w.name] * w.rate_rps, dispersion=1.0) for w in request.workloads
        ]
        draft = _counted_back(draft_of(replace(request, workloads=tuple(poisson))), request, multiple)
        held = _held_parts(request, draft.gpus)
        if not held:
            break
        for name, part in held.items():
            multiple[name] *= _FASTEST if part * _FASTEST < 1.0 else _ROUNDING / part
    return draft, held


def _counted_back(draft: Draft, request: PlanRequest, multiple: Mapping[str, float]) -> Draft:
    """A draft for Poisson workloads with the real ones and their rates."""
    lost = {i.workload for i in draft.infeasible}
    placed = replace(request, workloads=tuple(w for w in request.workloads if w.name not in lost))
    gpus = reused(Plan("", request.rule, "", draft.gpus), placed)
    assert gpus is not None
    infeasible = tuple(_for_bursts(i, multiple.get(i.workload, 1.0)) for i in draft.infeasible)
    return replace(draft, gpus=gpus, infeasible=infeasible)


def _for_bursts(refused: Infeasible, multiple: float) -> Infeasible:
    """A refusal at a multiple of the real rate; the nearest SLO was for the bare multiple."""
    if multiple == 1.0:
        return refused
    nearest = refused.nearest_rate_rps
    return Infeasible(
        refused.workload,
        f"planned as {multiple:.3g} times its rate, for its bursts: {refused.reason}",
        nearest_rate_rps=None if nearest is None else nearest / multiple,
    )


def _held_parts(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> dict[str, float]:
    """By workload, the part of its rate that its servers hold, where bursts break its SLO."""
    terms = Terms(request.rule, request.deciding_quantile)
    held: dict[str, float] = {}
    for found in evaluate(gpus, request.devices, terms).values():
        layout = found.layout
        late = (layout.dispersion > 1.0) & (found.p99_ms > layout.slo_ms * (1.0 + SLACK))
        for at, queue in layout.columns():
            if late[at]:
                part = _held_part(found, at, terms)
                held |= {w.name: min(part, held.get(w.name, part)) for w in queue.workloads}
    return held


def _held_part(found: Evaluation, at: tuple[int, int], terms: Terms) -> float:
    """The largest rate that the servers of a queue hold, as a part of its rate, which they do not hold."""
    own, pools, low, high = [(found.layout, at)], [found.pools[at]], 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        holds = pool_times(own, pools, terms.queues, middle).p99_ms[0] <= found.layout.slo_ms[at]
        low, high = (middle, high) if holds else (low, middle)
    return low


def _refusal(request: PlanRequest, name: str, part: float) -> Infeasible:
    workload = next(w for w in request.workloads if w.name == name)
    return Infeasible(
        name,
        f"its bursts (dispersion {workload.dispersion:g}) break its SLO on any servers that were tried",
        nearest_rate_rps=part * workload.rate_rps or None,
    )

"""What holds of every plan, whatever is asked for; under half-SLO where the rule does not matter."""

import math
from dataclasses import replace

import planning
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning import joint_p99, planned, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.lower_bound import lower_bound
from controlplane.planning.exact.prove import prove, solve
from controlplane.planning.judge.verify import verify

FEW = settings(max_examples=15)


@st.composite
def workloads(draw: st.DrawFn, most: int = 8) -> list[Workload]:
    count = draw(st.integers(1, most))
    return [
        workload(
            f"w{i}",
            draw(st.sampled_from(planning.MODELS)),
            float(draw(st.integers(3, 90))),
            float(draw(st.integers(5, 900))),
        )
        for i in range(count)
    ]


def cost(plan: Plan) -> float:
    return sum(g.price_per_hour for g in plan.gpus)


def placed_and_refused(plan: Plan) -> set[str]:
    return {w.name for _, _, w in plan.placements()} | {i.workload for i in plan.infeasible}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["igniter", "ffd++", "joint"])
@FEW
@given(asked=workloads())
def test_every_plan_returned_is_accepted_and_loses_no_workload(strategy: str, asked: list[Workload]) -> None:
    plan = planned(strategy, asked)
    assert verify(plan, {"v100": planning.v100()}, asked) == ()
    assert placed_and_refused(plan) == {w.name for w in asked}


@settings(FEW, max_examples=6)
@given(asked=workloads(most=5))
def test_every_p99_plan_is_accepted(asked: list[Workload]) -> None:
    plan = joint_p99(asked)
    assert plan.verified
    assert placed_and_refused(plan) == {w.name for w in asked}


@pytest.mark.slow
@settings(FEW, max_examples=8)
@given(asked=workloads(), seed=st.randoms())
def test_the_order_of_the_spec_does_not_matter(asked: list[Workload], seed: object) -> None:
    shuffled = list(asked)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert planned("joint", shuffled).gpus == planned("joint", asked).gpus


@FEW
@given(asked=workloads(), part=st.floats(0.3, 1.0))
def test_lower_rates_cost_no_more_than_what_runs(asked: list[Workload], part: float) -> None:
    before = planned("joint", asked)
    held = [w for w in asked if w.name not in {i.workload for i in before.infeasible}]
    lower = [replace(w, rate_rps=w.rate_rps * part) for w in held]
    after = planned("joint", lower, previous=before)
    assert after.verified
    assert not after.infeasible
    assert cost(after) <= cost(before) + 1e-9


@pytest.mark.parametrize(("latency", "rule"), [("igniter", Rule.HALF_SLO), ("ours", Rule.P99)])
@settings(FEW, max_examples=6)
@given(asked=workloads(most=16))
def test_sharing_queues_costs_no_more_and_refuses_no_workload(
    latency: str, rule: Rule, asked: list[Workload]
) -> None:
    together = planned("joint", asked, latency=latency, rule=rule)
    apart = planned("joint", [replace(w, isolated=True) for w in asked], latency=latency, rule=rule)
    assert together.verified
    refused, refused_apart = ({i.workload for i in plan.infeasible} for plan in (together, apart))
    # Where an SLO leaves less than 1 % above one execution, a pool is found for two that is not for one.
    assert refused <= refused_apart
    assert refused < refused_apart or cost(together) <= cost(apart) + 1e-9


@FEW
@given(asked=workloads(most=5))
def test_two_equal_workloads_swap_without_effect(asked: list[Workload]) -> None:
    twin = replace(asked[0], name="twin", endpoint="twin")
    plan = planned("joint", [*asked, twin])
    names = {"twin": asked[0].name, asked[0].name: "twin"}
    swapped = [replace(w, name=names.get(w.name, w.name), endpoint=names.get(w.name, w.name)) for w in asked]
    other = planned("joint", [*swapped, replace(twin, name=asked[0].name, endpoint=asked[0].name)])
    shapes = [sorted((p.percent, p.models[0].batch) for p in g.partitions) for g in plan.gpus]
    assert shapes == [sorted((p.percent, p.models[0].batch) for p in g.partitions) for g in other.gpus]


@pytest.mark.parametrize(("latency", "rule"), [("igniter", Rule.HALF_SLO), ("ours", Rule.P99)])
@settings(FEW, max_examples=6)
@given(asked=workloads(most=7))
def test_no_strategy_keeps_its_promises_below_the_lower_bound(
    latency: str, rule: Rule, asked: list[Workload]
) -> None:
    best = planned("joint", asked, latency=latency, rule=rule)
    bound = planning.totals(best).lower_bound_cost_per_hour
    assert bound is not None
    assert bound <= cost(best) + 1e-9
    for strategy in ("igniter", "ffd+", "ffd++"):
        other = planned(strategy, asked, latency=latency, rule=rule)
        if other.verified and len(other.infeasible) <= len(best.infeasible):
            assert bound <= cost(other) + 1e-9


@settings(FEW, max_examples=8)
@given(asked=workloads(most=6))
def test_the_quick_bound_is_below_the_optimum(asked: list[Workload]) -> None:
    plan = planned("joint", asked)
    refused = {i.workload for i in plan.infeasible}
    request = planning.request([w for w in asked if w.name not in refused])
    assume(request.workloads)
    types = planning.types_of(request)
    answer = solve(request.workloads, types, math.inf, lambda: False)
    assume(answer is not None)  # some of six workloads have too many ways for the tree
    assert answer.proven
    bound = lower_bound(request.workloads, types)
    assert bound <= answer.bound + 1e-9
    proven = prove(plan, request)
    assert cost(proven) <= min(cost(plan), answer.bound) + 1e-9

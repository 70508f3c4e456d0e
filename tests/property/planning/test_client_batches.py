"""What must hold whatever clients send in a request."""

from dataclasses import replace

import planning
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import layout, v100

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.planning.judge.verify import verify

workloads = st.lists(
    st.tuples(
        st.sampled_from(planning.MODELS),
        st.sampled_from([60.0, 100.0, 250.0]),
        st.sampled_from([50.0, 200.0, 600.0]),
        st.sampled_from([1, 2, 3, 4, 8]),
        st.sampled_from(list(Arrivals)),
    ),
    min_size=1,
    max_size=3,
)


def named(rows: list[tuple[str, float, float, int, Arrivals]]) -> tuple[Workload, ...]:
    return tuple(
        Workload(f"W{i}", model, slo_ms, rate, f"W{i}", arrivals, client_batch=client_batch)
        for i, (model, slo_ms, rate, client_batch, arrivals) in enumerate(rows)
    )


def planned(strategy: str, asked: tuple[Workload, ...], rule: Rule, previous: Plan | None = None) -> Plan:
    return planning.planned(strategy, asked, rule=rule, device=v100("ours", 4), previous=previous)


@settings(max_examples=12, deadline=None)
@given(workloads, st.sampled_from(["joint", "igniter", "inss", "ffd++"]), st.sampled_from(list(Rule)))
def test_every_batch_holds_whole_requests_and_rates_count_inferences(rows, strategy, rule):
    asked = named(rows)
    plan = planned(strategy, asked, rule)
    for _, partition in plan.partitions():
        (served,) = partition.models
        sizes = {w.client_batch for w in partition.workloads}
        assert len(sizes) == 1
        assert served.batch % sizes.pop() == 0
    given_rps = {w.name: 0.0 for w in asked}
    for _, _, placement in plan.placements():
        given_rps[placement.name] += placement.rate_rps
    refused = {i.workload for i in plan.infeasible}
    for w in asked:
        assert given_rps[w.name] == pytest.approx(0.0 if w.name in refused else w.rate_rps)
    if strategy == "joint":
        assert plan.verified
    assert plan.verified is not bool(verify(plan, {"v100": v100("ours", 4)}, asked))


@settings(max_examples=5, deadline=None)
@given(workloads)
def test_a_plan_against_itself_moves_nothing(rows):
    asked = named(rows)
    first = planned("joint", asked, Rule.P99)
    if not first.infeasible:
        assert layout(planned("joint", asked, Rule.P99, first)) == layout(first)


def test_a_batch_that_no_longer_holds_whole_requests_is_planned_anew():
    (one,) = named([("resnet50", 100.0, 200.0, 3, Arrivals.POISSON)])
    first = planned("joint", (one,), Rule.P99)
    again = planned("joint", (replace(one, client_batch=4),), Rule.P99, first)
    assert again.verified
    assert all(p.models[0].batch % 4 == 0 for _, p in again.partitions())

"""Workloads that share a queue: who may, what it saves, and what a plan tells of it."""

from dataclasses import replace
from functools import cache

import planning
import pytest
from planning import joint_p99, planned, workload

from controlplane.domain.plan import MOST_SERVERS, Plan, Rule
from controlplane.domain.workload import Arrivals, ShadowPlace, ShadowPolicy, ShadowWish, Workload
from controlplane.planning.capacity.items import families
from controlplane.planning.explain.explain import explain
from controlplane.planning.judge.placements import with_partitions
from controlplane.planning.judge.verify import verify
from controlplane.planning.replan.differences import Change, changes, moves


def small(count: int, rate_rps: float = 25.0) -> list[Workload]:
    """Of two models, with SLOs that rise."""
    return [
        workload(f"w{i}", ("resnet50", "vgg19")[i % 2], 40.0 + 5.0 * i, rate_rps + i) for i in range(count)
    ]


@cache
def together() -> Plan:
    return joint_p99(small(20))


def queues(plan: Plan) -> set[frozenset[str]]:
    return {frozenset(w.name for w in p.workloads) for _, p in plan.partitions()}


def test_only_equals_may_meet() -> None:
    one = workload("one", "ssd", 50.0, 10.0)
    others = {
        "model": workload("m", "vgg19", 60.0, 10.0),
        "client batch": replace(one, name="b", client_batch=4),
        "memory": replace(one, name="g", memory_mb=100.0),
        "shadow": replace(one, name="s", shadow=ShadowWish(ShadowPolicy.WARM)),
        "isolated": replace(one, name="i", isolated=True),
        "refused after a time": replace(one, name="r", drop_after_ms=50.0),
        "arrivals": replace(one, name="c", arrivals=Arrivals.CONSTANT),
    }
    for why, other in others.items():
        assert len(families([one, other], Rule.P99)) == 2, why
    assert families([replace(one, name="looser", slo_ms=60.0), one], Rule.P99)[0][0] is one
    constant = [others["arrivals"], replace(others["arrivals"], name="d")]
    assert len(families(constant, Rule.P99)) == 2
    assert len(families(constant, Rule.HALF_SLO)) == 1


@pytest.mark.parametrize(("latency", "rule"), [("ours", Rule.P99), ("igniter", Rule.HALF_SLO)])
def test_many_small_workloads_share_few_gpus(latency: str, rule: Rule) -> None:
    asked = small(20)
    plan = planned("joint", asked, latency=latency, rule=rule)
    apart = planned("joint", [replace(w, isolated=True) for w in asked], latency=latency, rule=rule)
    assert plan.verified
    assert apart.verified
    assert not plan.infeasible
    assert max(len(q) for q in queues(plan)) > 1
    assert all(len(q) == 1 for q in queues(apart))
    assert sum(g.percent for g in plan.gpus) < sum(g.percent for g in apart.gpus)
    assert len(plan.gpus) <= len(apart.gpus)


def test_no_pool_is_larger_than_a_slot_of_the_gateway() -> None:
    asked = [workload("huge", "ssd", 60.0, 5000.0), workload("small", "ssd", 60.0, 50.0)]
    plan = joint_p99(asked)
    (refused,) = plan.infeasible
    assert refused.workload == "huge"
    assert f"no pool of up to {MOST_SERVERS} servers" in refused.reason
    assert refused.nearest_rate_rps is not None
    assert plan.verified


def test_a_server_has_an_id_of_its_own_whatever_workloads_are_called() -> None:
    called_as_a_server = replace(workload("a-1", "vgg19", 60.0, 20.0), isolated=True)
    plan = joint_p99([workload("a", "ssd", 60.0, 500.0), called_as_a_server])
    assert plan.verified
    ids = [p.id for _, p in plan.partitions()]
    assert {"a-1", "a-2"} < set(ids)
    assert len(ids) == len(set(ids))


def test_a_shadow_elsewhere_stands_in_for_one_server_of_its_pool() -> None:
    wish = ShadowWish(ShadowPolicy.HOT, ShadowPlace.OTHER_GPU)
    asked = [replace(workload("a", "ssd", 60.0, 500.0), shadow=wish)]
    plan = joint_p99(asked)
    assert plan.verified
    shadows = [(g.id, p.shadow) for g, p in plan.partitions()]
    assert len(shadows) > 1
    assert all(s is not None and s.gpu != gpu for gpu, s in shadows)


def reasons(plan: Plan, asked: list[Workload]) -> str:
    found = verify(plan, {"v100": planning.v100("ours")}, asked)
    return "; ".join(f"{v.subject}: {v.reason}" for v in found)


def test_the_judge_refuses_company_that_was_not_asked_for() -> None:
    asked, plan = small(20), together()
    assert reasons(plan, asked) == ""
    alone = [replace(w, isolated=True) for w in asked]
    assert "isolation" in reasons(plan, alone)
    marked = with_partitions(
        plan.gpus, lambda p: replace(p, workloads=tuple(replace(w, isolated=True) for w in p.workloads))
    )
    assert "is to have its own queue" in reasons(replace(plan, gpus=marked), alone)


def test_the_judge_refuses_servers_of_different_queues() -> None:
    asked = [workload("a", "ssd", 60.0, 500.0)]
    plan = joint_p99(asked)
    first, *rest = plan.gpus
    p, *others = first.partitions
    joined = replace(p.workloads[0], name="b", endpoint="b", rate_rps=1.0)
    changed = replace(first, partitions=(replace(p, workloads=(*p.workloads, joined)), *others))
    assert "they are no servers of one pool" in reasons(replace(plan, gpus=(changed, *rest)), asked)


def test_who_joins_and_who_leaves_is_told_and_the_rest_stays() -> None:
    asked, before = small(20), together()
    company = max(queues(before), key=lambda queue: (len(queue), sorted(queue)))
    # Without the least of them no plan costs less, so that all the others stay as they are.
    name = min((w for w in asked if w.name in company), key=lambda w: w.rate_rps).name
    after = joint_p99([w for w in asked if w.name != name], previous=before)
    assert {(c.change, c.workloads) for c in changes(before, after)} == {(Change.LEFT, (name,))}
    back = changes(after, before)
    assert {(c.change, c.workloads) for c in back} == {(Change.JOINED, (name,))}
    assert moves(before, after) == 0


@pytest.mark.slow
def test_a_group_keeps_its_id_when_another_joins() -> None:
    asked = small(30, 20.0)
    before = joint_p99(asked[2:])
    after = joint_p99(asked, previous=before)
    assert after.verified
    found = {c.change for c in changes(before, after)}
    assert Change.JOINED in found
    assert Change.STOPPED not in found


def test_explain_names_the_company_and_what_it_would_cost_alone() -> None:
    told = explain(together(), "w5", {"v100": planning.v100("ours")})
    company = told[0].reasons[3]
    assert company.startswith("one queue with ")
    assert "by itself w5 would take about" in company

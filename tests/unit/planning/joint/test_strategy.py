import re
from collections import Counter
from dataclasses import replace
from functools import cache

import planning
import pytest
from planning import joint_p99, planned, published, workload

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Infeasible, Plan, Rule
from controlplane.domain.workload import Arrivals, ShadowPolicy, ShadowWish, Workload
from controlplane.planning.capacity.context import Context
from controlplane.planning.explain.explain import explain
from controlplane.planning.joint.small_cases import Combination, combinations
from controlplane.planning.replan.differences import Change, changes, moves
from controlplane.planning.replan.reuse import reused
from controlplane.simulate.engine import Settings, simulate

POISSON = (workload("R", "resnet50", 40.0, 300.0), workload("V", "vgg19", 60.0, 100.0))
BURSTY = tuple(replace(w, dispersion=4.0) for w in POISSON)


@cache
def table_3() -> Plan:
    return joint_p99(published(12))


def test_the_same_request_gives_the_same_plan_in_any_order() -> None:
    again = joint_p99(published(12)[::-1])
    assert again.gpus == table_3().gpus


def test_a_workload_larger_than_a_gpu_gets_a_pool() -> None:
    """Its servers have ids of their own, whatever workloads are called."""
    plan = joint_p99([workload("big", "ssd", 60.0, 1100.0), workload("big-1", "vgg19", 60.0, 20.0)])
    assert plan.verified
    assert len(plan.gpus) >= 3
    big = [w.rate_rps for _, _, w in plan.placements() if w.name == "big"]
    assert sum(big) == pytest.approx(1100.0)
    assert {"big-1", "big-2"} < {p.id for _, p in plan.partitions()}


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Rule.P99, Rule.HALF_SLO])
def test_what_finds_no_gpu_is_named_and_the_rest_stands(rule: Rule) -> None:
    latency = "ours" if rule is Rule.P99 else "igniter"
    asked, six = published(50)[:30], planning.v100(latency, 6)
    plan = planned("joint", asked, latency=latency, rule=rule, device=six)
    assert plan.verified
    assert len(plan.gpus) == 6
    lost = {i.reason.split(":")[0] for i in plan.infeasible}
    assert lost <= {"all GPUs are taken", "the free v100 shares are fragmented"}
    placed = {w.name for _, _, w in plan.placements()}
    assert sorted([*placed, *(i.workload for i in plan.infeasible)]) == sorted(w.name for w in asked)


def test_the_infeasible_is_explained_and_its_nearest_slo_fits() -> None:
    asked = [workload("fast", "ssd", 3.0, 10.0), workload("ok", "alexnet", 20.0, 100.0)]
    plan = joint_p99(asked)
    assert [p.id for _, p in plan.partitions()] == ["ok"]
    (refused,) = plan.infeasible
    assert re.match(r"a single request takes [\d.]+ ms on a whole v100 and its SLO is 3 ms", refused.reason)
    assert refused.nearest_slo_ms is not None
    nearest = joint_p99([workload("fast", "ssd", refused.nearest_slo_ms, 10.0)])
    assert nearest.verified
    assert not nearest.infeasible


def test_constant_arrivals_take_no_more_than_poisson() -> None:
    apart = [replace(w, isolated=True) for w in published(12)[:3]]
    constant = [replace(w, arrivals=Arrivals.CONSTANT) for w in apart]
    plan = joint_p99(constant)
    poisson = joint_p99(apart)
    assert plan.verified
    assert planning.totals(plan).percent <= planning.totals(poisson).percent


def test_no_shadow_where_none_is_wished() -> None:
    asked = [replace(w, shadow=ShadowWish(ShadowPolicy.NONE)) for w in published(12)[:3]]
    plan = planned("joint", asked)
    assert plan.verified
    assert all(p.shadow is None for _, p in plan.partitions())


def test_lower_rates_keep_what_runs() -> None:
    lower = tuple(replace(w, rate_rps=w.rate_rps * 0.99) for w in published(12))
    plan = joint_p99(lower, previous=table_3())
    assert plan.verified
    assert sum(g.price_per_hour for g in plan.gpus) <= sum(g.price_per_hour for g in table_3().gpus)
    assert moves(table_3(), plan) == 0


def test_changes_name_what_starts_stops_moves_and_resizes() -> None:
    before = table_3()
    assert changes(before, before) == ()
    without = joint_p99(published(12)[:11], previous=before)
    stopped = {c.partition for c in changes(before, without) if c.change is Change.STOPPED}
    assert {"W12-1", "W12-2"} <= stopped
    started = {c.partition for c in changes(without, before) if c.change is Change.STARTED}
    assert {"W12-1", "W12-2"} <= started
    gpu, *rest = before.gpus
    partition = gpu.partitions[0]
    other = replace(gpu, partitions=(replace(partition, percent=50.0), *gpu.partitions[1:]))
    (resized,) = changes(before, replace(before, gpus=(other, *rest)))
    assert resized.change is Change.RESIZED
    moved = replace(before, gpus=(replace(gpu, id="v100-99"), *rest))
    assert {c.change for c in changes(before, moved)} == {Change.MOVED}


def test_explain_shows_what_smaller_shares_would_break() -> None:
    plan = planned("igniter", published(12))
    (told,) = explain(plan, "W12", {"v100": planning.v100()})
    assert isinstance(told.alternatives, tuple)
    by_name = {a.what: a for a in told.alternatives}
    assert by_name["as planned"].holds
    assert not by_name["next smaller share"].holds
    assert by_name["next smaller share"].breaks == ("W12",)
    assert by_name["next smaller share"].execution_ms > by_name["as planned"].execution_ms
    with pytest.raises(InputError, match="did you mean W12"):
        explain(plan, "W122", {"v100": planning.v100()})
    refused = planned("igniter", [workload("no", "ssd", 2.0, 1.0)])
    assert isinstance(explain(refused, "no", {"v100": planning.v100()}), Infeasible)


def test_explain_judges_a_neighbour_with_all_servers_of_its_pool() -> None:
    asked = [replace(w, isolated=True) for w in published(12)]
    plan = joint_p99(asked)
    pools = {w.name for _, p, w in plan.placements() if p.id != w.name}
    beside = next(
        p.id
        for g in plan.gpus
        for p in g.partitions
        if p.id == p.workloads[0].name not in pools
        and any(w.name in pools for q in g.partitions for w in q.workloads if q.id != p.id)
    )
    (told,) = explain(plan, beside, {"v100": planning.v100("ours")})
    planned_so, *_ = told.alternatives
    assert planned_so.holds
    share, batch, *_ = told.reasons
    assert share.startswith(f"share {planned_so.percent:g} %: ")
    assert f"P99 {planned_so.p99_ms:.1f} ms" in batch


def test_explain_says_what_less_would_do() -> None:
    plan = planned("igniter", published(12))
    (told,) = explain(plan, "W4", {"v100": planning.v100()})
    share, batch, source, standby = told.reasons
    assert source == "execution time: predicted by the latency model 'igniter' from the profile"
    assert share == "share 32.5 %: at 30 % more would arrive than it can serve (use 1.00)"
    assert batch.startswith("batch 4 (execution 9.7 ms): with 3 more would arrive than it can serve")
    assert batch.endswith("with 5 it would be late (execution 11.6 ms)")
    (shadow,) = (p.shadow for _, p in plan.partitions() if p.workloads[0].name == "W4")
    assert shadow is not None
    assert f"covers {shadow.covers:.2f} times the planned times; it does not survive the loss" in standby


def late_percent(plan: Plan) -> list[float]:
    found = simulate(plan, {"v100": planning.v100("ours").latency}, Settings(seconds=200.0, seed=5))
    return [w.violations_percent for w in found.workloads]


def test_a_plan_for_bursts_holds_them_where_one_for_poisson_arrivals_does_not() -> None:
    plain = joint_p99(POISSON)
    gpus = reused(plain, planning.p99_request(BURSTY))
    assert gpus is not None
    assert max(late_percent(replace(plain, gpus=gpus))) > 1.5
    plan = joint_p99(BURSTY)
    assert (plan.verified, plan.infeasible) == (True, ())
    assert {w.dispersion for _, _, w in plan.placements()} == {4.0}
    assert max(late_percent(plan)) <= 1.1


def test_bursts_that_no_server_holds_are_infeasible_with_a_rate() -> None:
    tight = (replace(POISSON[0], slo_ms=12.0, dispersion=64.0), POISSON[1])
    plan = joint_p99(tight)
    assert plan.verified
    (refused,) = plan.infeasible
    assert refused.workload == "R"
    assert "bursts" in refused.reason


# -- up to twelve workloads: cuts and pools in all combinations -------------------------------------------


def of(asked: tuple[Workload, ...]) -> list[Combination]:
    context = Context.of(planning.request(asked), 0.0)
    return combinations(context.workloads, context.gpu_types)


def test_every_pool_stands_with_all_its_servers_and_serves_all_workloads() -> None:
    found = of(published(12))
    assert found == sorted(found, key=lambda w: (w.cost, w.share))
    for likely in found:
        served = [w.name for k in likely.pools for w in k.item.workloads]
        assert sorted(served) == sorted(w.name for w in published(12))
        stands = Counter(n for gpus in likely.gpus.values() for gpu in gpus for n in gpu)
        assert stands == {n: k.item.servers for n, k in enumerate(likely.pools)}
        assert likely.least <= likely.cost


def test_a_workload_that_fits_nowhere_or_many_families_leave_no_combination() -> None:
    assert of((*published(12)[:3], workload("hopeless", "vgg19", 1.0, 100.0))) == []
    apart = [replace(w, isolated=True) for w in published(50)[:40]]
    assert of(tuple(apart)) == []
    assert planned("joint", apart).verified


@pytest.mark.parametrize(("rule", "latency", "gpus"), [(Rule.HALF_SLO, "igniter", 5), (Rule.P99, "ours", 7)])
def test_table_3_takes_as_few_gpus_as_proven(rule: Rule, latency: str, gpus: int) -> None:
    plan = planned("joint", published(12), rule=rule, latency=latency)
    assert plan.verified
    assert len(plan.gpus) == gpus

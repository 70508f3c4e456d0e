from dataclasses import replace

import pytest
from inss_instances import devices, workloads
from planning import RealClock, StoppedClock

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, ShadowWish
from controlplane.papers.inss.problem import Bda
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.registry import strategy
from controlplane.planning.replan.differences import changes

SIX = {
    "alexnet": 200.0,
    "resnet50": 150.0,
    "vgg16": 80.0,
    "mnasnet": 200.0,
    "mobilenet_v3": 250.0,
    "efficientnet": 250.0,
}
"""Where the authors' code begins."""


def planned(
    rates: dict[str, float],
    latency: str = "inss",
    rule: Rule = Rule.HALF_SLO,
    bda: Bda = Bda.EXACT,
    **more: object,
) -> Plan:
    request = PlanRequest(workloads(rates), devices(latency), rule, **{"clock": StoppedClock(), **more})  # type: ignore[arg-type]
    return strategy("inss", bda=bda, policy="none").plan(request)


def test_the_papers_cluster_serves_its_six_models() -> None:
    plan = planned(SIX)
    assert plan.verified
    assert not plan.infeasible
    assert len(plan.gpus) <= 4
    assert {w.name for _, _, w in plan.placements()} == set(SIX)
    assert planned(SIX).gpus == plan.gpus
    capacity = sum(w.predicted.capacity_rps or 0.0 for _, _, w in plan.placements())
    assert capacity > 2 * sum(SIX.values())


@pytest.mark.parametrize(
    ("latency", "rule"), [("ours", Rule.HALF_SLO), ("inss", Rule.P99), ("ours", Rule.P99)]
)
def test_another_judge_is_heard(latency: str, rule: Rule) -> None:
    heavy = {name: 1.6 * rate for name, rate in SIX.items()}
    plan = planned(heavy, latency, rule)
    assert plan.verified
    assert {w.name for _, _, w in plan.placements()} | {i.workload for i in plan.infeasible} == set(heavy)
    assert len(plan.infeasible) <= 1


def test_what_no_partition_holds_is_refused_with_what_would() -> None:
    plan = planned({**SIX, "vgg16": 5000.0})
    assert plan.verified
    (lost,) = plan.infeasible
    assert lost.workload == "vgg16"
    assert lost.nearest_rate_rps is not None
    again = planned({**SIX, "vgg16": lost.nearest_rate_rps})
    assert not [i for i in again.infeasible if "no partition" in i.reason]


def test_too_little_for_all_serves_whom_it_can() -> None:
    plan = planned({name: 4.0 * rate for name, rate in SIX.items()})
    assert plan.verified
    assert plan.infeasible
    assert sum(w.rate_rps for _, _, w in plan.placements()) > 0.5 * 4 * sum(SIX.values())


@pytest.mark.parametrize(("name", "counted"), [("rtx2060", "GPUs"), ("cpu", "cores")])
def test_an_open_number_of_devices_is_refused(name: str, counted: str) -> None:
    device = devices()["rtx2060"]
    open_ended = {name: replace(device, pool=replace(device.pool, count=None))}
    request = PlanRequest(workloads(SIX), open_ended, Rule.HALF_SLO, StoppedClock())
    with pytest.raises(InputError, match=f"gpus.{name}.count: inss fills a fixed number of {counted}: say"):
        strategy("inss").plan(request)


def test_a_shadow_on_another_gpu_finds_no_room_on_full_ones() -> None:
    wish = ShadowWish(ShadowPolicy.HOT, ShadowPlace.OTHER_GPU)
    asked = tuple(replace(w, shadow=wish) for w in workloads(SIX))
    with pytest.raises(InputError, match="no room on another"):
        strategy("inss").plan(PlanRequest(asked, devices(), Rule.HALF_SLO, StoppedClock()))


def test_what_runs_stays_where_it_is_as_long_as_it_serves() -> None:
    before = planned(SIX)
    slower = {name: 0.9 * rate for name, rate in SIX.items()}
    after = planned(slower, previous=before)
    moved = [c for c in changes(before, after) if c.before and c.after and c.before[:2] != c.after[:2]]
    assert not moved


def test_the_papers_batch_decision_is_judged_like_any() -> None:
    plan = planned(SIX, bda=Bda.PAPER)
    assert plan.verified
    exact = planned(SIX)
    capacity = [sum(w.predicted.capacity_rps or 0.0 for _, _, w in p.placements()) for p in (plan, exact)]
    assert capacity[0] <= capacity[1] * (1 + 1e-9)


def test_the_parts_of_planning_are_told() -> None:
    plan = planned(SIX, clock=RealClock())
    assert plan.totals is not None
    assert list(plan.totals.phases_ms) == ["tables", "search", "batches", "verify"]
    assert sum(plan.totals.phases_ms.values()) <= (plan.totals.planning_ms or 0.0)

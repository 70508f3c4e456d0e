"""GPUs are counted and not enough for all: who is served, and what the others are told."""

import random
from collections.abc import Sequence
from dataclasses import replace

import planning
import pytest
from planning import joint_p99, workload

from controlplane.domain.device import GpuPool
from controlplane.domain.plan import Infeasible, Plan
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, ShadowWish, Workload
from controlplane.files import catalogue
from controlplane.latency import registry as latency_registry
from controlplane.planning import registry
from controlplane.planning.protocol import Device

SMALL = [
    workload(f"w{i}", model, 40.0 + 5.0 * i, 30.0)
    for i, model in enumerate(("vgg19", "resnet50", "alexnet", "ssd", "vgg19"))
]
IMPOSSIBLE = workload("a", "vgg19", 20.0, 2500.0)
"""It takes six GPUs."""


def planned_on(count: int, asked: Sequence[Workload]) -> Plan:
    plan = joint_p99(asked, device=planning.v100("ours", count))
    assert plan.verified
    assert len(plan.gpus) <= count
    return plan


def served(plan: Plan) -> set[str]:
    return {w.name for _, _, w in plan.placements()}


def refused_alone(plan: Plan) -> Infeasible:
    (refused,) = plan.infeasible
    return refused


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
def test_one_that_takes_more_gpus_than_there_are_costs_nobody_his_place(isolated: bool) -> None:
    sibling = replace(workload("b", "vgg19", 40.0, 50.0), isolated=isolated)
    plan = planned_on(2, [IMPOSSIBLE, sibling])
    assert served(plan) == {"b"}
    assert plan.gpus == planned_on(2, [sibling]).gpus
    refused = refused_alone(plan)
    assert refused.workload == "a"
    assert "the GPUs do not suffice: it takes about 6 times" in refused.reason
    assert "there are 2 v100" in refused.reason


def test_of_six_the_one_that_takes_all_gpus_stays_away() -> None:
    greedy = workload("greedy", "ssd", 30.0, 440.0)
    assert served(planned_on(2, [greedy])) == {"greedy"}
    plan = planned_on(2, [greedy, *SMALL])
    assert served(plan) == {w.name for w in SMALL}
    refused = refused_alone(plan)
    assert refused.workload == "greedy"
    assert refused.reason.startswith("all GPUs are taken: the others leave ")
    assert "% of 2 v100, and it takes about " in refused.reason
    # By himself he would be served as asked.
    assert (refused.nearest_slo_ms, refused.nearest_rate_rps) == (None, None)
    assert planning.totals(plan).stopped_by != "optimal"


def test_what_would_fit_is_not_what_was_asked_and_fits() -> None:
    # The table allows it, the exact queue does not.
    refused = refused_alone(planned_on(2, [workload("g", "ssd", 30.0, 450.0)]))
    slo_ms, rate_rps = refused.nearest_slo_ms or 0.0, refused.nearest_rate_rps or 0.0
    assert 30.0 < slo_ms < 33.0
    assert 400.0 < rate_rps < 450.0
    assert served(planned_on(2, [workload("g", "ssd", slo_ms, 450.0)]))
    assert served(planned_on(2, [workload("g", "ssd", 30.0, rate_rps)]))
    assert refused_alone(planned_on(2, [IMPOSSIBLE])).nearest_slo_ms is None


@pytest.mark.slow
def test_who_can_go_elsewhere_makes_room_for_those_who_cannot() -> None:
    kind, profiles = catalogue.device("a100"), catalogue.profiles("a100")
    assert kind is not None
    a100 = Device(GpuPool(kind, 1, 10.0), latency_registry.build("ours", kind, profiles), profiles)
    asked = [
        workload("r0", "resnet50", 29.6, 265.0),
        workload("r1", "vgg19", 62.7, 108.0),
        workload("r2", "vgg19", 23.4, 10.6),
        workload("r3", "ssd", 49.5, 29.4),
        workload("r4", "alexnet", 28.9, 17.8),
        workload("r5", "alexnet", 34.1, 303.0),
        workload("r6", "alexnet", 43.0, 238.0),
    ]
    both = {"v100": planning.v100("ours", 1), "a100": a100}
    plan = registry.strategy("joint").plan(replace(planning.p99_request(asked), devices=both))
    assert plan.verified
    assert not plan.infeasible
    assert [g.id for g in plan.gpus] == ["v100-0", "a100-0"]


def random_workloads(count: int) -> list[Workload]:
    chance = random.Random(3)
    models = chance.choices(planning.MODELS, k=count)
    slo_ms = [chance.uniform(15.0, 80.0) for _ in range(count)]
    rates = [10.0 ** chance.uniform(1.0, 2.7) for _ in range(count)]
    return [workload(f"r{i}", models[i], slo_ms[i], rates[i]) for i in range(count)]


@pytest.mark.slow
def test_whoever_is_refused_cannot_be_held_or_finds_all_gpus_taken() -> None:
    asked = [*random_workloads(14), workload("strict", "vgg19", 2.0, 10.0)]
    plan = planned_on(2, asked)
    reasons = {refused.reason.partition(": ")[0] for refused in plan.infeasible}
    assert len(reasons) == 3, "each kind of refusal is among them"
    for refused in plan.infeasible:
        (one,) = (w for w in asked if w.name == refused.workload)
        held = bool(served(planned_on(2, [one])))
        no_room = ("all GPUs are taken: ", "the free v100 shares are fragmented: ")
        assert held == refused.reason.startswith(no_room)
        assert refused.nearest_slo_ms is None or refused.nearest_slo_ms > one.slo_ms
        assert refused.nearest_rate_rps is None or refused.nearest_rate_rps < one.rate_rps
    with_impossible = planned_on(2, [*asked, IMPOSSIBLE])
    assert served(with_impossible) == served(plan)


@pytest.mark.parametrize("strategy", ["joint", "igniter", "inss"])
def test_who_does_not_fit_into_memory_is_told_so_and_the_way_out(strategy: str) -> None:
    def planned(asked: Workload) -> Plan:
        return planning.planned(strategy, [asked], device=planning.v100(count=2))

    hot = ShadowWish(ShadowPolicy.HOT)
    large = replace(workload("a", "alexnet", 20.0, 100.0), memory_mb=9000.0, shadow=hot)
    refused = refused_alone(planned(large))
    assert refused.reason.startswith("it takes 9000 MB and as much for its shadow (`shadow: {policy: auto}` ")
    assert refused.reason.endswith(", and a v100 has 16160 MB")
    ways = [ShadowWish(), ShadowWish(ShadowPolicy.NONE), replace(hot, place=ShadowPlace.OTHER_GPU)]
    for wish in ways[: 2 if strategy == "inss" else 3]:  # it leaves no GPU free
        assert served(planned(replace(large, shadow=wish))) == {"a"}
    larger = refused_alone(planned(replace(large, memory_mb=20000.0)))
    assert "other-gpu" not in larger.reason
    assert (larger.nearest_slo_ms, larger.nearest_rate_rps) == (None, None), "neither makes it smaller"

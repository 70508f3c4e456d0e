from dataclasses import replace

import planning
from planning import planned, published, workload

from controlplane.domain.device import CPU_GRID, Device, GpuPool, ShareKind
from controlplane.domain.plan import Rule
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.papers.igniter import latency as model
from controlplane.planning import protocol, registry


def test_an_slo_no_share_can_meet_is_refused_and_the_rest_is_planned() -> None:
    # iGniter's Eq 18 divides by a negative delta here; the prototype then lets a neighbour in.
    plan = planned("igniter", [workload("fast", "vgg19", 2.0, 10.0), workload("ok", "vgg19", 40.0, 100.0)])
    assert [p.id for _, p in plan.partitions()] == ["ok"]
    assert plan.verified
    (refused,) = plan.infeasible
    assert refused.workload == "fast"
    assert "half of 2 ms" in refused.reason
    assert refused.nearest_slo_ms is not None
    held = planned("igniter", [workload("fast", "vgg19", refused.nearest_slo_ms, 10.0)])
    assert held.verified
    assert not held.infeasible
    nearly = planned("igniter", [workload("fast", "vgg19", refused.nearest_slo_ms - 0.3, 10.0)])
    assert nearly.infeasible


def test_a_rate_above_one_gpu_names_the_nearest_rate() -> None:
    plan = planned("igniter", [workload("much", "ssd", 50.0, 5000.0)])
    (refused,) = plan.infeasible
    assert refused.nearest_rate_rps is not None
    held = planned("igniter", [workload("much", "ssd", 50.0, refused.nearest_rate_rps)])
    assert held.verified
    assert not held.infeasible


def test_the_batch_is_capped_by_engine_and_profile() -> None:
    plan = planned("igniter", [workload("slow", "alexnet", 400.0, 900.0)])
    assert [p.models[0].batch for _, p in plan.partitions()] == [32]
    assert plan.verified


def test_a_gpu_of_its_own_is_validated_too() -> None:
    # Eq 18 leaves out the power cap: alone at its lower bound this one would break Eq 14.
    for slo in (12.0, 16.0, 20.0, 30.0):
        for rate in (700.0, 900.0, 1000.0):
            plan = planned("igniter", [workload("a", "resnet50", slo, rate)])
            assert plan.verified


def test_gpus_run_out() -> None:
    base = planning.request(published(12))
    few = replace(base, devices={"v100": planning.v100(count=3)})
    plan = registry.strategy("igniter").plan(few)
    assert len(plan.gpus) == 3
    assert plan.infeasible
    reasons = ("all 3 v100 are taken", "the free v100 shares are fragmented: ")
    assert all(i.reason.startswith(reasons) for i in plan.infeasible)
    assert plan.verified


def test_a_cpu_core_is_a_device_like_any_other() -> None:
    kind = Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID)
    points = tuple(
        Measurement(percent=float(p), batch=b, execution_ms=(60.0 * b + 20.0) / p + 0.4)
        for p in (20, 50, 100)
        for b in (1, 4, 8)
    )
    profiles = {"m": Profile("m", "cpu", ShareKind.CPU_QUOTA, Environment(), points)}
    device = protocol.Device(GpuPool(kind, 2, 0.0), model.fit(profiles, kind), profiles)
    asked = protocol.PlanRequest(
        tuple(workload(f"w{i}", "m", 30.0 + 10 * i, 100.0) for i in range(4)),
        {"cpu": device},
        Rule.HALF_SLO,
        planning.StoppedClock(),
    )
    plan = registry.strategy("igniter").plan(asked)
    assert plan.verified
    assert not plan.infeasible
    assert {g.id for g in plan.gpus} <= {"cpu-0", "cpu-1"}
    for _, partition in plan.partitions():
        assert partition.percent >= 20.0
        assert partition.percent % 5.0 == 0.0

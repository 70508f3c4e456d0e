"""Profiles that know one share only: no latency model and no strategy may guess at smaller ones."""

from dataclasses import replace

import numpy as np
import pytest
from planning import StoppedClock, workload

from controlplane.domain.device import CPU_GRID, Device, GpuPool, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.latency import registry as latency_registry
from controlplane.latency.adjusted import UNKNOWN_MS
from controlplane.latency.protocol import Slots
from controlplane.planning import registry
from controlplane.planning.judge.verify import verify
from controlplane.planning.protocol import Device as PlanningDevice
from controlplane.planning.protocol import PlanRequest

CPU = Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID)


def profile(*percents: float, model: str = "m") -> Profile:
    points = tuple(
        Measurement(percent, batch, (2.0 + batch) * 100.0 / percent)
        for percent in percents
        for batch in (1, 2, 4, 8, 16)
    )
    return Profile(model, "cpu", ShareKind.CPU_QUOTA, Environment(), points, max_batch=16)


def planning_device(*profiles: Profile, latency: str = "ours", count: int | None = None) -> PlanningDevice:
    known = {p.model: p for p in profiles}
    return PlanningDevice(GpuPool(CPU, count, 0.0), latency_registry.build(latency, CPU, known), known)


def planned(strategy: str, device: PlanningDevice, rule: Rule) -> Plan:
    asked = (workload("W", "m", 400.0, 20.0),)
    request = PlanRequest(asked, {"cpu": device}, rule, StoppedClock())
    return registry.strategy(strategy).plan(request)


def test_a_share_below_the_only_measured_one_never_ends() -> None:
    model = planning_device(profile(50.0)).latency
    told = model.estimate(Slots.alone([0, 0, 0], [1.0, 1.0, 1.0], [20.0, 50.0, 100.0]))
    assert told.execution_ms[0, 0] == told.cycle_upper_ms[0, 0] == UNKNOWN_MS
    assert told.execution_ms[1, 0] == told.execution_ms[2, 0] == pytest.approx(6.0)


def test_models_with_a_share_curve_are_answered_as_before() -> None:
    curve, single = profile(20.0, 60.0, 100.0), profile(100.0, model="one")
    alone, both = (planning_device(*p).latency for p in ((curve,), (curve, single)))
    slots = Slots.alone([0], [4.0], [30.0])
    np.testing.assert_allclose(both.estimate(slots).execution_ms, alone.estimate(slots).execution_ms)


@pytest.mark.parametrize("rule", list(Rule))
def test_the_default_strategy_plans_no_share_below_the_only_measured_one(rule: Rule) -> None:
    plan = planned("joint", planning_device(profile(100.0)), rule)
    assert [p.percent for _, p in plan.partitions()] == [100.0]
    assert plan.verified
    curve = planned("joint", planning_device(profile(20.0, 60.0, 100.0)), rule)
    assert [p.percent for _, p in curve.partitions()] == [20.0]


@pytest.mark.parametrize("strategy", ["gpulet", "greedy-best-fit", "latency-aware"])
def test_a_strategy_with_a_table_of_its_own_makes_no_verified_plan_of_a_guess(strategy: str) -> None:
    latency = "latency-aware" if strategy == "latency-aware" else "gpulet"
    plan = planned(strategy, planning_device(profile(100.0), latency=latency), Rule.HALF_SLO)
    assert next(plan.partitions())[1].percent < 100.0
    assert not plan.verified
    assert any("was measured at 100 % only" in v.reason for v in plan.violations)


def test_a_strategy_that_fits_eq_11_asks_for_more_shares() -> None:
    more = replace(profile(100.0), points=(*profile(100.0).points, Measurement(100.0, 32, 34.0)))
    with pytest.raises(InputError, match="m was measured at one share only; run `ctl profile m`"):
        planned("igniter", planning_device(more, latency="igniter"), Rule.HALF_SLO)


def test_verify_names_the_share_that_was_never_measured() -> None:
    curve = planning_device(profile(20.0, 60.0, 100.0))
    plan = planned("joint", curve, Rule.P99)
    assert not verify(plan, {"cpu": curve})
    found = verify(plan, {"cpu": planning_device(profile(100.0))})
    percent = next(plan.partitions())[1].percent
    assert f"m was measured at 100 % only, and its share is {percent:g} %" in found[0].reason
    assert "`ctl profile m`" in found[0].reason


def test_one_share_is_said_of_a_profile() -> None:
    assert profile(100.0).only_percent == 100.0
    assert profile(20.0, 100.0).only_percent is None
    assert replace(profile(100.0), points=()).only_percent is None

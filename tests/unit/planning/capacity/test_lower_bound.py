from dataclasses import replace

import exhaustive
import planning
import pytest
import turing
from planning import published

from controlplane.domain.device import ShareGrid
from controlplane.domain.plan import Rule
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.gpu_types import gpu_types
from controlplane.planning.capacity.lower_bound import lower_bound

PRICE = 3.06


def bound_of(workloads: tuple[Workload, ...], rule: Rule = Rule.HALF_SLO) -> float:
    gpu_type = planning.gpu_type("ours" if rule is Rule.P99 else "igniter")
    return lower_bound(workloads, {"v100": gpu_type})


@pytest.mark.parametrize("seed", [0, 3, 12, 17, 22])
def test_trying_everything_finds_nothing_cheaper(seed: int) -> None:
    workloads, devices = exhaustive.small_case(seed), exhaustive.mixed()
    bound = lower_bound(workloads, gpu_types(devices, Rule.HALF_SLO, 0.95))
    assert 0.0 < bound <= exhaustive.cheapest(workloads, devices, most_servers=2) + 1e-9


@pytest.mark.parametrize("rule", [Rule.P99, Rule.HALF_SLO])
def test_workloads_that_share_no_queue_cost_no_less(rule: Rule) -> None:
    asked = published(50)
    apart = tuple(replace(w, isolated=True) for w in asked)
    assert PRICE < bound_of(asked, rule) <= bound_of(apart, rule) <= PRICE * len(asked)


def test_more_workloads_and_higher_rates_cost_no_less() -> None:
    asked = published(12)
    faster = tuple(replace(w, rate_rps=1.5 * w.rate_rps) for w in asked)
    assert bound_of(asked[:6]) <= bound_of(asked) <= bound_of(faster)
    assert bound_of(()) == 0.0


def test_whole_gpus_are_counted_where_they_cost_the_same() -> None:
    bound = bound_of(published(12))
    assert bound / PRICE == pytest.approx(round(bound / PRICE))


def test_models_that_take_turns_on_a_gpu_need_its_memory_together() -> None:
    """9,114 MB of six models, on GPUs that have 8,670 beside one process."""
    asked = turing.asked(dict.fromkeys(turing.SIX, 1.0))
    known = turing.device(None, "ours")
    unknown = replace(known, pool=replace(known.pool, device=replace(known.pool.device, memory_mb=None)))
    for device, gpus in ((known, 2.0), (unknown, 1.0)):
        assert lower_bound(asked, gpu_types({"rtx2080ti": device}, Rule.P99, 0.95)) == gpus


def test_what_a_free_type_serves_costs_nothing() -> None:
    devices = {"v100": planning.v100(), "spare": planning.v100(price=0.0)}
    types = gpu_types(devices, Rule.HALF_SLO, 0.95)
    assert lower_bound(published(12), types) == pytest.approx(0.0)


@pytest.mark.parametrize(("minimum", "step"), [(20.0, 40.0), (20.0, 25.0)])
def test_a_share_smaller_than_the_grids_step_takes_room_too(minimum: float, step: float) -> None:
    coarse = planning.on_grid(planning.v100(), ShareGrid(minimum, step))
    asked = published(12)[:6]
    bound = lower_bound(asked, gpu_types({"v100": coarse}, Rule.HALF_SLO, 0.95))
    plan = planning.planned("joint", asked, device=coarse)
    assert PRICE <= bound <= PRICE * len(plan.gpus) + 1e-9

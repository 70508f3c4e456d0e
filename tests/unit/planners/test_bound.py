from __future__ import annotations

from dataclasses import replace

import exhaustive
import planning
import pytest
from planning import published, workload

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Workload
from controlplane.planners.bound import lower_bound
from controlplane.planners.company import Mutual
from controlplane.planners.menu import Alone

pytestmark = pytest.mark.unit

PRICE = 3.06


def bound_of(workloads: tuple[Workload, ...], rule: Rule = Rule.HALF_SLO) -> float:
    latency, quantile = ("ours", 0.95) if rule is Rule.P99 else ("igniter", None)
    devices = {"v100": planning.v100(latency)}
    return lower_bound(workloads, devices, {"v100": Alone.of(devices["v100"], quantile)}, rule, quantile)


@pytest.mark.parametrize("seed", [0, 3, 12, 17, 22])
def test_trying_everything_finds_nothing_cheaper(seed: int) -> None:
    workloads, devices = exhaustive.small_case(seed), exhaustive.mixed()
    alone = {name: Alone.of(device, None) for name, device in devices.items()}
    bound = lower_bound(workloads, devices, alone, Rule.HALF_SLO, None)
    assert 0.0 < bound <= exhaustive.cheapest(workloads, devices, most_servers=2) + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Rule.P99, Rule.HALF_SLO])
def test_who_may_not_meet_costs_no_less(rule: Rule) -> None:
    asked = published(50)
    apart = tuple(replace(w, isolated=True) for w in asked)
    assert PRICE < bound_of(asked, rule) < bound_of(apart, rule) <= PRICE * len(asked)


@pytest.mark.slow
def test_who_shares_a_gpu_is_slowed_by_whom_it_slows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = published(200)
    bound = bound_of(asked, Rule.P99)
    monkeypatch.setattr(Mutual, "of", lambda *told: None)
    assert bound > bound_of(asked, Rule.P99)


def test_more_workloads_and_higher_rates_cost_no_less() -> None:
    asked = published(12)
    faster = tuple(replace(w, rate_rps=1.5 * w.rate_rps) for w in asked)
    assert bound_of(asked[:6]) <= bound_of(asked) <= bound_of(faster)
    assert bound_of(()) == 0.0


def test_large_parts_are_no_neighbours() -> None:
    # Each takes 55 percent, however low its rate: two GPUs would do by the sum of the shares.
    three = tuple(replace(workload(f"w{n}", "vgg19", 9.5, 20.0), isolated=True) for n in range(3))
    assert bound_of(three) == pytest.approx(3 * PRICE)


def test_whole_gpus_are_counted_where_they_cost_the_same() -> None:
    bound = bound_of(published(12))
    assert bound / PRICE == pytest.approx(round(bound / PRICE))


def test_what_a_free_type_serves_costs_nothing() -> None:
    devices = {"v100": planning.v100(), "spare": planning.v100(price=0.0)}
    alone = {name: Alone.of(device, None) for name, device in devices.items()}
    assert lower_bound(published(12), devices, alone, Rule.HALF_SLO, None) == pytest.approx(0.0)

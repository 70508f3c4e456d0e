"""Short forms of the figures of planners.md and changing-load.md: they move by no more than their spread."""

import planning
import pytest

from benchmarks.harness import Figures
from benchmarks.plans import changing_load, planners
from benchmarks.support import covers, promises
from controlplane.domain.plan import Rule
from controlplane.planning.exact.prove import prove

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("count", "rule", "gpus"),
    [(12, Rule.P99, 7), (50, Rule.P99, 18), (200, Rule.P99, 64), (200, Rule.HALF_SLO, 57)],
)
def test_joint_takes_as_many_gpus_as_the_page_says(count: int, rule: Rule, gpus: int) -> None:
    latency = "ours" if rule is Rule.P99 else "igniter"
    plan = planning.planned("joint", planning.published(count), rule=rule, latency=latency)
    assert plan.verified
    assert len(plan.gpus) == gpus


@pytest.mark.parametrize(("listed", "gpus"), [(2, 31), (7, 35)])
def test_lists_that_no_search_was_tuned_on_take_as_many_gpus_as_before(listed: int, gpus: int) -> None:
    workloads = planners.fresh_lists()[listed]
    plan = planning.joint_p99(workloads)
    assert plan.verified
    assert not plan.infeasible
    assert len(plan.gpus) == gpus


def test_the_bound_is_as_close_as_the_page_says() -> None:
    request = planning.p99_request(planning.published(50))
    plan = planning.joint_p99(request.workloads)
    assert planning.totals(plan).lower_bound_gpus == 14
    assert planning.totals(prove(plan, request)).lower_bound_gpus == 15


def test_the_aims_of_a_changing_load_are_kept_at_planned_rates_and_missed_by_plans_that_stay() -> None:
    case = changing_load.threshold()
    counts = case.counts(seed=1)[:200]
    served, stays, found = changing_load.ours(case, counts), changing_load.ours(case, counts), Figures()
    changing_load.measure(counts, served)
    changing_load.judge(found, case, served, changing_load.oracle(case)[:200])
    assert found.end() == 0
    changing_load.measure(3 * counts, stays)
    changing_load.judge(found, case, stays, changing_load.oracle(case)[:200])
    assert found.end() == 1


def test_a_model_that_is_slower_makes_late_only_what_no_shadow_covers() -> None:
    plan = planning.joint_p99(planning.published(12))
    late = covers.late_where_slower(plan, 1.1, 40.0)
    assert late.before > late.after
    assert late.covered > 0
    assert late.late_though_covered == 0


@pytest.mark.parametrize(
    ("way", "least", "most"),
    [
        ("joint", {}, {"constant": 0, "Poisson": 0, "held-out": 1}),
        ("igniter", {"Poisson": 10, "held-out": 10}, {"constant": 0}),
        ("equal shares", {"Poisson": 2}, {}),
    ],
)
def test_late_workloads_are_those_that_the_page_says(
    way: str, least: dict[str, int], most: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promises, "SECONDS", 40.0)
    (chosen,) = (one for one in promises.WAYS if one.name == way)
    _, late = promises.judged(chosen, planning.published(12), slowed=False)
    assert {name: late[name] for name in least if late[name] < least[name]} == {}
    assert {name: late[name] for name in most if late[name] > most[name]} == {}

"""Short forms of the figures of docs/results/planners.md: they may not move by more than their spread."""

from __future__ import annotations

import planning
import pytest

from benchmarks.support import promises
from controlplane.domain.plan import Rule

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("count", "rule", "gpus"),
    [(12, Rule.P99, 7), (50, Rule.P99, 18), (200, Rule.P99, 65), (50, Rule.HALF_SLO, 15)],
)
def test_joint_takes_as_many_gpus_as_the_page_says(count: int, rule: Rule, gpus: int) -> None:
    latency = "ours" if rule is Rule.P99 else "igniter"
    plan = planning.planned("joint", planning.published(count), rule=rule, latency=latency)
    assert plan.verified
    assert len(plan.gpus) == gpus


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

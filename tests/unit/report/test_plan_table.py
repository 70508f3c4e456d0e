"""What the table of a plan says below its lines."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel, Shadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.report.plan_table import plan_table

pytestmark = pytest.mark.unit


def partition(name: str, percent: float, shadow: Shadow | None) -> Partition:
    placement = Placement(name, name, "ssd", 10, 50)
    return Partition(name, percent, (ServedModel("ssd", 1),), (placement,), shadow=shadow)


def hot(gpu: str, extra: float, percent: float) -> Shadow:
    return Shadow(ShadowPolicy.HOT, gpu, extra, percent + extra)


def told(rule: Rule, gpus: Sequence[Sequence[Partition]]) -> str:
    plan = Plan(
        "joint", rule, "ours", tuple(PlannedGpu(f"v100-{i}", "v100", tuple(g)) for i, g in enumerate(gpus))
    )
    console = Console(file=io.StringIO(), width=400, highlight=False)
    console.print(plan_table(plan))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line for line in console.file.getvalue().splitlines() if "add no share" in line)


def test_it_says_which_shadows_cover_no_slower_server_and_the_way_out() -> None:
    whole = partition("a", 100, hot("v100-0", 0, 100))
    crowded = [partition("b", 60, hot("v100-1", 0, 60)), partition("c", 40, hot("v100-1", 0, 40))]
    roomy = partition("d", 80, hot("v100-2", 10, 80))
    bare = partition("e", 10, Shadow(ShadowPolicy.NONE, "v100-2", 0, 10))
    line = told(Rule.P99, [[whole], crowded, [roomy, bare]])
    assert "not a slower server: 3 of 4; 1 for a partition with a whole GPU (a higher --quantile" in line
    assert "2 whose GPU has none to give (`shadow: {place: other-gpu}`" in line
    assert "a shorter SLO" in told(Rule.HALF_SLO, [[whole]])


def test_other_gpus_are_offered_only_where_they_can_have_more() -> None:
    # All of another GPU is no more than all of this one, and who stands elsewhere has asked for it already.
    assert "other-gpu" not in told(Rule.P99, [[partition("a", 100, hot("v100-1", 0, 100))], []])
    assert "other-gpu" not in told(Rule.P99, [[partition("a", 60, hot("v100-1", 0, 60))], []])
    assert told(Rule.P99, [[partition("a", 60, hot("v100-1", 10, 60))], []]) == ""
    assert told(Rule.P99, [[partition("a", 100, None)]]) == ""

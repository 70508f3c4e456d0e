"""What a plan changes about the one before, as a person reads it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.report.change_table import change_table

pytestmark = pytest.mark.unit


def pool(rate_rps: float, slo_ms: float) -> Plan:
    """One workload on three servers."""
    placement = Placement("W1", "a", "ssd", rate_rps / 3, slo_ms)
    gpus = tuple(
        PlannedGpu(
            f"v100-{i}", "v100", (Partition(f"W1-{i + 1}", 40.0, (ServedModel("ssd", 2),), (placement,)),)
        )
        for i in range(3)
    )
    return Plan("joint", Rule.P99, "ours", gpus)


def lines(before: Plan, after: Plan) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(change_table(before, after))
    assert isinstance(console.file, io.StringIO)
    return [line.split() for line in console.file.getvalue().splitlines() if line.strip()]


def test_what_a_workload_that_stays_asks_for_otherwise_is_told_of_the_whole_pool() -> None:
    told = lines(pool(100, 40), pool(120, 35.5))
    assert told[0] == ["0", "partitions", "changed,", "0", "moved"]
    assert told[1:2] == [["asked", "for", "differently:", "1", "workload"]]
    assert told[3:] == [["W1", "slo_ms", "40", "35.5"], ["W1", "rate_rps", "100", "120"]]


def test_the_same_asked_of_other_parts_is_nothing() -> None:
    plan = pool(100, 40)
    two = [replace(p, workloads=(replace(p.workloads[0], rate_rps=50.0),)) for _, p in plan.partitions()]
    fewer = replace(
        plan, gpus=tuple(replace(g, partitions=(p,)) for g, p in zip(plan.gpus[:2], two[:2], strict=True))
    )
    told = lines(plan, fewer)
    assert not any("differently:" in line for line in told)
    assert ["stopped", "W1-3", "40", "%", "of", "v100-2,", "batch", "2", "–", "W1"] in told
    assert lines(plan, plan) == [["nothing", "changes"]]

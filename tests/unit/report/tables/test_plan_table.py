"""What the table of a plan says below its lines."""

import io
from collections.abc import Sequence
from dataclasses import replace

import build
import pytest
from rich.console import Console

from controlplane.domain.plan import Partition, Plan, PlannedGpu, Rule, Shadow, Totals
from controlplane.domain.workload import ShadowPolicy
from controlplane.report.tables.plan_table import plan_table
from controlplane.report.tables.terminal import show


def partition(name: str, percent: float, shadow: Shadow | None) -> Partition:
    return build.partition(name, percent, model="ssd", shadow=shadow)


def hot(gpu: str, extra: float, percent: float) -> Shadow:
    return Shadow(ShadowPolicy.HOT, gpu, extra, percent + extra)


def told(rule: Rule, gpus: Sequence[Sequence[Partition]]) -> str:
    plan = Plan(
        "joint", rule, "ours", tuple(PlannedGpu(f"v100-{i}", "v100", tuple(g)) for i, g in enumerate(gpus))
    )
    return "\n".join(line for line in text(plan).splitlines() if "add no share" in line)


def text(plan: Plan) -> str:
    out = io.StringIO()
    Console(file=out, width=400, highlight=False).print(plan_table(plan))
    return out.getvalue()


def test_it_says_which_shadows_cover_no_slower_server_and_the_way_out() -> None:
    whole = partition("a", 100, hot("v100-0", 0, 100))
    crowded = [partition("b", 60, hot("v100-1", 0, 60)), partition("c", 40, hot("v100-1", 0, 40))]
    roomy = partition("d", 80, hot("v100-2", 10, 80))
    bare = partition("e", 10, Shadow(ShadowPolicy.NONE, "v100-2", 0, 10))
    line = told(Rule.P99, [[whole], crowded, [roomy, bare]])
    assert "not a slower server: 3 of 4; 1 for a partition with a whole GPU (a higher --set quantile=" in line
    assert "2 whose GPU has none to give (`shadow: {place: other-gpu}`" in line
    assert "a shorter SLO" in told(Rule.HALF_SLO, [[whole]])
    # Other GPUs are offered only where they can have more.
    # All of another GPU is no more than all of this one, and who stands elsewhere has asked for it already.
    assert "other-gpu" not in told(Rule.P99, [[partition("a", 100, hot("v100-1", 0, 100))], []])
    assert "other-gpu" not in told(Rule.P99, [[partition("a", 60, hot("v100-1", 0, 60))], []])
    assert told(Rule.P99, [[partition("a", 60, hot("v100-1", 10, 60))], []]) == ""
    assert told(Rule.P99, [[partition("a", 100, None)]]) == ""


def test_it_says_at_which_quantile_it_predicts_and_no_price_where_none_was_given() -> None:
    totals = Totals(1, 300 / 7, 0.0, 0.0, 1, planning_ms=999.94, phases_ms={"verify": 12345.0})
    free = build.plan(partition("a", 300 / 7, None), quantile=0.95, totals=totals)
    told = text(free)
    assert "exec and P99 predicted with execution times at their 95 % quantile" in told
    assert "by-hand: 1 GPU (lower bound 1), 42.86 % of share, planned in 999.9 ms (verify 12.3 s)" in told
    assert "42.857" not in told
    priced = replace(free, gpus=(replace(free.gpus[0], price_per_hour=3.06),), quantile=None)
    assert "0.00 per hour (lower bound 0.00)" in text(priced)
    assert "quantile" not in text(priced)


def test_nothing_is_padded_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    show(plan_table(build.plan(partition("a", 40, None))))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("GPU")
    assert lines[1].endswith("–")
    assert lines == [line.rstrip() for line in lines]


def test_a_core_is_not_called_a_gpu() -> None:
    totals = Totals(gpus=2, percent=130.0, cost_per_hour=0.0, planning_ms=None)
    cores = [
        PlannedGpu(f"cpu-{i}", "cpu", (partition(p, 100, hot(f"cpu-{i}", 0, 100)),))
        for i, p in ((0, "a"), (1, "b"))
    ]
    plan = Plan("joint", Rule.P99, "ours", tuple(cores), totals=totals)
    told = text(plan)
    assert "joint: 2 cores" in told
    assert "2 for a partition with a whole core" in told
    assert "GPU" not in told
    mixed = replace(plan, gpus=(*cores, PlannedGpu("v100-0", "v100", ())))
    assert "joint: 2 devices" in text(mixed)


def test_it_says_what_shadows_survive() -> None:
    factors = (1.04, 1.31, 1.1)
    partitions = [
        partition(f"p{i}", 20, Shadow(ShadowPolicy.HOT, "v100-0", 5, 25, covers=factor))
        for i, factor in enumerate(factors)
    ]
    known = [replace(p, survives_gpu_loss=i == 0) for i, p in enumerate(partitions)]
    lines = text(build.plan(*known)).splitlines()
    errors = "shadows survive errors of 1.04 to 1.31 times; 1 of 3 below 1.1"
    assert any(line.startswith(errors) for line in lines)
    assert "partitions that survive the loss of their GPU: 1 of 3" in lines
    assert "survive" not in text(build.plan())


def test_it_says_what_memory_is_taken_and_what_is_unknown() -> None:
    warm = Shadow(ShadowPolicy.WARM, "t4-0", 5, 25, load_s=3.2)
    hot = Shadow(ShadowPolicy.HOT, "t4-0", 5, 25, memory_mb=400.0)
    partitions = (
        replace(partition("a", 20, hot), memory_mb=400.0),
        replace(partition("b", 20, warm), memory_mb=700.0),
        partition("c", 20, warm),
    )
    gpu = PlannedGpu("t4-0", "t4", partitions, memory_mb=9900.0)
    told = text(replace(build.plan(), gpus=(gpu,)))
    assert "t4-0 (60 %, 1500 of 9900 MB)" in told
    assert "unknown and counts as none: 1 of 3" in told
    assert "hot 25 %, 0.2 s" in told
    assert "warm 25 %, 3.4 s" in told
    assert "up to 3.4 s; 2 of 3 not within 1 s" in told

"""Tables a person reads, held to the letter."""

from dataclasses import replace
from pathlib import Path

from rich.console import RenderableType

from controlplane.domain.plan import (
    Infeasible,
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Prediction,
    Rule,
    ServedModel,
    Shadow,
    Totals,
    Violation,
)
from controlplane.domain.workload import ShadowPolicy
from controlplane.report.tables.demo_table import (
    Cut,
    DemoRow,
    Repair,
    Span,
    demo_table,
    repair_lines,
    repair_table,
)
from controlplane.report.tables.plan_table import plan_table
from controlplane.report.tables.status_table import (
    GuardRow,
    Restarted,
    Status,
    StatusRow,
    WorkloadRow,
    status_document,
    status_view,
)
from controlplane.report.tables.terminal import plain

HERE = Path(__file__).parent


def text(renderable: RenderableType) -> str:
    return f"{plain(renderable)}\n"


def test_a_plan() -> None:
    predicted = Prediction(27.0, 30.0, None, 306.4, 0.979)
    shadow = Shadow(ShadowPolicy.HOT, "v100-1", 7.5, 100, covers=1.06)
    placed = Placement("W12", "W12", "ssd", 300, 55, predicted=predicted)
    ssd = Partition("W12", 92.5, (ServedModel("ssd", 8),), (placed,), shadow=shadow, survives_gpu_loss=True)
    plan = Plan(
        "igniter",
        Rule.HALF_SLO,
        "igniter",
        tuple(
            PlannedGpu(f"v100-{n}", "v100", partitions, price_per_hour=3.06)
            for n, partitions in enumerate(((ssd,), ()))
        ),
        violations=(Violation("W12", "executes in 28.0 ms, half its SLO is 27.5 ms"),),
        infeasible=(Infeasible("W13", "no share is fast enough", 12.5, 180),),
        totals=Totals(2, 92.5, 6.12, 3.06, 1, planning_ms=105610.4),
    )
    assert text(plan_table(plan)) == (HERE / "plan_table.txt").read_text()


ACTIVE = StatusRow("a", "active", "running", "cpu-0", 30, "cgroup-v1", ("a",), True, "a", "b")


def test_a_status() -> None:
    seen = {"slo_ms": 200, "p99_ms": 4.3, "planned_rps": 100, "rate_rps": 99.5, "errors": 0}
    other = replace(ACTIVE, role="shadow", percent=40, enforced_by=None, routed=False, server="f.a.shadow.3c")
    rows = (replace(ACTIVE, server="f.a.active.2b", **seen), other)
    redirect = ("x -> y: slow server", 1.2, "shadow a.1 lost")
    down = (200.0, None, False, 5, True, 550.0, None, None, 7300.0, "5 starts in a row did not live 10 s")
    guard = (
        GuardRow("a", "settling", 1.2, "a.1", True, 1, False, None, 1.2, *redirect),
        GuardRow("b", "down", *down),
        GuardRow("c"),
    )
    assert text(status_view(Status(rows, (), guard, None))) == (HERE / "status_table.txt").read_text()


def test_a_status_of_shared_queues() -> None:
    seen = {"slo_ms": 100, "p99_ms": 112.5, "planned_rps": 50, "rate_rps": 40, "errors": 1}
    row = replace(ACTIVE, partition="P", endpoints=("a", "b", "c", "d", "e"), **seen)
    workloads = (
        WorkloadRow("A", "a", ("P",), 100, 10, 8.25, 9.5, 1, refused=12),
        WorkloadRow("B", "b", ("P", "Q-1", "Q-2", "Q-3"), 250, 40),
    )
    restarts = (Restarted(75.0, "haproxy ended by signal 9"), Restarted(74.0, "monitor ended by signal 9"))
    told = text(status_view(Status((row,), workloads, (), 7, restarts=restarts)))
    assert told == (HERE / "status_shared_table.txt").read_text()


def test_a_status_without_an_engine() -> None:
    status = Status((), (), (GuardRow("a", "exposed", 3.0),), 7, "the engine does not answer")
    told = text(status_view(status))
    assert told.splitlines()[0] == "the servers are unknown: the engine does not answer"
    assert "exposed for 3 s" in told
    assert status_document("f", status)["trouble"] == "the engine does not answer"


def test_a_demo() -> None:
    row = DemoRow("rank", "tiny", 35, 4, 20.0, 21.5, 25, 500, 0, 24.1, 88.4, 200)
    assert text(demo_table([row])) == (HERE / "demo_table.txt").read_text()


def test_a_repair() -> None:
    spans = (
        Span("before the cut", -5.0, 0.0, 400, 0, 14.0, 70.25),
        Span("until redirected", 0.0, 1.9, 0, 0, None, None),
        Span("served by the shadow", 2.9, 8.0, 410, 1, 300.0, 600.0),
    )
    deeper = Cut(1.5, 7.5)
    repair = Repair("detect", 200, 30, 15, 1.92, "slow server", 1.95, 3.2, "40 % of cpu-0", spans, deeper)
    told = "".join(f"{line}\n" for line in repair_lines(repair)) + text(repair_table(repair))
    assert told == (HERE / "repair_table.txt").read_text()

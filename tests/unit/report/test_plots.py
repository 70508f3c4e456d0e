"""A plan drawn holds every partition."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_service import KnownService

from controlplane.domain.errors import EngineError
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Prediction, Rule, ServedModel
from controlplane.report.plots import POINTS, plot_plan, plot_simulation
from controlplane.simulate.engine import Settings, simulate


@pytest.mark.parametrize(("rule", "told"), [(Rule.P99, "b4 · 50 %"), (Rule.HALF_SLO, "b4 · 40 %")])
def test_each_segment_tells_workload_batch_and_slo(tmp_path: Path, rule: Rule, told: str) -> None:
    placement = Placement("search", "search", "resnet50", 10, 100, predicted=Prediction(20, None, 50))
    partition = Partition("search", 40, (ServedModel("resnet50", 4),), (placement,))
    plan = Plan("joint", rule, "ours", (PlannedGpu("v100-0", "v100", (partition,)),))
    drawn = tmp_path / "new" / "plan.svg"
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_plan(plan, drawn)
    text = drawn.read_text()
    for word in ("search", "v100-0", "resnet50", told):
        assert word in text


def test_models_that_take_turns_are_drawn_in_one_segment(tmp_path: Path) -> None:
    both = Partition(
        "P",
        40,
        (ServedModel("resnet50", 4), ServedModel("bert", 2)),
        tuple(Placement(w, w, m, 10, 100) for w, m in (("search", "resnet50"), ("ask", "bert"))),
    )
    plan = Plan("by-hand", Rule.P99, "ours", (PlannedGpu("v100-0", "v100", (both,)),))
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_plan(plan, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    for word in ("search", "ask", "resnet50", "bert", "b4+2"):
        assert word in text


def test_a_figure_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"plan\.svg: cannot be written"):
        plot_plan(Plan("joint", Rule.P99, "ours", ()), tmp_path / "file" / "plan.svg")


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_figure_is_written_in_the_format_of_its_name(tmp_path, suffix, magic):
    placements = (Placement("fast", "fast", "m", 100.0, 20.0), Placement("late", "late", "m", 5.0, 1.0))
    partition = Partition("p", 50.0, (ServedModel("m", 4),), placements)
    plan = Plan("x", Rule.P99, "known", (PlannedGpu("g", "t4", (partition,)),))
    truth = {"t4": KnownService({"m": (3.0, 4.0, 5.0, 6.0)})}
    result = simulate(plan, truth, Settings(seconds=5.0, timeline_points=POINTS))
    path = tmp_path / f"latency.{suffix}"
    plot_simulation(result, path)
    assert path.read_bytes().startswith(magic)
    assert result.breaks == 1

from __future__ import annotations

import pytest
from known_service import KnownService

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.report.plots import POINTS, plot_simulation
from controlplane.simulate.engine import Settings, simulate


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

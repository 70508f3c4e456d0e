"""What the default model must hold on measurements: the V100 of the catalogue."""

from __future__ import annotations

import measuring_design as design
import numpy as np
import pytest

from controlplane.files import catalogue
from controlplane.latency import evaluate
from controlplane.latency.crossval import TRENDS, choose_trend
from controlplane.latency.published import execution_points
from controlplane.latency.surface import Surface

pytestmark = pytest.mark.unit


@pytest.mark.slow
def test_pairs_of_batch_sizes_it_has_not_seen() -> None:
    device = catalogue.device("v100")
    assert device is not None
    document = evaluate.leave_batch_sizes_out(device, catalogue.profiles("v100"), ["ours"])
    report = document["latency_models"]["ours"]  # type: ignore[index]
    overall = report["overall"]
    assert overall["mape_percent"] < 1.0
    assert overall["p95_percent"] < 2.5
    assert abs(overall["bias_percent"]) < 0.5
    assert 93.0 <= overall["coverage_95_percent"] <= 98.0
    assert all(model["mape_percent"] < 1.0 for model in report["per_model"].values())


@pytest.mark.parametrize("model", ["alexnet", "resnet50", "vgg19", "ssd"])
def test_a_model_measured_at_eleven_points(model: str) -> None:
    points = execution_points(catalogue.profiles("v100")[model])
    wanted = set(design.DEFAULT.points((20.0, 40.0, 50.0, 60.0, 80.0), 32))
    told = zip(points.percent.tolist(), points.batch.tolist(), strict=True)
    kept = np.array([(p, int(b)) in wanted for p, b in told])
    fitted = points.take(np.flatnonzero(kept))
    surface = Surface.fit(fitted, 32, TRENDS[choose_trend(fitted)[0]])
    column = np.searchsorted(surface.percent, points.percent)
    predicted = surface.time_ms[points.batch.astype(int) - 1, column]
    error = np.abs(predicted / points.time_ms - 1.0)
    assert error[kept].max() < 1e-9
    assert error[~kept].mean() < 0.02

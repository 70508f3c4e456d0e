"""What the default model must hold on measurements: the V100 of the catalogue."""

from dataclasses import replace

import numpy as np
import planning
import pytest

from controlplane.latency import default as ours
from controlplane.latency import evaluate
from controlplane.latency.fitting.published import execution_points
from controlplane.latency.fitting.surface import Surface
from controlplane.latency.protocol import Slots

ELEVEN = {(p, b) for p in (20.0, 40.0, 60.0, 80.0) for b in (1, 32)} | {(p, 4) for p in (20.0, 50.0, 80.0)}
"""The ends of both axes, and every second share at a middle batch."""


@pytest.mark.slow
def test_pairs_of_batch_sizes_it_has_not_seen() -> None:
    v100 = planning.v100()
    document = evaluate.leave_batch_sizes_out(v100.pool.device, v100.profiles, ["ours"])
    report = document["latency_models"]["ours"]  # type: ignore[index]
    overall = report["overall"]
    assert overall["mape_percent"] < 1.0
    assert overall["p95_percent"] < 2.5
    assert abs(overall["bias_percent"]) < 0.5
    # More than 95: what separates two sessions does not show within the one that all pairs are of.
    assert overall["coverage_95_percent"] >= 95.0
    assert all(model["mape_percent"] < 1.0 for model in report["per_model"].values())


@pytest.mark.parametrize("model", ["alexnet", "resnet50", "vgg19", "ssd"])
def test_a_model_measured_at_eleven_points(model: str) -> None:
    points = execution_points(planning.v100().profiles[model].points)
    known = zip(points.percent.tolist(), points.batch.tolist(), strict=True)
    kept = np.array([(p, int(b)) in ELEVEN for p, b in known])
    fitted = points.take(np.flatnonzero(kept))
    surface = Surface.fit(fitted, 32)
    column = np.searchsorted(surface.percent, points.percent)
    predicted = surface.time_ms[points.batch.astype(int) - 1, column]
    error = np.abs(predicted / points.time_ms - 1.0)
    assert error[kept].max() < 1e-9
    assert error[~kept].mean() < 0.02


def mean_margin(batches: list[float]) -> float:
    """The mean relative distance to the upper quantile, AlexNet beside each other model."""
    rows = [(b, p, other) for b in batches for p in (20.0, 50.0, 80.0) for other in (1, 2, 3)]
    slots = Slots.of(
        [[0, other] for *_, other in rows], [[b, b] for b, *_ in rows], [[p, 100.0 - p] for _, p, _ in rows]
    )
    answer = planning.v100("ours").latency.estimate(slots)
    return float(np.mean(answer.execution_upper_ms / answer.execution_ms - 1.0))


def test_the_quantile_of_a_new_batch_size_leaves_room_for_another_campaign() -> None:
    # Pairs at batch sizes between the catalogue's were 0.84 % slower on average, with errors about it of
    # some 0.7 %: 95 % of them lie below 2 %. Left-out errors alone make it 1 %.
    assert 0.02 < mean_margin([3, 9, 27]) < 0.03


def test_points_measured_side_by_side_have_a_narrower_quantile() -> None:
    assert mean_margin([4, 8, 16]) < 0.01


def test_a_model_never_measured_beside_others_is_slowed_as_others_are() -> None:
    device, profiles = planning.v100().pool.device, planning.v100().profiles
    measured = profiles["vgg19"].colocation
    seen = {
        name: replace(
            p,
            colocation=tuple(
                c for c in p.colocation if "vgg19" not in (name, *(n.model for n in c.neighbours))
            ),
        )
        for name, p in profiles.items()
    }
    model = ours.fit(seen, device)
    names = list(profiles)
    answer = model.estimate(
        Slots.of(
            [[names.index("vgg19"), names.index(c.neighbours[0].model)] for c in measured],
            [[c.batch, c.neighbours[0].batch] for c in measured],
            [[c.percent, c.neighbours[0].percent] for c in measured],
        )
    )
    times = np.array([c.execution_ms for c in measured])
    error = answer.execution_ms[:, 0] / times - 1.0
    assert abs(error.mean()) < 0.03
    assert np.mean(times <= answer.execution_upper_ms[:, 0]) > 0.93

"""Eq 1-11 against what was published of them, and the refit of Eq 11."""

import numpy as np
import planning
import pytest

from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files import catalogue
from controlplane.latency.protocol import Slots
from controlplane.papers.igniter import latency as igniter


def test_published_coefficients_give_the_published_errors() -> None:
    model = planning.v100().latency
    assert dict(zip(model.models, model.alone_error.round(3).tolist(), strict=True)) == {
        "alexnet": 0.018,
        "resnet50": 0.037,
        "vgg19": 0.015,
        "ssd": 0.037,
    }
    assert model.shared_error == pytest.approx(0.0366, abs=5e-5)


def test_neighbours_slow_and_alone_nobody_does() -> None:
    model = planning.v100().latency
    alone = model.estimate(Slots.alone([2], [6], [37.5])).execution_ms[0, 0]
    three = model.estimate(Slots.of([[0, 1, 2]], [[4, 8, 6]], [[10, 30, 37.5]])).execution_ms[0]
    assert three[2] > alone
    padded = Slots.of([[2, 0]], [[6, 1]], [[37.5, 1]], [[True, False]])
    assert model.estimate(padded).execution_ms[0].tolist() == [pytest.approx(alone), 0.0]


def test_the_power_cap_lowers_the_clock() -> None:
    # Five copies of VGG-19 ask for more than 300 W (Eq 9, 10).
    model = planning.v100().latency
    found = model.estimate(Slots.of([[2] * 5], [[32] * 5], [[20] * 5]))
    assert found.power_w[0] == 300.0


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "vgg19", "ssd"])
def test_a_relative_refit_of_eq_11_predicts_points_left_out(name: str) -> None:
    curve = igniter.fit_curve(catalogue.profiles("v100")[name].points, name)
    assert curve.holdout_error < 0.03


def test_eleven_points_find_the_curve_they_came_from() -> None:
    k = (0.01, 60.0, 20.0, 1.0, 2.0)
    points = [
        Measurement(float(p), b, (k[0] * b * b + k[1] * b + k[2]) / (p + k[3]) + k[4])
        for p, b in [
            (10, 1),
            (50, 1),
            (100, 1),
            (10, 16),
            (50, 16),
            (100, 16),
            (10, 32),
            (50, 32),
            (100, 32),
            (30, 8),
            (70, 4),
        ]
    ]
    curve = igniter.fit_curve(points)
    assert curve.holdout_error < 0.02
    got = igniter.active_ms(
        np.array([curve.coefficients[f"k{i}"] for i in range(1, 6)]), np.array([20.0]), np.array([8.0])
    )
    assert got[0] == pytest.approx((0.01 * 64 + 480 + 20) / 21 + 2.0, rel=0.02)


def test_without_hardware_coefficients_neighbours_cost_nothing() -> None:
    points = tuple(Measurement(float(p), b, 60.0 * b / p + 1.0) for p in (20, 50, 100) for b in (1, 4, 8))
    cpu = Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID)
    model = igniter.fit({"m": Profile("m", "cpu", ShareKind.CPU_QUOTA, Environment(), points)}, cpu)
    alone = model.estimate(Slots.alone([0], [4], [50])).execution_ms[0, 0]
    beside = model.estimate(Slots.of([[0, 0]], [[4, 8]], [[50, 50]])).execution_ms[0, 0]
    assert beside == pytest.approx(alone)
    assert model.estimate(Slots.alone([0], [4], [50])).power_w[0] == 0.0


def test_too_few_points_or_one_share_are_refused() -> None:
    with pytest.raises(InputError, match="Eq 11 needs at least 6"):
        igniter.fit_curve([Measurement(50.0, b, float(b)) for b in (1, 2)], "m")
    with pytest.raises(InputError, match="one share only"):
        igniter.fit_curve([Measurement(50.0, b, float(b)) for b in range(1, 9)], "m")

import numpy as np
import pytest

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile
from controlplane.latency.fitting.points import Points
from controlplane.latency.fitting.tables import Pressure
from controlplane.latency.protocol import FloatArray, Slots
from controlplane.papers.gpulet import latency as gpulet
from controlplane.papers.inss import latency as inss
from controlplane.papers.latency_aware import latency as latency_aware
from controlplane.papers.latency_aware.latency import Exponential, filling_ms

RESNET, VGG = (25.80461, 51.32453), (32.06, 56.68343)
"""L2 and DRAM utilisation at batch 8 on a 2080 Ti (casys-kaist/glet, UTIL.CSV)."""
GPU = Device("gpu", ShareKind.MPS_PERCENT, MPS_GRID)
PERCENT, BATCH = (
    g.ravel() for g in np.meshgrid([10.0, 25.0, 50.0, 75.0, 100.0], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
)


def profile(
    name: str, time_ms: FloatArray, colocation: tuple[ColocationPoint, ...] = (), **fit: float
) -> Profile:
    points = tuple(
        Measurement(percent=float(p), batch=int(b), execution_ms=float(t))
        for p, b, t in zip(PERCENT, BATCH, time_ms, strict=True)
    )
    return Profile(
        name, "gpu", ShareKind.MPS_PERCENT, Environment(), points, colocation, {"igniter": fit} if fit else {}
    )


def test_eq_5_is_recovered_from_its_own_points() -> None:
    def law(percent: FloatArray, batch: FloatArray) -> FloatArray:
        whole = (0.4 * batch + 0.1) * np.exp(-0.05 * batch) + 0.2 * batch + 0.5
        return np.asarray(whole * np.exp(3.0 * (1.0 - percent / 100.0) ** 2.0))

    curve = Exponential.fit(Points(PERCENT, BATCH, law(PERCENT, BATCH)))
    assert curve.xi == pytest.approx(3.0, rel=0.02)
    assert curve.kappa == pytest.approx(2.0, rel=0.02)
    percent, batch = np.array([30.0, 60.0, 90.0]), np.array([3.0, 12.0, 24.0])
    assert curve.at(percent, batch) == pytest.approx(law(percent, batch), rel=0.02)


def test_eq_5_takes_profiles_that_cannot_tell_its_terms_apart() -> None:
    one_share = Points(np.full(3, 50.0), np.array([1.0, 4.0, 8.0]), np.array([1.0, 3.0, 6.0]))
    one_batch = Points(np.array([20.0, 50.0, 100.0]), np.ones(3), np.array([5.0, 2.0, 1.0]))
    for points in (one_share, one_batch):
        fitted = Exponential.fit(points).at(points.percent, points.batch)
        assert fitted == pytest.approx(points.time_ms, rel=0.15)


def test_waiting_includes_the_time_for_a_batch_to_fill() -> None:
    rate, batch, time = np.array([100.0, 500.0]), np.array([4.0, 4.0]), np.array([10.0, 10.0])
    # At 500/s the load is 1.25. Filling (4 - 1) / 0.2 and, at load 1/4, 0.25 * 10 / (8 * 0.75).
    assert filling_ms(rate, batch, time).tolist() == [pytest.approx(15.0 + 2.5 / 6.0), np.inf]


def test_the_authors_constants_give_the_authors_example() -> None:
    # ResNet-50, batch 8 at 40 %, beside VGG-16, batch 8 at 60 %: utilisations of their table times the share.
    l2, dram = (np.repeat([[RESNET[i]], [VGG[i]]], 8, axis=1) / 100.0 for i in range(2))
    unused = Pressure(np.zeros((2, 2)), np.zeros((2, 2)))
    measured = gpulet.Utilisation(unused, np.array([True, True]), l2, dram)
    factor = gpulet.LinearFactor(measured, gpulet.AUTHORS_CONSTANTS)
    slots = Slots.of([[0, 1]], 8, [[40, 60]])
    assert factor.slowdown(slots, np.ones((1, 2)))[0] + 1.0 == pytest.approx([1.1476, 1.1298], abs=2e-4)


def test_gpulet_keeps_its_table_and_interpolates_between() -> None:
    time = 100.0 * BATCH / PERCENT + 1.0
    model = gpulet.fit({"a": profile("a", time)}, GPU)
    kept = model.estimate(Slots.alone(0, BATCH, PERCENT)).execution_ms[:, 0]
    assert kept == pytest.approx(time)
    between = model.estimate(Slots.alone(0, [6, 6], [50, 60])).execution_ms[:, 0]
    assert between == pytest.approx([13.0, 11.0], rel=0.01)


def test_inss_adds_the_parts_of_its_equation() -> None:
    device = Device(
        "gpu",
        ShareKind.MPS_PERCENT,
        MPS_GRID,
        hardware={"B_pcie": 1e6, "alpha_sch": 0.01, "beta_sch": -0.01},
    )
    time = 100.0 * BATCH / PERCENT + 0.1 * BATCH + 0.2
    fit = {"d_load": 60_000.0, "d_feedback": 40_000.0, "n_k": 20.0, "k_sch": 0.01, "alpha_cache": 0.01}
    profiles = {n: profile(n, time, **fit) for n in ("a", "b")}
    model = inss.fit(profiles, device)
    assert isinstance(model.contention, inss.SharedCache)
    alone = model.estimate(Slots.alone(0, 8, 50)).execution_ms[0, 0]
    assert alone == pytest.approx(100.0 * 8 / 50 + 0.8 + 0.2, rel=0.02)
    slots = Slots.of([[0, 1]], 8, 50)
    pressed = model.contention.pressed(slots)[0, 0]
    scheduled = (0.01 * 2 - 0.01) * 20
    expected = alone + (alone - 0.8 - 0.2) * 0.01 * pressed + scheduled
    assert model.estimate(slots).execution_ms[0, 0] == pytest.approx(expected)


@pytest.mark.parametrize("room", [latency_aware, gpulet, inss])
def test_interference_is_learned_from_pairs(room: object) -> None:
    time = 100.0 * BATCH / PERCENT + 1.0

    def beside(other: str) -> tuple[ColocationPoint, ...]:
        return tuple(
            ColocationPoint(float(p), int(b), (Neighbour(other, 50.0, 8),), float(t) * 1.15)
            for p, b, t in zip(PERCENT, BATCH, time, strict=True)
            if p <= 50
        )

    profiles = {"a": profile("a", time, beside("b")), "b": profile("b", time, beside("a"))}
    model = room.fit(profiles, GPU)  # type: ignore[attr-defined]
    slots = Slots.of([[0, 1]], 8, [[25, 50]])
    alone = model.estimate(Slots.alone(0, 8, 25)).execution_ms[0, 0]
    assert model.estimate(slots).execution_ms[0, 0] / alone == pytest.approx(1.15, abs=0.04)

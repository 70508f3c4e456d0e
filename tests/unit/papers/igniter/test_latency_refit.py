import numpy as np
import planning
import pytest

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile
from controlplane.latency import evaluate
from controlplane.latency.protocol import Slots
from controlplane.papers.igniter import latency as igniter

TRUE = {"k1": 0.02, "k2": 60.0, "k3": 20.0, "k4": 0.5, "k5": 1.0, "n_k": 50.0, "alpha_cache": 0.004}
LINES = {"alpha_cacheutil": 0.02, "beta_cacheutil": 1.0, "alpha_power": 0.1, "beta_power": 5.0}
GPU = Device(
    "gpu",
    ShareKind.MPS_PERCENT,
    MPS_GRID,
    hardware={
        "P": 300.0,
        "F": 1500.0,
        "p_idle": 50.0,
        "alpha_f": -1.0,
        "alpha_sch": 0.004,
        "beta_sch": -0.003,
    },
)
PERCENTS, BATCHES = (20.0, 40.0, 60.0, 80.0), (1, 4, 16, 32)


def made_by_igniter(fits: dict[str, float]) -> dict[str, Profile]:
    """Two profiles whose points Eq 1-11 made, and which tell `fits`."""
    bare = Profile("a", "gpu", ShareKind.MPS_PERCENT, Environment(), (), fits={"igniter": {**TRUE, **LINES}})
    truth = igniter.Igniter(
        ("a", "b"),
        igniter.Coefficients.of([bare.fits["igniter"]] * 2),
        igniter.Hardware.of(GPU),
        np.zeros(2),
        0.0,
        igniter.PowerModel.of([bare, bare], GPU),
        np.zeros(2),
    )
    batch, percent = (g.ravel() for g in np.meshgrid(BATCHES, PERCENTS))
    alone = truth.estimate(Slots.alone(0, batch, percent)).execution_ms[:, 0]
    points = tuple(
        Measurement(percent=float(p), batch=int(b), execution_ms=float(t))
        for p, b, t in zip(percent, batch, alone, strict=True)
    )

    def beside(other: str) -> tuple[ColocationPoint, ...]:
        slots = Slots.of(
            [[0, 1]], np.stack([batch, np.full_like(batch, 8)], 1), np.stack([percent, 100 - percent], 1)
        )
        shared = truth.estimate(slots).execution_ms[:, 0]
        return tuple(
            ColocationPoint(float(p), int(b), (Neighbour(other, float(100 - p), 8),), float(t))
            for p, b, t in zip(percent, batch, shared, strict=True)
        )

    return {
        name: Profile(
            name, "gpu", ShareKind.MPS_PERCENT, Environment(), points, beside(other), {"igniter": fits}
        )
        for name, other in (("a", "b"), ("b", "a"))
    }


def test_the_coefficients_that_made_the_points_are_found() -> None:
    told = {**LINES, "n_k": TRUE["n_k"], "alpha_cache": 0.5}
    model = igniter.refit(made_by_igniter(told), GPU)
    assert model.coefficients.k2 == pytest.approx([TRUE["k2"]] * 2, rel=0.02)
    assert model.coefficients.alpha_cache == pytest.approx([TRUE["alpha_cache"]] * 2, rel=0.05)
    assert 2 * model.hardware.alpha_sch + model.hardware.beta_sch == pytest.approx(0.005, rel=0.05)
    assert model.shared_error < 0.002


def test_on_the_v100_pairs_it_misses_less_than_the_published_coefficients() -> None:
    v100 = planning.v100()
    document = evaluate.leave_batch_sizes_out(v100.pool.device, v100.profiles, ["igniter", "igniter-refit"])
    models = document["latency_models"]
    published = models["igniter"]["overall"]  # type: ignore[index]
    # Full Eq 1-11 on the 750 pairs: 3.66 %, p95 9.7.
    assert published["mape_percent"] == pytest.approx(3.66, abs=0.02)
    assert published["p95_percent"] == pytest.approx(9.7, abs=0.1)
    refitted = models["igniter-refit"]["overall"]  # type: ignore[index]
    assert refitted["mape_percent"] < 3.0
    assert abs(refitted["bias_percent"]) < 1.0

from dataclasses import replace

import numpy as np
import pytest

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile
from controlplane.latency import evaluate
from controlplane.latency.evaluate import Predictions, Tenant
from controlplane.latency.fitting.kinds import Kind

pytestmark = pytest.mark.slow

GPU = Device("gpu", ShareKind.MPS_PERCENT, MPS_GRID)
SIZES = (2, 8, 32)


def alone(percent: float, batch: int) -> float:
    return 50.0 * batch / percent + 1.0


def profiles(colocated: bool = True) -> dict[str, Profile]:
    points = tuple(
        Measurement(percent=p, batch=b, execution_ms=alone(p, b)) for p in (20, 50, 80) for b in (1, *SIZES)
    )

    def beside(other: str) -> tuple[ColocationPoint, ...]:
        return tuple(
            ColocationPoint(p, b, (Neighbour(other, 100.0 - p, c),), 1.1 * alone(p, b))
            for p in (20.0, 50.0, 80.0)
            for b in SIZES
            for c in SIZES
        )

    return {name: profile(name, points, beside(other) if colocated else ()) for name, other in ("ab", "ba")}


def profile(name: str, *measured: tuple) -> Profile:
    return Profile(name, "gpu", ShareKind.MPS_PERCENT, Environment(), *measured)


def test_the_figures_are_of_relative_errors_in_percent() -> None:
    outcome = Predictions(
        ("a", "a", "b"),
        np.array([Kind.MEASURED, Kind.BATCH, Kind.MEASURED]),
        np.array([10.0, 10, 20]),
        np.array([11.0, 9, 20]),
        np.array([11.0, 9.5, 20]),
    )
    report = outcome.report()
    assert report["overall"] == {
        "n": 3,
        "mape_percent": pytest.approx(20 / 3, abs=1e-4),
        "bias_percent": pytest.approx(0.0, abs=1e-4),
        "p95_percent": pytest.approx(10.0),
        "max_percent": pytest.approx(10.0),
        "coverage_95_percent": pytest.approx(200 / 3, abs=1e-4),
    }
    assert list(report["per_model"]) == ["a", "b"]  # type: ignore[call-overload]
    assert report["per_kind"]["measured"]["coverage_95_percent"] == 100.0  # type: ignore[index]
    assert report["per_kind"]["batch"]["coverage_95_percent"] == 0.0  # type: ignore[index]


def test_batch_sizes_left_out_are_not_seen() -> None:
    spoiled = profiles()
    wrong = tuple(
        replace(c, execution_ms=c.execution_ms * (2.0 if c.batch == 8 else 1.0))
        for c in spoiled["a"].colocation
    )
    spoiled["a"] = replace(spoiled["a"], colocation=wrong)
    overall = overall_of(evaluate.leave_batch_sizes_out(GPU, spoiled, ["ours"]))
    # 5 of 9 size pairs hold a given size: 2 models x 3 shares x 3 sizes x 5.
    assert overall["n"] == 90
    # A fit that had seen the doubled latencies would not miss them by half.
    assert overall["max_percent"] > 40.0


def overall_of(document: dict, name: str = "ours") -> dict:
    return document["latency_models"][name]["overall"]


def test_points_left_out_are_predicted_once_each() -> None:
    document = evaluate.leave_points_out(GPU, profiles()["a"], ["ours", "gpulet"])
    assert [overall_of(document, name)["n"] for name in ("ours", "gpulet")] == [12, 12]


def test_a_model_that_cannot_be_fitted_on_so_little_does_not_silence_the_others() -> None:
    document = evaluate.leave_points_out(GPU, profile("a", profiles()["a"].points[:5]))
    # Eq 11 needs six points; four are left of five.
    assert "igniter" not in document["latency_models"]
    assert overall_of(document)["n"] == 5


def test_a_catalogue_without_pairs_is_judged_by_its_points() -> None:
    counts = [overall_of(evaluate.built_in(GPU, profiles(pairs), ["ours"]))["n"] for pairs in (True, False)]
    assert counts == [90, 24]


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(InputError, match="z has no profile"):
        evaluate.against_alone(GPU, profiles(), [Tenant("z", 4, 50.0, 5.0)])
    with pytest.raises(InputError, match="fewer than two batch sizes"):
        evaluate.leave_batch_sizes_out(GPU, profiles(colocated=False))
    with pytest.raises(InputError) as caught:
        Tenant("a", 4, 50.0, -1.0)
    assert caught.value.field == "latency_ms"

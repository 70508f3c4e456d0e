from dataclasses import replace

import numpy as np
import pytest

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.profile import Environment, Factor, Measurement, Profile
from controlplane.latency import default as ours
from controlplane.latency.calibration import (
    FEWEST_BATCHES,
    Calibrated,
    Observation,
    refusal,
    scaled,
    too_few,
    update,
)
from controlplane.latency.protocol import Slots

SEEN = Observation("a", "gpu", ("b",), 10.0, 12.0, batches=1000, variation=0.05, at_s=50.0)


def fitted(*names: str) -> ours.Ours:
    points = tuple(
        Measurement(percent=p, batch=b, execution_ms=40.0 * b / p + 1.0)
        for p in (20, 50, 80)
        for b in (1, 4, 8)
    )
    profiles = {n: Profile(n, "gpu", ShareKind.MPS_PERCENT, Environment(), points) for n in names}
    return ours.fit(profiles, Device("gpu", ShareKind.MPS_PERCENT, MPS_GRID))


def test_a_large_sample_moves_the_factor_nearly_all_the_way() -> None:
    (factor,) = update((), [SEEN])
    assert factor.factor == pytest.approx(1.2, rel=0.02)
    assert (factor.batches, factor.at_s) == (1000, 50.0)


def test_a_small_sample_moves_it_a_little_and_more_of_the_same_further() -> None:
    assert too_few(replace(SEEN, batches=1)) == f"only 1 batch, {FEWEST_BATCHES} are needed"
    small = replace(SEEN, batches=40)
    (once,) = update((), [small])
    (twice,) = update([once], [small])
    assert 1.0 < once.factor < 1.08 < twice.factor < 1.2


def test_two_updates_equal_one_of_all() -> None:
    apart = update(update((), [SEEN]), [replace(SEEN, observed_ms=9.0)])
    together = update((), [SEEN, replace(SEEN, observed_ms=9.0)])
    assert apart[0].factor == pytest.approx(together[0].factor)


@pytest.mark.parametrize(
    "bad",
    [
        {"batches": 5},
        {"observed_ms": float("nan")},
        {"observed_ms": 0.0},
        {"observed_ms": 500.0},
        {"predicted_ms": float("inf")},
        {"variation": 2.0},
    ],
)
def test_a_bad_or_tiny_sample_changes_nothing(bad: dict[str, float]) -> None:
    before = update((), [SEEN])
    observation = replace(SEEN, **bad)  # type: ignore[arg-type]
    assert refusal(observation) is not None
    assert update(before, [observation]) == before


def test_an_error_of_a_model_scales_its_factors_beside_all_neighbours() -> None:
    known = (
        Factor("a", "v100", (), 1.2, 500, 1.0),
        Factor("a", "v100", ("b",), 1.5, 20, 1.0),
        Factor("b", "v100", (), 1.1, 50, 1.0),
    )
    assert [f.factor for f in scaled(known, "a", "v100", 2.0, 9.0)] == [2.4, 3.0, 1.1]
    (new,) = scaled((), "a", "v100", 1.3, 9.0)
    assert (new.key, new.factor, new.at_s) == (("a", "v100", ()), 1.3, 9.0)


def test_a_factor_reaches_its_company_and_no_other_model() -> None:
    model = fitted("a", "b")
    factors = [Factor("a", "gpu", ("b",), 1.2, 1000, 0.0), Factor("a", "gpu", (), 1.1, 1000, 0.0)]
    calibrated = Calibrated.of(model, "gpu", factors)
    slots = Slots.of([[0, 1], [0, 0]], 4, 50, [[True, True], [True, False]])
    ratio = calibrated.estimate(slots).execution_upper_ms / np.where(
        slots.mask, model.estimate(slots).execution_upper_ms, 1.0
    )
    assert np.allclose(ratio, [[1.2, 1.0], [1.1, 0.0]])


def test_an_unseen_company_takes_the_nearest_factor() -> None:
    model = fitted("a", "b")
    factors = [Factor("a", "gpu", ("b",), 1.2, 1000, 0.0), Factor("a", "gpu", (), 1.1, 1000, 0.0)]
    slots = Slots.of([[0, 1, 1]], 4, 30)
    ratio = Calibrated.of(model, "gpu", factors).estimate(slots).cycle_ms / model.estimate(slots).cycle_ms
    assert ratio[0, 0] == pytest.approx(1.2)


def test_factors_of_another_device_leave_the_model_as_it_is() -> None:
    model = fitted("a", "b")
    assert Calibrated.of(model, "gpu", [Factor("a", "other", (), 1.1, 1000, 0.0)]) is model

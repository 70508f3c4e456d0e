import numpy as np
import pytest

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import Repeat
from controlplane.files import catalogue
from controlplane.latency.fitting import answers
from controlplane.latency.fitting.answers import Repeatability

PERCENTS = (20.0, 60.0, 100.0)


def sessions(deviation: float, count: int, quota: bool = False) -> list[Repeat]:
    """Repeats whose times differ by this deviation, on a quota by so much of a whole core."""
    rng = np.random.default_rng(3)
    return [
        Repeat(
            p,
            1,
            10.0,
            10.0 * float(np.exp(rng.normal(0.0, deviation * (np.sqrt(100.0 / p) if quota else 1.0)))),
        )
        for p in np.resize(PERCENTS, count).tolist()
    ]


@pytest.mark.parametrize("deviation", [0.002, 0.02, 0.1])
def test_the_margin_covers_another_session(deviation: float) -> None:
    margin = Repeatability.fit(sessions(deviation, 100), ShareKind.MPS_PERCENT).margin(np.array([50.0]), 0.95)
    later = np.random.default_rng(4).normal(0.0, deviation, 10_000)
    assert 0.93 <= np.mean(np.exp(later) - 1.0 <= margin[0]) <= 0.98


def test_a_small_share_of_a_core_repeats_less_well_than_a_large_one() -> None:
    found = Repeatability.fit(sessions(0.03, 99, quota=True), ShareKind.CPU_QUOTA)
    small, large = found.margin(np.array([20.0, 100.0]), 0.95)
    assert small == pytest.approx(np.sqrt(5.0) * large)
    assert 0.03 < large < 0.07


def test_a_device_profiled_once_has_the_usual_margin() -> None:
    margin = Repeatability.fit((), ShareKind.MPS_PERCENT).margin(np.array([50.0]), 0.95)
    assert margin[0] == pytest.approx(1.645 * answers.USUAL_ALONE_GPU, rel=0.01)


def test_the_published_runs_of_the_v100_repeat_within_half_a_percent() -> None:
    repeats = [r for p in catalogue.profiles("v100").values() for r in p.repeats]
    assert len(repeats) == 96
    assert np.mean([abs(np.log(r.second_ms / r.first_ms)) for r in repeats]) < 0.005


def test_one_disturbed_repeat_widens_the_margin_by_its_part_of_all_repeats() -> None:
    calm = [Repeat(p, 1, 10.0, 10.3) for p in np.resize(PERCENTS, 10).tolist()]
    disturbed = [*calm, Repeat(100.0, 4, 10.0, 13.0)]
    before, after = (
        Repeatability.fit(r, ShareKind.CPU_QUOTA).margin(np.array([20.0]), 0.95)[0] for r in (calm, disturbed)
    )
    assert before < after < 2.0 * before

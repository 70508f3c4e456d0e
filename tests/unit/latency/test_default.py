import numpy as np
import pytest

from controlplane.domain.device import CPU_GRID, MPS_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile
from controlplane.latency import default as ours
from controlplane.latency.protocol import Slots

GPU = Device("gpu", ShareKind.MPS_PERCENT, MPS_GRID)
CPU = Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID)
PERCENTS, BATCHES = (20.0, 50.0, 80.0), (1, 4, 16, 32)


def alone_ms(percent: float, batch: int, scale: float = 1.0) -> float:
    return scale * ((60.0 * batch + 20.0) / percent + 0.5)


def profile(name: str, scale: float, neighbours: tuple[str, ...] = (), slowdown: float = 0.1) -> Profile:
    points = tuple(
        Measurement(percent=p, batch=b, execution_ms=alone_ms(p, b, scale)) for p in PERCENTS for b in BATCHES
    )
    colocation = tuple(
        ColocationPoint(
            percent=p,
            batch=b,
            neighbours=(Neighbour(other, 100.0 - p, beside),),
            execution_ms=alone_ms(p, b, scale) * (1.0 + slowdown),
        )
        for other in neighbours
        for p in PERCENTS
        for b in BATCHES
        for beside in BATCHES
    )
    return Profile(name, "gpu", ShareKind.MPS_PERCENT, Environment(), points, colocation, memory_mb=500.0)


def pair(slowdown: float = 0.1) -> dict[str, Profile]:
    return {"a": profile("a", 1.0, ("b",), slowdown), "b": profile("b", 3.0, ("a",), slowdown)}


def test_measured_points_are_kept() -> None:
    model = ours.fit({"a": profile("a", 1.0)}, GPU)
    for p in PERCENTS:
        for b in BATCHES:
            answer = model.estimate(Slots.alone(0, b, p))
            assert answer.execution_ms[0, 0] == pytest.approx(alone_ms(p, b), rel=1e-9)


def test_between_points_it_follows_the_law_they_came_from() -> None:
    model = ours.fit({"a": profile("a", 1.0)}, GPU)
    batch, percent = np.meshgrid([2, 7, 12, 24], [10.0, 35.0, 65.0, 100.0])
    answer = model.estimate(Slots.alone(0, batch.ravel(), percent.ravel())).execution_ms[:, 0]
    truth = [alone_ms(p, b) for b, p in zip(batch.ravel(), percent.ravel(), strict=True)]
    assert answer == pytest.approx(truth, rel=0.02)


def test_a_pair_is_slowed_by_what_was_measured_and_a_lone_workload_is_not() -> None:
    model = ours.fit(pair(), GPU)
    alone = model.estimate(Slots.alone(0, 4, 50)).execution_ms[0, 0]
    beside = model.estimate(Slots.of([[0, 1]], [[4, 16]], [[50, 50]])).execution_ms[0]
    empty = model.estimate(Slots.of([[0, 1]], [[4, 16]], [[50, 50]], [[True, False]]))
    assert beside[0] == pytest.approx(alone_ms(50, 4) * 1.1, rel=0.005)
    assert beside[1] == pytest.approx(alone_ms(50, 16, 3.0) * 1.1, rel=0.005)
    assert empty.execution_ms[0, 0] == alone
    assert empty.execution_ms[0, 1] == 0.0


def test_the_quantile_covers_the_noise_it_was_shown() -> None:
    rng = np.random.default_rng(7)
    noisy = pair()
    for name, clean in noisy.items():
        points = tuple(
            ColocationPoint(
                c.percent, c.batch, c.neighbours, c.execution_ms * float(np.exp(rng.normal(0, 0.03)))
            )
            for c in clean.colocation
        )
        noisy[name] = Profile(
            name, "gpu", ShareKind.MPS_PERCENT, Environment(), clean.points, points, memory_mb=500.0
        )
    model = ours.fit(noisy, GPU)
    answer = model.estimate(Slots.of([[0, 1]], [[8, 8]], [[35, 65]]), 0.95)
    margin = answer.execution_upper_ms[0, 0] / answer.execution_ms[0, 0] - 1.0
    assert 0.03 < margin < 0.09
    wider = model.estimate(Slots.of([[0, 1]], [[8, 8]], [[35, 65]]), 0.99)
    assert wider.execution_upper_ms[0, 0] > answer.execution_upper_ms[0, 0]


def test_contradicting_points_are_moved_to_an_order() -> None:
    points = (
        Measurement(percent=50.0, batch=1, execution_ms=2.0),
        Measurement(percent=50.0, batch=2, execution_ms=1.8),
        Measurement(percent=100.0, batch=1, execution_ms=1.0),
    )
    model = ours.fit({"a": Profile("a", "gpu", ShareKind.MPS_PERCENT, Environment(), points)}, GPU)
    times = model.estimate(Slots.alone(0, [1, 2], 50)).execution_ms[:, 0]
    assert times == pytest.approx([np.sqrt(2.0 * 1.8)] * 2)


def test_a_profile_of_few_points_without_coefficients_is_enough() -> None:
    points = tuple(
        Measurement(percent=p, batch=b, execution_ms=alone_ms(p, b), capacity_rps=1000.0 * b / alone_ms(p, b))
        for p, b in [(20, 1), (20, 8), (40, 2), (60, 1), (60, 8), (100, 1), (100, 4), (100, 8)]
    )
    model = ours.fit({"tiny": Profile("tiny", "cpu", ShareKind.CPU_QUOTA, Environment(), points)}, CPU)
    slots = Slots.of([[0, 0, 0]], [[1, 3, 8]], [[20, 30, 50]])
    answer = model.estimate(slots)
    assert np.all(np.isfinite(answer.execution_upper_ms))
    assert np.all(answer.execution_upper_ms >= answer.execution_ms)
    assert answer.power_w[0] == 0.0
    assert np.all(answer.cycle_ms > 0)


def test_throughput_is_the_measured_capacity() -> None:
    points = tuple(
        Measurement(percent=p, batch=b, execution_ms=alone_ms(p, b), capacity_rps=1100.0 * b / alone_ms(p, b))
        for p in PERCENTS
        for b in BATCHES
    )
    model = ours.fit({"a": Profile("a", "gpu", ShareKind.MPS_PERCENT, Environment(), points)}, GPU)
    slots = Slots.alone(0, 16, 50)
    assert model.estimate(slots).cycle_ms[0, 0] == pytest.approx(alone_ms(50, 16) / 1.1, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "quantile", "field"), [(1, 0.95, "model"), (0, 1.0, "quantile"), (0, 0.3, "quantile")]
)
def test_what_is_out_of_range_is_named(model: int, quantile: float, field: str) -> None:
    fitted = ours.fit({"a": profile("a", 1.0)}, GPU)
    with pytest.raises(InputError) as caught:
        fitted.estimate(Slots.alone(model, 1, 50), quantile)
    assert caught.value.field == field


def test_profiles_it_cannot_fit_are_refused() -> None:
    for profiles, field in (
        ({}, "profiles"),
        ({"a": Profile("a", "gpu", ShareKind.MPS_PERCENT, Environment(), ())}, "points"),
        ({"a": Profile("a", "cpu", ShareKind.CPU_QUOTA, Environment(), ())}, "device"),
    ):
        with pytest.raises(InputError) as caught:
            ours.fit(profiles, GPU)
        assert caught.value.field == field

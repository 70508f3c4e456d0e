"""What holds of the default latency model on every question: monotone, finite, and alone undisturbed."""

from typing import NamedTuple

import numpy as np
import planning
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Environment, Measurement, Profile, Repeat
from controlplane.latency import default as ours
from controlplane.latency.protocol import Estimate, Slots

SLACK = 1.0 + 1e-9
QUICK = settings(max_examples=150)


class Tenant(NamedTuple):
    model: int
    batch: float
    percent: float


tenants = st.builds(
    Tenant,
    st.integers(0, 3),
    st.integers(1, 32).map(float),
    st.floats(1.0, 100.0, allow_nan=False),
)
gpus = st.lists(tenants, min_size=1, max_size=5)


def ask(gpu: list[Tenant], quantile: float = 0.95) -> Estimate:
    return planning.v100("ours").latency.estimate(
        Slots.of([[t.model for t in gpu]], [[t.batch for t in gpu]], [[t.percent for t in gpu]]), quantile
    )


@QUICK
@given(gpus, st.floats(0.5, 0.999))
def test_all_answers_are_finite_and_the_quantile_is_not_below_the_mean(
    gpu: list[Tenant], quantile: float
) -> None:
    answer = ask(gpu, quantile)
    for value in (answer.execution_ms, answer.execution_upper_ms, answer.cycle_ms, answer.cycle_upper_ms):
        assert np.all(np.isfinite(value))
        assert np.all(value > 0)
    assert np.all(answer.execution_upper_ms >= answer.execution_ms)
    assert np.all(answer.cycle_upper_ms >= answer.cycle_ms)
    assert np.all(answer.cycle_ms <= answer.execution_ms * SLACK)
    assert 0 < answer.power_w[0] <= 300


@QUICK
@given(gpus, st.floats(1.0, 100.0))
def test_a_larger_share_is_never_slower(gpu: list[Tenant], percent: float) -> None:
    low, high = sorted((gpu[0].percent, percent))
    slow = ask([gpu[0]._replace(percent=low), *gpu[1:]]).execution_ms[0, 0]
    fast = ask([gpu[0]._replace(percent=high), *gpu[1:]]).execution_ms[0, 0]
    assert fast <= slow * SLACK


@QUICK
@given(gpus, st.integers(1, 32))
def test_a_larger_batch_is_never_faster(gpu: list[Tenant], batch: int) -> None:
    small, large = sorted((gpu[0].batch, float(batch)))
    short = ask([gpu[0]._replace(batch=small), *gpu[1:]]).execution_ms[0, 0]
    long = ask([gpu[0]._replace(batch=large), *gpu[1:]]).execution_ms[0, 0]
    assert short <= long * SLACK


@QUICK
@given(gpus, tenants)
def test_one_more_neighbour_never_helps(gpu: list[Tenant], newcomer: Tenant) -> None:
    before = ask(gpu).execution_ms[0]
    after = ask([*gpu, newcomer]).execution_ms[0, :-1]
    assert np.all(after * SLACK >= before)


@QUICK
@given(tenants, tenants, st.floats(1.0, 100.0))
def test_a_larger_share_of_a_neighbour_never_helps(tenant: Tenant, neighbour: Tenant, percent: float) -> None:
    low, high = sorted((neighbour.percent, percent))
    beside_small = ask([tenant, neighbour._replace(percent=low)]).execution_ms[0, 0]
    beside_large = ask([tenant, neighbour._replace(percent=high)]).execution_ms[0, 0]
    assert beside_small <= beside_large * SLACK


@QUICK
@given(tenants, tenants)
def test_a_lone_workload_has_no_interference(tenant: Tenant, other: Tenant) -> None:
    empty = Slots.of(
        [[tenant.model, other.model]],
        [[tenant.batch, other.batch]],
        [[tenant.percent, other.percent]],
        [[True, False]],
    )
    alone = ask([tenant])
    beside_nobody = planning.v100("ours").latency.estimate(empty)
    assert beside_nobody.execution_ms.tolist() == [[alone.execution_ms[0, 0], 0.0]]
    assert beside_nobody.execution_upper_ms[0, 0] == alone.execution_upper_ms[0, 0]


@QUICK
@given(gpus, st.randoms(use_true_random=False))
def test_the_order_of_slots_does_not_matter(gpu: list[Tenant], random: np.random.Generator) -> None:
    order = list(range(len(gpu)))
    random.shuffle(order)
    straight = ask(gpu).execution_ms[0]
    shuffled = ask([gpu[i] for i in order]).execution_ms[0]
    assert shuffled == pytest.approx(straight[order], rel=1e-9)


@QUICK
@given(
    st.one_of(
        st.tuples(st.just("batch"), st.sampled_from([0.0, -1.0, 0.5, float("nan"), float("inf")])),
        st.tuples(st.just("percent"), st.sampled_from([0.0, -5.0, 100.1, float("nan"), float("inf")])),
    )
)
def test_what_is_out_of_range_is_named(wrong: tuple[str, float]) -> None:
    field, value = wrong
    tenant = Tenant(0, 1.0, 50.0)._replace(**{field: value})
    with pytest.raises(ValueError, match=field) as caught:
        ask([tenant])
    assert isinstance(caught.value, InputError)
    assert caught.value.field == field


points = st.lists(
    st.builds(
        Measurement,
        percent=st.sampled_from([20.0, 30.0, 45.0, 60.0, 80.0, 100.0]),
        batch=st.integers(1, 16),
        execution_ms=st.floats(0.05, 5000.0),
    ),
    min_size=1,
    max_size=14,
)


@QUICK
@given(points, st.integers(1, 40), st.floats(0.5, 100.0))
def test_any_measured_profile_gives_a_finite_monotone_surface(
    measured: list[Measurement], batch: int, percent: float
) -> None:
    device = Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID)
    model = ours.fit({"a": Profile("a", "cpu", ShareKind.CPU_QUOTA, Environment(), tuple(measured))}, device)
    times = model.estimate(
        Slots.alone(0, [batch, batch + 1, batch], [percent, percent, min(100.0, 1.2 * percent)])
    )
    here, larger, faster = times.execution_ms[:, 0]
    assert np.all(np.isfinite(times.execution_upper_ms))
    assert here > 0
    assert here <= larger * SLACK
    assert faster <= here * SLACK


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["flat", "shared", "both"]),
    st.integers(0, 10),
    st.sampled_from([-1.0, 1.0]),
    st.randoms(use_true_random=False),
)
def test_a_point_moved_within_its_repeatability_moves_no_prediction_by_more_than_twice_that(
    kind: str, which: int, sign: float, random: np.random.Generator
) -> None:
    host, work = {"flat": (20.0, 20.0), "shared": (0.1, 400.0), "both": (10.0, 200.0)}[kind]
    device = Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID)

    def profile(name: str, moved: float) -> Profile:
        grid = [(p, b) for p in (20.0, 60.0, 100.0) for b in (1, 2, 4, 8)][:-1]
        times = {at: host + work * (at[1] + 1.0) / at[0] for at in grid}
        times[grid[which]] *= float(np.exp(moved))
        repeats = tuple(Repeat(p, b, times[p, b] * noise[p, b], times[p, b]) for p, b in grid)
        points = tuple(Measurement(p, b, t) for (p, b), t in times.items())
        return Profile(name, "cpu", ShareKind.CPU_QUOTA, Environment(), points, repeats=repeats)

    noise = {
        (p, b): float(np.exp(random.uniform(-0.05, 0.05))) for p in (20.0, 60.0, 100.0) for b in (1, 2, 4, 8)
    }
    percent, batch = np.meshgrid(np.arange(20.0, 100.1, 5.0), np.arange(1.0, 9.0))
    asked = [Slots.alone(m, batch.ravel(), percent.ravel()) for m in (0, 1)]
    asked.append(Slots.of([[0, 1]] * batch.size, batch.reshape(-1, 1), percent.reshape(-1, 1) / 2.0))
    step = sign * 0.05
    before, after = (
        ours.fit({"a": profile("a", moved), "b": profile("b", 0.0)}, device) for moved in (0.0, step)
    )
    for slots in asked:
        first, second = before.estimate(slots), after.estimate(slots)
        for one, two in (
            (first.execution_ms, second.execution_ms),
            (first.execution_upper_ms, second.execution_upper_ms),
        ):
            assert np.max(np.abs(np.log(two / one))) <= 2.0 * abs(step)

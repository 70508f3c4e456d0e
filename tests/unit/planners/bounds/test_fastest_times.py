from __future__ import annotations

import itertools

import numpy as np
import planning
import pytest

from controlplane.domain.device import GpuPool
from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.files import catalogue
from controlplane.latency import queueing, registry
from controlplane.latency.protocol import FloatArray, Slots
from controlplane.planners.bounds.fastest_times import FastestTimes
from controlplane.planners.protocol import Device
from controlplane.planners.serving import waiting_times
from controlplane.planners.serving.gpu_types import GpuType, gpu_types
from controlplane.planners.serving.largest_rate import largest_loads
from controlplane.planners.serving.lower_bound import bound_pool_sizes, bound_rate

pytestmark = pytest.mark.unit

BESIDE = 15
"""Percent that the neighbour has."""


@pytest.fixture(scope="module")
def v100() -> GpuType:
    return planning.gpu_type("ours")


@pytest.fixture(scope="module")
def fastest(v100: GpuType) -> FastestTimes:
    return FastestTimes.of(v100, dict.fromkeys(range(4), np.inf))


def rates_of(gpu_type: GpuType, fastest: FastestTimes, model: int, slo_ms: list[float]) -> FloatArray:
    name, times = gpu_type.models[model], fastest.of_model(model)
    return bound_rate(gpu_type, name, times, np.array(slo_ms), constant=False)


@pytest.mark.parametrize(
    ("model", "share", "slo_ms"),
    [(0, 15, 9.0), (1, 23, 31.0), (2, 31, 24.0), (3, 7, 197.0), (3, 14, 27.1), (3, 8, 37.0), (1, 26, 35.3)],
)
def test_no_batch_carries_more_by_the_exact_queue(
    v100: GpuType, fastest: FastestTimes, model: int, share: int, slo_ms: float
) -> None:
    alone, most = v100.alone, rates_of(v100, fastest, model, [slo_ms])
    batches = [b for b in (1, 2, 5, 10, 16) if np.isfinite(alone.execution[model, b - 1, share])]
    for size, (_, servers) in enumerate(bound_pool_sizes(Rule.P99)):
        if servers not in (1, 4, MOST_SERVERS):
            continue
        for batch in batches:
            curve = alone.execution[model, :batch, share]
            exact = queueing.largest_rate(slo_ms, curve, batch, servers)[0] / servers
            assert exact <= most[0, size, 0, share] * (1.0 + 1e-9)


@pytest.mark.slow
def test_nor_where_times_bend_away_from_a_line() -> None:
    kind, profiles = catalogue.device("a100"), catalogue.profiles("a100")
    assert kind is not None
    device = Device(GpuPool(kind, None, 1.0), registry.build("ours", kind, profiles), profiles)
    gpu_type = gpu_types({"a100": device}, Rule.P99, 0.95)["a100"]
    fastest = FastestTimes.of(gpu_type, dict.fromkeys(range(len(profiles)), np.inf), neighbours=0)
    # With the error of a straight line each of these carries more than is said.
    for name, share, batch, servers, slo_ms in (
        ("resnet152", 5, 32, 8, 39.1),
        ("resnet50", 4, 16, 4, 21.8),
        ("densenet201", 3, 32, 4, 91.5),
    ):
        model = gpu_type.number_of(name)
        size = [servers <= most for _, most in bound_pool_sizes(Rule.P99)].index(True)
        most = rates_of(gpu_type, fastest, model, [slo_ms])
        curve = gpu_type.alone.execution[model, :batch, share]
        exact = queueing.largest_rate(slo_ms, curve, batch, servers)[0] / servers
        assert 0.95 * most[0, size, 0, share] < exact <= most[0, size, 0, share]


LOADS = np.array(waiting_times.LOADS)


def load_within(slo: float, waits: FloatArray) -> float:
    """The load that is borne where the table says these waits, in full batches' times."""
    return float(largest_loads(np.array(slo), waits))


@pytest.mark.parametrize("load", [0.02, 0.3, 0.5, 0.86, 0.958, 0.98])
def test_between_the_entries_of_the_table_nothing_is_rounded(load: float) -> None:
    assert load_within(1.5 + 3.0 * load, 1.5 + 3.0 * LOADS) == pytest.approx(load)


@pytest.mark.parametrize("load", [0.02, 0.3, 0.5, 0.86, 0.958, 0.98])
@pytest.mark.parametrize(("power", "pole"), [(0.3, 0.0), (3.0, 1.0), (12.0, 1.0)])
def test_between_them_no_less_is_borne_however_the_waits_rise(power: float, pole: float, load: float) -> None:
    def wait(at: FloatArray) -> FloatArray:
        return 1.5 + at**power / (1.0 - pole * at)

    assert load <= load_within(float(wait(np.array(load))), wait(LOADS)) * (1.0 + 1e-9)


def test_neighbours_are_no_kinder_than_the_least_harmful(v100: GpuType, fastest: FastestTimes) -> None:
    percents = v100.percents
    models = range(len(planning.MODELS))
    for own, other, batch in itertools.product(models, models, (1, 8, 24)):
        share = np.arange(0, percents.size - 6, 5)
        rows = np.ones(share.size, dtype=np.int64)
        models_asked = np.column_stack([own * rows, other * rows])
        batches = np.column_stack([8 * rows, batch * rows])
        shares = np.column_stack([percents[share], rows * BESIDE])
        execution, _ = v100.ask(Slots.of(models_asked, batches, shares))
        at = int(np.searchsorted(fastest.batch, 8))
        assert (fastest.execution[1, own, at, share] <= execution[:, 0]).all()
        assert (fastest.execution[0, own, at, share] <= fastest.execution[1, own, at, share]).all()


def test_the_table_knows_the_largest_pool_and_sizes_are_told_apart_without_a_gap() -> None:
    assert waiting_times.POOL_SIZES[-1] >= MOST_SERVERS
    sizes = [c for first, last in bound_pool_sizes(Rule.P99) for c in range(first, last + 1)]
    assert sizes == list(range(1, MOST_SERVERS + 1))


def test_under_half_slo_a_batch_must_be_done_in_half_the_slo() -> None:
    gpu_type = planning.gpu_type("igniter")
    most = rates_of(gpu_type, FastestTimes.of(gpu_type, {1: 20.0}), 1, [0.1, 40.0])
    alone = gpu_type.alone
    assert (most[0] == 0.0).all()
    fits = alone.execution[1, :, -1] <= 20.0
    best = (1000.0 * np.arange(1, fits.size + 1) / alone.cycle[1, :, -1])[fits].max()
    assert most[1, 0, 0, -1] == pytest.approx(best, rel=1e-5)

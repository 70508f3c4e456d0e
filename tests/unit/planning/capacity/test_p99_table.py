import make_p99_table
import numpy as np
import planning
import pytest

from controlplane.domain.device import GpuPool
from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.files import catalogue
from controlplane.latency import registry
from controlplane.latency.protocol import FloatArray
from controlplane.latency.queueing import batch_queue
from controlplane.planning.capacity import p99_table
from controlplane.planning.capacity.gpu_types import GpuType, gpu_types
from controlplane.planning.capacity.items import ItemArrays
from controlplane.planning.capacity.lower_bound import bound_rate
from controlplane.planning.protocol import Device

LOADS = np.array(p99_table.LOADS)


@pytest.mark.parametrize(
    ("servers", "batch", "shape"), [(1, 1, 0.0), (1, 6, 0.5), (1, 16, 1.0), (2, 4, 0.2), (8, 4, 0.2)]
)
def test_the_table_is_what_the_queue_says(servers: int, batch: int, shape: float) -> None:
    pool, at = p99_table.POOL_SIZES.index(servers), p99_table.SHAPES.index(shape)
    row = p99_table.table()[pool, p99_table.BATCHES.index(batch), at]
    np.testing.assert_allclose(row, make_p99_table.row(servers, batch, shape), rtol=2e-3)


@pytest.mark.parametrize("batch", [1, 4, 8])
def test_a_tolerated_slowdown_just_holds(batch: int) -> None:
    full, first = np.array([12.0, 9.0]), np.array([5.0 if batch > 1 else 12.0, 4.0 if batch > 1 else 9.0])
    rate = 0.7 * 1000.0 * batch / 12.0
    index, none = np.array([p99_table.BATCHES.index(batch)]), np.zeros(1)
    one = ItemArrays(
        np.array([0]), np.array([rate]), np.array([40.0]), none, np.array([1]), none, np.array([False])
    )
    found = p99_table.tolerated_slowdown(one, full[None], first[None], index)
    for at in range(2):
        curve = np.linspace(first[at], full[at], batch) * found[0, at]
        assert batch_queue.solve(rate, curve, batch).p99_ms[0] == pytest.approx(40.0, rel=0.03)


def exact_rate(slo_ms: float, curve: FloatArray, servers: int) -> float:
    """The largest rate into each server of a pool at which its P99 holds, by bisection of the queue."""
    low, high = 0.0, 1000.0 * curve.size / float(curve[-1])
    for _ in range(12):
        middle = 0.5 * (low + high)
        holds = batch_queue.solve(middle * servers, curve, curve.size, servers).p99_ms[0] <= slo_ms
        low, high = (middle, high) if holds else (low, middle)
    return low


def most_of(gpu_type: GpuType, model: int, slo_ms: float) -> FloatArray:
    return bound_rate(gpu_type, gpu_type.models[model], np.array([slo_ms]), constant=False)[0]


@pytest.mark.parametrize(
    ("model", "share", "slo_ms"),
    [(0, 15, 9.0), (1, 23, 31.0), (2, 31, 24.0), (3, 7, 197.0), (3, 14, 27.1), (3, 8, 37.0), (1, 26, 35.3)],
)
def test_no_batch_carries_more_by_the_exact_queue(model: int, share: int, slo_ms: float) -> None:
    v100 = planning.gpu_type("ours")
    alone, most = v100.alone, most_of(v100, model, slo_ms)
    batches = [b for b in (1, 2, 5, 10, 16) if np.isfinite(alone.execution[model, b - 1, share])]
    for servers in (1, 4, MOST_SERVERS):
        for batch in batches:
            curve = alone.execution[model, :batch, share]
            exact = exact_rate(slo_ms, curve, servers)
            assert exact <= most[share] * (1.0 + 1e-9)


@pytest.mark.slow
def test_nor_where_times_bend_away_from_a_line() -> None:
    kind, profiles = catalogue.device("a100"), catalogue.profiles("a100")
    assert kind is not None
    device = Device(GpuPool(kind, None, 1.0), registry.build("ours", kind, profiles), profiles)
    gpu_type = gpu_types({"a100": device}, Rule.P99, 0.95)["a100"]
    # With the error of a straight line each of these carries more than is said.
    for name, share, batch, slo_ms in (("resnet152", 5, 32, 39.1), ("densenet201", 3, 32, 91.5)):
        model = gpu_type.number_of(name)
        curve = gpu_type.alone.execution[model, :batch, share]
        exact = exact_rate(slo_ms, curve, MOST_SERVERS)
        most = most_of(gpu_type, model, slo_ms)[share]
        assert 0.9 * most < exact <= most


def load_within(slo: float, waits: FloatArray) -> float:
    """The load that is borne where the table says these waits, in full batches' times."""
    return float(p99_table.max_utilisation(np.array(slo), waits))


@pytest.mark.parametrize("load", [0.02, 0.3, 0.5, 0.86, 0.958, 0.98])
def test_between_the_entries_of_the_table_nothing_is_rounded(load: float) -> None:
    assert load_within(1.5 + 3.0 * load, 1.5 + 3.0 * LOADS) == pytest.approx(load)


@pytest.mark.parametrize("load", [0.02, 0.3, 0.5, 0.86, 0.958, 0.98])
@pytest.mark.parametrize(("power", "pole"), [(0.3, 0.0), (3.0, 1.0), (12.0, 1.0)])
def test_between_them_no_less_is_borne_however_the_waits_rise(power: float, pole: float, load: float) -> None:
    def wait(at: FloatArray) -> FloatArray:
        return 1.5 + at**power / (1.0 - pole * at)

    assert load <= load_within(float(wait(np.array(load))), wait(LOADS)) * (1.0 + 1e-9)


def test_under_half_slo_a_batch_must_be_done_in_half_the_slo() -> None:
    gpu_type = planning.gpu_type("igniter")
    most = bound_rate(gpu_type, gpu_type.models[1], np.array([0.1, 40.0]), constant=False)
    alone = gpu_type.alone
    assert (most[0] == 0.0).all()
    fits = alone.execution[1, :, -1] <= 20.0
    best = (1000.0 * np.arange(1, fits.size + 1) / alone.cycle[1, :, -1])[fits].max()
    assert most[1, -1] == pytest.approx(best, rel=1e-5)

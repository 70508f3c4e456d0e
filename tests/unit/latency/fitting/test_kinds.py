import pytest

from controlplane.domain.device import ShareKind
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile
from controlplane.latency.fitting.kinds import Kind, Known
from controlplane.latency.protocol import Slots


def profile(name: str, *beside: str) -> Profile:
    points = tuple(Measurement(percent=50.0, batch=b, execution_ms=float(b)) for b in (1, 2, 4, 8))
    colocation = tuple(
        ColocationPoint(p, b, (Neighbour(other, 100.0 - p, c),), 1.1 * b)
        for other in beside
        for p in (30.0, 70.0)
        for b in (2, 8)
        for c in (2, 8)
    )
    return Profile(name, "gpu", ShareKind.MPS_PERCENT, Environment(), points, colocation)


KNOWN = Known.of({"a": profile("a", "b", "c"), "b": profile("b", "a"), "c": profile("c"), "d": profile("d")})


@pytest.mark.parametrize(
    ("models", "batches", "percents", "kind"),
    [
        ((0, 1), (2, 8), (40, 60), Kind.MEASURED),
        ((0, 1), (4, 8), (40, 60), Kind.BATCH),
        ((0, 1), (2, 4), (40, 60), Kind.BATCH),
        ((0, 1), (2, 8), (20, 60), Kind.SHARE),
        ((0, 1), (2, 64), (40, 60), Kind.BATCH),
        ((0, 0), (2, 8), (40, 60), Kind.PAIR),
        ((1, 2), (2, 8), (40, 60), Kind.PAIR),
        ((2, 0), (2, 8), (40, 60), Kind.MODEL),
        ((3, 0), (2, 8), (40, 60), Kind.MODEL),
    ],
)
def test_a_workload_is_of_the_kind_of_what_is_most_new(
    models: tuple[int, int], batches: tuple[int, int], percents: tuple[float, float], kind: Kind
) -> None:
    assert KNOWN.kinds(Slots.of([models], [batches], [percents]))[0, 0] == kind


def test_a_lone_workload_is_alone() -> None:
    slots = Slots.of([[0, 3]], [[4, 4]], [[50, 50]], [[True, False]])
    assert KNOWN.kinds(slots).tolist() == [[Kind.ALONE, Kind.ALONE]]

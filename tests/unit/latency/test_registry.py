import pytest

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.latency import registry

GPU = Device("gpu", ShareKind.MPS_PERCENT, MPS_GRID)
POINTS = tuple(
    Measurement(percent=p, batch=b, execution_ms=40.0 * b / p) for p in (20, 50) for b in (1, 2, 4)
)
PROFILES = {"a": Profile("a", "gpu", ShareKind.MPS_PERCENT, Environment(), POINTS)}


def test_each_model_answers_to_its_name() -> None:
    for name in registry.FITS:
        assert registry.build(name, GPU, PROFILES).name == name


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean ours"):
        registry.build("our", GPU, PROFILES)


def test_a_device_without_profiles_is_named() -> None:
    with pytest.raises(InputError, match="profiles: there is none on gpu; measure one"):
        registry.build("ours", GPU, {})


def test_the_same_profiles_are_fitted_once_and_others_anew() -> None:
    fitted = registry.build("ours", GPU, PROFILES)
    assert registry.build("ours", GPU, {**PROFILES}) is fitted
    assert registry.build("ours", GPU, {"b": PROFILES["a"]}).models == ("b",)

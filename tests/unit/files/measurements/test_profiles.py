"""Device files."""

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import (
    ColocationPoint,
    Environment,
    Factor,
    Measurement,
    Neighbour,
    Profile,
    Repeat,
)
from controlplane.domain.server_options import ServerOptions
from controlplane.files.documents import versioned
from controlplane.files.measurements.profiles import (
    NAME,
    partial_path,
    profile_path,
    read_calibration,
    read_device,
    read_partial,
    read_profile,
    read_profiles,
    write_calibration,
    write_device,
    write_partial,
    write_profile,
)
from controlplane.runtime.devices import known_device

PROFILE = Profile(
    model="resnet",
    device="cpu",
    share_kind=ShareKind.CPU_QUOTA,
    environment=Environment(triton="2.51.0", host="h", date="2026-01-01T00:00:00Z"),
    points=(
        Measurement(20, 1, 10.5, std_ms=0.1, n=40, throttled=0.9, host_busy=0.01),
        Measurement(20, 1, 10.7, concurrency=8, capacity_rps=95.0),
        Measurement(100, 8, 12.0),
    ),
    colocation=(ColocationPoint(50, 4, (Neighbour("vgg", 50, 2),), 9.0),),
    fits={"igniter": {"k1": 0.1}},
    holdout_error={"igniter": 0.05},
    jitter=0.02,
    frontend_ms=0.4,
    request_ms=0.2,
    memory_mb=120,
    max_batch=32,
    repeats=(Repeat(20, 1, 10.4, 10.5), Repeat(50, 4, 9.0, 9.2)),
    options=ServerOptions(("--log-verbose=1",), {"HF_HOME": "/models"}),
)


def test_an_interrupted_measurement_is_no_profile_until_it_is_complete(tmp_path: Path) -> None:
    assert read_partial(tmp_path, "cpu", "resnet") is None
    write_partial(tmp_path, PROFILE)
    assert read_profiles(tmp_path, "cpu") == {}
    assert read_partial(tmp_path, "cpu", "resnet") == PROFILE
    assert read_profile(write_profile(tmp_path, PROFILE)) == PROFILE
    assert not partial_path(tmp_path, "cpu", "resnet").exists()
    assert read_profiles(tmp_path, "cpu") == {"resnet": PROFILE}
    assert read_profiles(tmp_path, "v100") == {}


POINT = {"percent": 20, "batch": 1, "execution_ms": 1}


def changed(**changes: Any) -> dict[str, Any]:
    return {**versioned(PROFILE), **changes}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (changed(schema_version=2), "schema_version: 2 is not supported"),
        (changed(points=[]), "points: "),
        (changed(point=[]), "point: unknown key; did you mean 'points'"),
        (changed(points=[{**POINT, "execution_ms": float("nan")}]), "execution_ms"),
        (changed(points=[{**POINT, "percent": 120}]), r"points\[0\]\.percent: .*100"),
        (changed(points=[POINT] * 2), r"points\[1\]: stands twice"),
        (changed(points=[{**POINT, "batch": "1"}]), "must be a whole number"),
        (changed(model="../x"), "is not a valid name"),
    ],
)
def test_a_broken_profile_names_the_file_and_the_field(
    tmp_path: Path, content: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=problem) as caught:
        read_profile(path)
    assert caught.value.file == str(path)


@pytest.mark.parametrize(("device", "model"), [("v100", "resnet"), ("cpu", "other")])
def test_a_profile_in_another_ones_place_is_refused(tmp_path: Path, device: str, model: str) -> None:
    written = write_profile(tmp_path, PROFILE)
    place = profile_path(tmp_path, device, model)
    place.parent.mkdir(exist_ok=True)
    written.rename(place)
    with pytest.raises(InputError, match="belongs"):
        read_profiles(tmp_path, device)


def test_a_file_is_no_directory_of_profiles(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("")
    with pytest.raises(InputError, match=r"spec\.yaml: --profiles: is not a directory"):
        read_profiles(tmp_path / "spec.yaml", "cpu")
    assert read_profiles(tmp_path / "absent", "cpu") == {}


FACTORS = (
    Factor("alexnet", "v100", ("resnet50", "vgg19"), 1.07, 4000, 1_700_000_000.0),
    Factor("vgg19", "v100", (), 0.98, 250, 1_700_000_060.0),
)


def test_a_calibration_is_read_as_it_was_written_and_a_broken_one_is_named(tmp_path: Path) -> None:
    assert read_calibration(tmp_path) == ()
    text = write_calibration(tmp_path, FACTORS).read_text()
    assert read_calibration(tmp_path) == FACTORS
    for right, wrong in (
        ('"factor": 0.98', '"factor": -1.0'),
        ('"batches": 250', '"batches": 0'),
        ('"device": "v100"', '"gpu": "v100"'),
    ):
        assert right in text
        (tmp_path / NAME).write_text(text.replace(right, wrong))
        with pytest.raises(InputError, match=NAME):
            read_calibration(tmp_path)


HARDWARE = {"P": 70.0, "alpha_f": -1.5}
DEVICE = Device("t4", ShareKind.MPS_PERCENT, MPS_GRID, memory_mb=15360.0, hardware=HARDWARE)


def test_a_device_is_read_as_it_was_written_and_known(tmp_path: Path) -> None:
    write_device(tmp_path, DEVICE)
    assert read_device(tmp_path, "t4") == DEVICE
    assert known_device("t4", tmp_path) == DEVICE
    assert known_device("t4") == Device("t4", ShareKind.MPS_PERCENT, MPS_GRID)
    assert read_device(tmp_path, "l4") is None


def test_the_catalogues_device_stays(tmp_path: Path) -> None:
    v100 = known_device("v100")
    write_device(tmp_path, Device("v100", ShareKind.MPS_PERCENT, MPS_GRID))
    assert known_device("v100", tmp_path) == v100


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = write_device(tmp_path, DEVICE)
    path.write_text(path.read_text().replace("15360.0", "-1"))
    with pytest.raises(InputError, match=r"t4.json:\d+: memory_mb"):
        read_device(tmp_path, "t4")
    write_device(tmp_path, DEVICE).rename(tmp_path / "l4.json")
    with pytest.raises(InputError, match="is 't4', and the file stands where 'l4' belongs"):
        read_device(tmp_path, "l4")

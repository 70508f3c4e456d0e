"""Device files."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.files.measurements.profiles import read_device, write_device
from controlplane.runtime.devices import known_device

DEVICE = Device(
    "t4", ShareKind.MPS_PERCENT, MPS_GRID, memory_mb=15360.0, hardware={"P": 70.0, "alpha_f": -1.5}
)


def test_what_is_written_is_read_back_and_known(tmp_path: Path) -> None:
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

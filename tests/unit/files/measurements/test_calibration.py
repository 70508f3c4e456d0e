from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.profile import Factor
from controlplane.files.measurements.profiles import NAME, read_calibration, write_calibration

FACTORS = (
    Factor("alexnet", "v100", ("resnet50", "vgg19"), 1.07, 4000, 1_700_000_000.0),
    Factor("vgg19", "v100", (), 0.98, 250, 1_700_000_060.0),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert read_calibration(tmp_path) == ()
    write_calibration(tmp_path, FACTORS)
    assert read_calibration(tmp_path) == FACTORS


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('"factor": 0.98', '"factor": -1.0'),
        ('"batches": 250', '"batches": 0'),
        ('"schema_version": 1', '"schema_version": 9'),
        ('"device": "v100"', '"gpu": "v100"'),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, wrong: str, says: str) -> None:
    text = write_calibration(tmp_path, FACTORS).read_text()
    assert wrong in text
    (tmp_path / NAME).write_text(text.replace(wrong, says))
    with pytest.raises(InputError, match=NAME):
        read_calibration(tmp_path)

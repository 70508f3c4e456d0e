"""What a running fleet teaches, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.files.calibration import read_calibration
from controlplane.latency.calibration import Observation, Seen
from controlplane.runtime.calibrating import _variation, learn

pytestmark = pytest.mark.unit


def seen(refused: str | None) -> Seen:
    told = Observation("ssd", "v100", ("vgg19",), 10.0, 11.0, 1000, 0.1, 5.0)
    return Seen("W1", 4, 0.5, told, refused)


def test_what_is_usable_is_written_for_the_next_plan(tmp_path: Path) -> None:
    assert learn(tmp_path, [seen(None), seen("only 3 batches")]) == tmp_path / "calibration.json"
    (factor,) = read_calibration(tmp_path)
    assert factor.key == ("ssd", "v100", ("vgg19",))
    assert factor.batches == 1000
    assert 1.05 < factor.factor < 1.1, "drawn towards 1 by the prior"


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    assert learn(tmp_path, [seen("the batches vary by 80% of their mean")]) is None
    assert list(tmp_path.iterdir()) == []


def test_the_variation_of_batches_from_the_means_of_seconds() -> None:
    # Four batches a second; means of 9, 11, 9 and 11 ms: a standard deviation of batches of 2.31 ms.
    windows = [(9.0, 4), (11.0, 4), (9.0, 4), (11.0, 4)]
    assert _variation(windows) == pytest.approx(0.231, abs=0.001)
    assert _variation(windows[:1]) == 0.0, "one window tells nothing"

"""What is told of measured models once their profiles are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from controlplane.domain.device import CPU_GRID, Device, ShareKind
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.files.profiles import read_profile
from controlplane.profiler.session import Place, Profiler, Wishes
from controlplane.report.profile_line import written_line
from controlplane.runtime.profiling import profile_models

pytestmark = pytest.mark.unit

PLACE = Place(Device("cpu", ShareKind.CPU_QUOTA, CPU_GRID), "cpu-0")


@dataclass
class Measures:
    """A profiler whose every model takes 7.5 s and has three points."""

    profiles: Path
    now_s: float = 0.0
    clock: Any = field(init=False)

    def __post_init__(self) -> None:
        self.clock = self

    def monotonic(self) -> float:
        return self.now_s

    def measure(self, repository: Path, model: str, *_: object, **__: object) -> Profile:
        self.now_s += 7.5
        points = tuple(Measurement(percent=50.0, batch=b, execution_ms=2.0 * b) for b in (1, 2, 4))
        return Profile(model, "cpu", ShareKind.CPU_QUOTA, Environment(), points)


def test_each_is_told_with_its_file_its_points_and_its_time(tmp_path: Path) -> None:
    for model in ("a", "b"):
        (tmp_path / "models" / model).mkdir(parents=True)
        (tmp_path / "models" / model / "config.pbtxt").write_text("")
    profiler = cast(Profiler, Measures(tmp_path / "profiles"))
    told = list(profile_models(profiler, tmp_path / "models", [], PLACE, Wishes(), resume=True))
    assert [(one.profile.model, one.seconds) for one in told] == [("a", 7.5), ("b", 7.5)]
    assert [len(read_profile(one.path).points) for one in told] == [3, 3]
    line = written_line(told[0].path, len(told[0].profile.points), told[0].seconds, 0.0741)
    assert line == (
        f"{tmp_path}/profiles/cpu/a.json: 3 points written after 8 s, Eq 11 errs by 7.4 % on points left out"
    )
    assert written_line(Path("b.json"), 1, 0.4, None) == "b.json: 1 point written after 0 s"

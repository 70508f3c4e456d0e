"""Progress where stderr is no terminal: lines now and then."""

from __future__ import annotations

import pytest

from controlplane.report import progress
from controlplane.report.progress import Bar


def test_a_log_has_the_time_left_at_once_and_then_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    said: list[str] = []
    with Bar(said.append) as bar:
        for done in range(30):
            now_s = float(done)
            bar.advance("m", done, 30, 30.0 - done)
    assert [line.split(":")[1].split()[0] for line in said] == ["0", "10", "20"]
    assert said[0] == "m: 0 of 30, about 30 s left"


def test_a_short_run_of_unknown_length_and_a_quiet_one_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    Bar(said.append).advance("m", 0, 3, None)
    Bar(said.append, shown=False).advance("m", 0, 3, 60.0)
    assert said == []

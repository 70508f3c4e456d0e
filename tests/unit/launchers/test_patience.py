"""How long the start of a server is awaited."""

from __future__ import annotations

import pytest
from build import Clock

from controlplane.domain.fleet import ShareUsage
from launchers import patience
from launchers.patience import Patience


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.0)
    monkeypatch.setattr(patience, "time", clock)
    return clock


def usage(memory_mb: float | None = None, cpu_s: float | None = None) -> ShareUsage:
    return ShareUsage(None, None, cpu_s, memory_mb)


@pytest.mark.parametrize("kind", ["log", "memory", "processor time"])
def test_a_start_that_makes_progress_is_awaited(clock: Clock, kind: str) -> None:
    waits = Patience(10.0)
    for second in range(1, 40):
        clock.now_s = second
        assert waits.wants_a_look()
        waits.look(
            second if kind == "log" else 0,
            usage(
                10.0 * second if kind == "memory" else 5.0, second / 2 if kind == "processor time" else 0.0
            ),
        )
        assert not waits.over()


def test_a_start_without_progress_ends_at_its_limit(clock: Clock) -> None:
    waits = Patience(10.0)
    for second in range(1, 11):
        assert not waits.over()
        clock.now_s = second + 0.5
        waits.look(0, usage(1.0, second / 100))
    assert waits.over()


def test_a_start_that_spins_for_ever_ends(clock: Clock) -> None:
    waits = Patience(10.0)
    for second in range(1, 102):
        clock.now_s = second
        waits.look(second, usage())
    assert "without progress" not in waits.over()
    assert waits.over()


def test_what_cannot_be_measured_is_no_progress(clock: Clock) -> None:
    waits = Patience(1.0)
    clock.now_s = 1.1
    waits.look(0, usage())
    assert waits.over()

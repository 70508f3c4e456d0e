"""What counts as progress of a start."""

from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("log_bytes", "used", "over"),
    [
        (lambda s: s, lambda s: usage(5.0, 0.0), ""),
        (lambda s: 0, lambda s: usage(10.0 * s), ""),
        (lambda s: 0, lambda s: usage(5.0, s / 2), ""),
        (lambda s: 0, lambda s: usage(1.0, s / 100), "without progress"),
        (lambda s: 0, lambda s: usage(), "without progress"),
    ],
    ids=["log", "memory", "processor time", "nearly idle", "unmeasured"],
)
def test_a_start_is_awaited_while_its_log_memory_or_time_grows(
    clock: Clock, log_bytes: Callable[[float], int], used: Callable[[float], ShareUsage], over: str
) -> None:
    waits = Patience(10.0)
    for second in range(1, 40):
        assert not waits.over() or second > 10
        clock.now_s = second
        assert waits.wants_a_look()
        waits.look(log_bytes(second), used(second), 50.0)
    assert over in waits.over()
    assert bool(waits.over()) is bool(over)


def test_a_start_that_spins_for_ever_ends(clock: Clock) -> None:
    waits = Patience(10.0)
    for second in range(1, 102):
        clock.now_s = second
        waits.look(second, usage(), 50.0)
    assert "after 10 times" in waits.over()

"""A P99 above its SLO is seen within two minutes, whatever the share of late answers."""

import random
from collections.abc import Iterator

import pytest

from controlplane.control.guard.queues import BROKEN_S, SLOT_S, SloWindow, broken, count, is_kept
from controlplane.domain.observation import Answer

LOOK_S = 0.2
CLUSTER = 4.0


def served(share: float, seconds: float, rate_rps: float = 100.0) -> Iterator[tuple[float, SloWindow]]:
    """Yield (time, window) after each look; `share` of the answers take twice the SLO."""
    chance = random.Random(1)
    window = SloWindow()
    for look in range(1, round(seconds / LOOK_S) + 1):
        now_s = look * LOOK_S
        took = [100.0 if chance.random() < share else 10.0 for _ in range(round(rate_rps * LOOK_S))]
        answers = [Answer(now_s, latency_ms, False, "w", "s") for latency_ms in took]
        window = count(window, answers, 50.0, now_s)
        yield now_s, window


@pytest.mark.parametrize(
    ("share", "within_s"), [(0.012, BROKEN_S), (0.02, BROKEN_S), (0.2, 10.0), (1.0, 6.0)]
)
def test_a_broken_p99_is_found(share: float, within_s: float) -> None:
    found = next(now_s for now_s, window in served(share, 200.0) if broken(window, CLUSTER))
    assert found <= within_s


def test_a_kept_p99_is_never_called_broken() -> None:
    assert not any(broken(window, CLUSTER) for _, window in served(0.005, 600.0))


def test_a_few_requests_have_no_p99() -> None:
    assert not any(broken(window, 1.0) for _, window in served(1.0, 15.0, rate_rps=5.0))


def test_failed_requests_are_no_late_ones() -> None:
    answers = [Answer(1.0, 100.0, True, "w", "s")] * 500
    assert count(SloWindow(), answers, 50.0, 1.0) == SloWindow()


def test_only_the_last_two_minutes_are_kept_and_a_minute_ends_it() -> None:
    *_, (_, window) = served(1.0, 300.0)
    assert len(window.slots) <= BROKEN_S / SLOT_S + 1
    assert not is_kept(window, 300.0)
    assert is_kept(window, 300.0 + BROKEN_S)

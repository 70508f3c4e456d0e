"""Arrivals by second."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.domain.observation import Answer
from controlplane.runtime.autoscaler.arrivals import Arrivals


def answers(arrived_s: Sequence[float], latency_ms: float, endpoint: str = "a") -> list[Answer]:
    return [Answer(at + latency_ms / 1000.0, latency_ms, False, endpoint, "s") for at in arrived_s]


def test_a_second_counts_what_arrived_in_it() -> None:
    arrivals = Arrivals(100.0)
    arrivals.add(answers([100.1, 100.5, 100.95, 101.2], 100.0))
    assert arrivals.complete(101.4, 0.0) == []
    assert arrivals.complete(101.7, 0.0) == [{"a": 3}]
    assert arrivals.complete(103.0, 0.0) == [{"a": 1}]


def test_an_overload_shows_the_rate_that_arrives_and_not_the_rate_that_is_served() -> None:
    arrivals, found = Arrivals(0.0), []
    # 100 arrive each second and 50 are served: the one that arrives at s ends at 2 s.
    every = [Answer(2.0 * s, 1000.0 * s, False, "a", "s") for s in (i / 100.0 for i in range(1, 1000))]
    for now in range(1, 13):
        arrivals.add([a for a in every if now - 1 < a.ended_s <= now])
        found += arrivals.complete(float(now), 0.0)
    assert len(found) >= 4
    assert all(counts is not None and abs(counts["a"] - 100) <= 2 for counts in found)


def test_a_second_without_requests_is_a_zero_and_an_unseen_one_is_not() -> None:
    arrivals = Arrivals(10.0)
    assert arrivals.complete(13.6, heard_since_s=11.5) == [None, None, {}]


def test_a_request_that_ends_very_late_is_not_lost() -> None:
    arrivals = Arrivals(0.0)
    assert len(arrivals.complete(5.0, 0.0)) == 4
    arrivals.add(answers([1.0], 5000.0))
    assert [c for c in arrivals.complete(20.0, 0.0) if c] == [{"a": 1}]

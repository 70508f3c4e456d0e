from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.monitor.records import Record
from controlplane.monitor.state import KEEP_S, Windows


def record(ended_s: float, latency_ms: float = 1.0, **other: Any) -> Record:
    made = Record("grpc:h77", 12, "m", "one:abc", 200, None, 100, 200, ended_s, latency_ms, False)
    return made._replace(**other)


def test_a_window_ends_now_and_reaches_back_exactly() -> None:
    windows = Windows()
    for ended in (10.0, 11.2, 11.9, 12.5):
        windows.add(record(ended, latency_ms=10 * ended))
    window = windows.by_endpoint(12.2, 1.0)["m"]
    assert (window.requests, window.p50_ms, window.p99_ms) == (1, 119.0, 119.0)
    assert windows.by_endpoint(12.2, 1.1)["m"].requests == 2
    assert windows.by_endpoint(12.5, 2.5)["m"].requests == 3
    assert windows.by_endpoint(30.0, 1.0)["m"].p50_ms is None


def test_failures_count_and_abandoned_requests_do_not() -> None:
    windows = Windows()
    windows.add(record(10.0, 1.0))
    windows.add(record(10.1, 3.0, http=503))
    windows.add(record(10.2, 9.0, abandoned=True))
    both = windows.by_endpoint(11.0, 5.0)["m"]
    assert (both.requests, both.errors, both.p50_ms, both.p99_ms) == (2, 1, 1.0, 3.0)


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0.01, 1000)), min_size=1, max_size=60))
def test_percentiles_are_latencies_that_occurred(given_: list[tuple[float, float]]) -> None:
    windows = Windows()
    for ended, latency in sorted(given_):
        windows.add(record(ended, latency))
    window = windows.by_endpoint(20.0, 21.0)["m"]
    ordered = sorted(latency for _, latency in given_)
    assert window.requests == len(given_)
    assert window.p99_ms == ordered[-(-99 * len(ordered) // 100) - 1]
    assert window.p50_ms == ordered[-(-len(ordered) // 2) - 1]


def test_old_seconds_go() -> None:
    windows = Windows()
    for second in range(KEEP_S + 10):
        windows.add(record(second + 0.5, float(second)))
    assert windows.by_endpoint(KEEP_S + 10, 2.0 * KEEP_S)["m"].requests == KEEP_S
    windows.forget(3 * KEEP_S)
    assert windows.by_endpoint(3 * KEEP_S, 60.0) == {}


def test_a_rate_is_of_the_time_since_the_first_request_where_that_is_shorter() -> None:
    windows = Windows()
    for tenth in range(1, 121):
        windows.add(record(100.0 + tenth / 10))
    window = windows.by_endpoint(112.0, 60.0)["m"]
    assert window.requests / window.seconds == pytest.approx(10.0, rel=0.02)
    assert windows.by_endpoint(200.0, 60.0)["m"].seconds == 60.0, "silence after it counts"
    windows.add(record(300.0, endpoint="other"))
    assert windows.by_endpoint(300.001, 60.0)["other"].seconds == 1.0, "one request is no rate yet"


def test_a_clock_that_is_set_back_keeps_nothing_of_the_time_to_come() -> None:
    windows, hour_s = Windows(), 3600.0
    windows.add(record(hour_s))
    for now in (10.0, 11.0):
        windows.add(record(now))
        windows.forget(now)
    assert windows.by_endpoint(11.0, 5.0)["m"].requests == 1
    assert windows.by_endpoint(2.0 * hour_s, 2.0 * hour_s)["m"].requests == 1


def test_a_line_dated_in_the_future_is_of_now() -> None:
    assert record(3600.0).not_after(10.0).ended_s == 10.0
    assert record(9.0).not_after(10.0).ended_s == 9.0


def test_refused_requests_are_counted_apart_and_forgotten() -> None:
    windows = Windows()
    windows.add(record(940.2, http=503, refused=True))
    windows.add(record(1000.5))
    for ended_s in (1000.1, 1000.9):
        windows.add(record(ended_s, http=503, refused=True))
    windows.add(record(1000.7, endpoint="other", refused=True))
    found = windows.by_endpoint(1001.0, 60.0)
    assert (found["m"].requests, found["m"].errors, found["m"].refused) == (1, 0, 2)
    assert (found["other"].requests, found["other"].p99_ms, found["other"].refused) == (0, None, 1)
    windows.forget(1000.9 + KEEP_S + 2)
    assert windows.by_endpoint(1000.9 + KEEP_S + 2, 60.0) == {}

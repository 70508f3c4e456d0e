"""The ports that tests give to what they start."""

from __future__ import annotations

from itertools import combinations

import pytest
from host_ports import own_range


def worker(number: int, count: int) -> dict[str, str]:
    return {"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": str(count)}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_processes_of_one_run_choose_from_ports_of_their_own(count: int) -> None:
    ranges = [set(own_range(worker(number, count))) for number in range(count)]
    assert all(len(own) >= 1000 for own in ranges)
    assert all(one.isdisjoint(other) for one, other in combinations(ranges, 2))


def test_a_run_in_one_process_chooses_from_all() -> None:
    assert own_range({}) == own_range(worker(0, 1))

from __future__ import annotations

import pytest

from controlplane.domain.device import CPU_GRID, MPS_GRID, ShareGrid
from controlplane.domain.profile import ColocationPoint, Neighbour
from controlplane.profiler.colocate import merged, middle_batches, tenant_groups


@pytest.mark.parametrize("grid", [CPU_GRID, MPS_GRID])
def test_pairs_come_before_triples_and_all_fit_the_device(grid: ShareGrid) -> None:
    every = list(tenant_groups({"b": 32, "a": 1, "c": 8}, grid))
    assert [len(h) for h in every] == [2] * (6 + 9) + [3] * 10
    assert len(set(every)) == len(every)
    for group in every:
        assert sum(t.percent for t in group) <= 100
        assert {t.percent for t in group} <= set(grid.percents())
        assert all(1 <= b <= {"a": 1, "b": 32, "c": 8}[t.model] for t in group for b in t.batches)
    assert {t.model for h in every[:6] for t in h} == {"a", "b", "c"}


def test_shares_that_are_too_small_are_left_out() -> None:
    coarse = ShareGrid(minimum_percent=40, step_percent=10)
    assert {len(h) for h in tenant_groups({"a": 8}, coarse)} == {2}


def test_the_batches_are_those_between_the_ends() -> None:
    assert middle_batches(32) == (3, 10)
    assert middle_batches(2) == (2,)
    assert middle_batches(1) == (1,)


def test_a_point_measured_again_replaces_the_old_one() -> None:
    other = (Neighbour("b", 50, 3),)
    old, new = ColocationPoint(50, 3, other, 9.0), ColocationPoint(50, 3, other, 8.0)
    kept = ColocationPoint(50, 10, other, 20.0)
    assert merged([old, kept], [new]) == (new, kept)

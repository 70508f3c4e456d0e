from __future__ import annotations

import pytest

from controlplane.gateway.facade.statistics import merge

pytestmark = pytest.mark.unit


def entry(count: int, last: int, sizes: dict[int, int]) -> dict[str, object]:
    return {
        "name": "m",
        "version": "1",
        "last_inference": last,
        "inference_count": count,
        "inference_stats": {"success": {"count": count, "ns": 10 * count}},
        "batch_stats": [{"batch_size": s, "compute_infer": {"count": n, "ns": n}} for s, n in sizes.items()],
    }


def test_counters_add_and_times_of_day_do_not() -> None:
    merged = merge(entry(3, 70, {1: 2, 4: 1}), entry(5, 60, {4: 2, 8: 3}))
    assert merged == entry(8, 70, {1: 2, 4: 3, 8: 3})


def test_a_field_that_only_one_has_is_kept() -> None:
    assert merge({"name": "m"}, {"name": "m", "inference_count": 4})["inference_count"] == 4


def test_nothing_is_changed_in_place() -> None:
    one, other = entry(1, 1, {1: 1}), entry(1, 1, {1: 1})
    merge(one, other)
    assert one == other == entry(1, 1, {1: 1})

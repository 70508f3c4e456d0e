"""Triton's counters of one model's version, as in `model_stats`, and sums and differences of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

Entry = dict[str, Any]
"""The counters of one version of a model."""
LATEST = "last_inference"
_SAME = frozenset({"name", "version", "batch_size", "type", "id"})


def combine(one: Entry, other: Entry, of: Callable[[int, int], int] = operator.add) -> Entry:
    """Return two entries as one: each counter is `of` both, where a missing one is 0.

    Times of day are the later one.
    """
    combined = dict(one)
    for key, value in other.items():
        mine = combined.get(key)
        if key in _SAME:
            combined.setdefault(key, value)
        elif key == LATEST:
            combined[key] = max(mine or 0, value)
        elif isinstance(value, dict):
            combined[key] = combine(mine or {}, value, of)
        elif key == "batch_stats":
            combined[key] = _by_batch(mine or [], value, of)
        elif isinstance(value, list):
            combined[key] = [*(mine or []), *value]
        else:
            combined[key] = of(mine or 0, value)
    return combined


def difference(one: Entry, other: Entry) -> Entry:
    """Return what `one` has more than `other`, nothing of it below 0; the time of day is that of `one`."""
    counters = {key: value for key, value in other.items() if key != LATEST}
    return combine(one, counters, lambda mine, theirs: max(0, mine - theirs))


def _by_batch(one: list[Entry], other: list[Entry], of: Callable[[int, int], int]) -> list[Entry]:
    sizes = {entry["batch_size"]: entry for entry in one}
    for entry in other:
        size = entry["batch_size"]
        sizes[size] = combine(sizes.get(size, {}), entry, of)
    return [sizes[size] for size in sorted(sizes)]

"""Kinds of points: how much of a co-location was measured before. Errors are reported by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from controlplane.domain.profile import Profile
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots


class Kind(IntEnum):
    """What was never measured about a model beside its neighbours, from nothing to everything."""

    ALONE = 0
    """No neighbour."""
    MEASURED = 1
    """This pair was measured, at these batch sizes and within these shares."""
    BATCH = 2
    """Its batch size, or a neighbour's, was never measured beside another model."""
    SHARE = 3
    """Its share, or a neighbour's, lies outside those measured beside another model."""
    PAIR = 4
    """Never measured beside one of these neighbours."""
    MODEL = 5
    """Never measured beside any model."""


@dataclass(frozen=True, slots=True)
class Known:
    """The batch sizes, shares and pairs in the co-location points of a device.

    `batch` (models, sizes) marks the batch sizes; its last column stands for all larger ones. `low` and
    `high` (models,) are the ends of the shares; `beside` (models, models) marks the pairs.
    """

    batch: BoolArray
    low: FloatArray
    high: FloatArray
    beside: BoolArray

    @staticmethod
    def of(profiles: Mapping[str, Profile]) -> Known:
        """Take the points whose neighbours all have a profile, for both models of a pair."""
        index = {name: i for i, name in enumerate(profiles)}
        tenants: list[tuple[int, int, float]] = []
        beside = np.zeros((len(index), len(index)), dtype=np.bool_)
        for profile in profiles.values():
            for point in profile.colocation:
                tenants.append((index[profile.model], point.batch, point.percent))
                for other in point.neighbours:
                    if other.model in index:
                        tenants.append((index[other.model], other.batch, other.percent))
                        beside[index[profile.model], index[other.model]] = True
        largest = max(1, *(p.largest_batch for p in profiles.values()), *(batch for _, batch, _ in tenants))
        batch = np.zeros((len(index), largest + 2), dtype=np.bool_)
        low, high = np.full(len(index), np.inf), np.full(len(index), -np.inf)
        for model, size, percent in tenants:
            batch[model, size] = True
            low[model], high[model] = min(low[model], percent), max(high[model], percent)
        return Known(batch, low, high, beside)

    def is_new(self, model: IntArray, batch: FloatArray, percent: FloatArray) -> BoolArray:
        """Where a batch size or a share was never measured side by side; all of one shape."""
        size = np.minimum(batch.astype(np.int64), self.batch.shape[1] - 1)
        within = (self.low[model] <= percent) & (percent <= self.high[model])
        return np.asarray(~(within & self.batch[model, size]))

    def kinds(self, slots: Slots) -> IntArray:
        """The `Kind` of each present slot, `ALONE` for empty ones; shape (GPUs, slots)."""
        size = np.minimum(slots.batch.astype(np.int64), self.batch.shape[1] - 1)
        new_batch = slots.mask & ~self.batch[slots.model, size]
        outside = (slots.percent < self.low[slots.model]) | (slots.percent > self.high[slots.model])
        other = slots.mask[:, None, :] & ~np.eye(slots.mask.shape[1], dtype=np.bool_)
        new_pair = other & ~self.beside[slots.model[:, :, None], slots.model[:, None, :]]
        kind = np.full(slots.mask.shape, int(Kind.MEASURED))
        for new, which in (
            (new_batch.any(axis=1, keepdims=True), Kind.BATCH),
            ((slots.mask & outside).any(axis=1, keepdims=True), Kind.SHARE),
            (new_pair.any(axis=2), Kind.PAIR),
            (~self.beside.any(axis=1)[slots.model], Kind.MODEL),
        ):
            kind = np.where(new, int(which), kind)
        return np.where(slots.mask & other.any(axis=2), kind, int(Kind.ALONE))

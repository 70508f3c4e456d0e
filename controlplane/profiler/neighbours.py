"""Which models to measure side by side, and in which order, until the time is up. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controlplane.domain.device import ShareGrid
from controlplane.domain.profile import ColocationPoint
from controlplane.profiler.sweep import default_batches

_UNEVEN = 0.7
"""The larger part where two share unevenly."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One model's server beside others: its share, and the batches it is measured at on it."""

    model: str
    percent: float
    batches: tuple[int, ...]


Household = tuple[Tenant, ...]
"""Servers that run at once. They start once, then run every combination of their batches."""


def households(max_batch: dict[str, int], grid: ShareGrid) -> Iterator[Household]:
    """Pairs first, even shares before uneven ones, then triples; a model beside itself too.

    `max_batch` maps each model to the largest batch it serves. Planners put two or three to a GPU, and what
    one does to another is learned from pairs; triples tell whether it adds up.
    """
    models = sorted(max_batch)

    def tenants(names: Sequence[str], parts: Sequence[float], sizes: int) -> Household | None:
        percents = [_floor(part, grid) for part in parts]
        if None in percents:
            return None
        return tuple(
            Tenant(name, percent, middle_batches(max_batch[name])[:sizes])
            for name, percent in zip(names, percents, strict=True)
            if percent is not None
        )

    plans = [
        (itertools.combinations_with_replacement(models, 2), (50.0, 50.0), 2),
        (itertools.product(models, repeat=2), (100 * _UNEVEN, 100 * (1 - _UNEVEN)), 1),
        (itertools.combinations_with_replacement(models, 3), (100 / 3, 100 / 3, 100 / 3), 1),
    ]
    for names, parts, sizes in plans:
        for chosen in names:
            household = tenants(chosen, parts, sizes)
            if household is not None:
                yield household


def middle_batches(max_batch: int) -> tuple[int, ...]:
    """The batches plans mostly use: not the ends, where there is anything between them."""
    sizes = default_batches(max_batch)
    return sizes[1:-1] or sizes[-1:]


def merged(
    before: Sequence[ColocationPoint], measured: Sequence[ColocationPoint]
) -> tuple[ColocationPoint, ...]:
    """Old and new points; where both measured the same, the new one."""
    known = {(p.percent, p.batch, p.neighbours): p for p in (*before, *measured)}
    return tuple(known.values())


def _floor(percent: float, grid: ShareGrid) -> float | None:
    """The largest share of the grid within `percent`, so that several fit; None where the grid has none."""
    return max((p for p in grid.percents() if p <= percent + 1e-9), default=None)

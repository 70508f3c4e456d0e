"""The choice and order of co-located measurements. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controlplane.domain.device import ShareGrid
from controlplane.domain.profile import ColocationPoint
from controlplane.profiler.sweep import default_batches

_UNEVEN = 0.7
"""The larger share of an uneven pair, as a part of the device."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One model's server beside others: its share, and the batches to measure."""

    model: str
    percent: float
    batches: tuple[int, ...]


TenantGroup = tuple[Tenant, ...]
"""Servers that run at once. They start once, then run every combination of their batches."""


def tenant_groups(max_batch: dict[str, int], grid: ShareGrid) -> Iterator[TenantGroup]:
    """Yield pairs first, even shares before uneven ones, then triples; also a model beside itself.

    `max_batch` has the largest batch of each model. Pairs show the interference between two models, triples
    whether it adds up. Most plans put two or three partitions on a GPU.
    """
    models = sorted(max_batch)

    def tenants(names: Sequence[str], parts: Sequence[float], sizes: int) -> TenantGroup | None:
        percents = [grid.floor(part) for part in parts]
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
            group = tenants(chosen, parts, sizes)
            if group is not None:
                yield group


def middle_batches(max_batch: int) -> tuple[int, ...]:
    """Return medium batches, which plans mostly use: not the smallest and the largest, if others exist."""
    sizes = default_batches(max_batch)
    return sizes[1:-1] or sizes[-1:]


def merged(
    before: Sequence[ColocationPoint], measured: Sequence[ColocationPoint]
) -> tuple[ColocationPoint, ...]:
    """Return old and new points; a new point replaces an old one of the same setting."""
    known = {(p.percent, p.batch, p.neighbours): p for p in (*before, *measured)}
    return tuple(known.values())

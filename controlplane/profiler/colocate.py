"""Measurement of interference: models beside each other on one device, all busy; which, in what order."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.device import ShareGrid
from controlplane.domain.errors import InputError
from controlplane.domain.profile import ColocationPoint, Neighbour
from controlplane.profiler.point import Bench, executed
from controlplane.profiler.requests import Subject, Traffic
from controlplane.profiler.session import Place, Profiler, endpoint_of
from controlplane.profiler.sweep import LATE_S, LEAST_BATCHES, default_batches
from controlplane.render.config import batch_limit

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
    plans = [
        (itertools.combinations_with_replacement(models, 2), (50.0, 50.0), 2),
        (itertools.product(models, repeat=2), (100 * _UNEVEN, 100 * (1 - _UNEVEN)), 1),
        (itertools.combinations_with_replacement(models, 3), (100 / 3, 100 / 3, 100 / 3), 1),
    ]
    for groups, parts, sizes in plans:
        percents = [percent for part in parts if (percent := grid.floor(part)) is not None]
        for names in groups if len(percents) == len(parts) else ():
            yield tuple(
                Tenant(name, percent, middle_batches(max_batch[name])[:sizes])
                for name, percent in zip(names, percents, strict=True)
            )


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


_POINT_S = 1.5


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Measures models beside each other on one device."""

    profiler: Profiler
    place: Place

    def measure(
        self, subjects: Sequence[Subject], *, budget_s: float
    ) -> dict[str, tuple[ColocationPoint, ...]]:
        """Return the new points by model, as many as `budget_s` allows; at least one pair.

        Raises InputError without a model, EngineError where a server fails.
        """
        if not subjects:
            raise InputError("name at least one model to measure beside others", field="models")
        known = {subject.source.name: subject for subject in subjects}
        limits = {model: batch_limit(s.source.config) for model, s in known.items()}
        # Of a model that executes others, a server can have only one batch.
        single = {model for model, s in known.items() if s.source.composing}
        every = [
            tuple(replace(t, batches=t.batches[:1]) if t.model in single else t for t in group)
            for group in tenant_groups(limits, self.place.device.grid)
        ]
        found: dict[str, list[ColocationPoint]] = {model: [] for model in known}
        clock, began_s = self.profiler.clock, self.profiler.clock.monotonic()
        with self.profiler.exclusive(self.place):
            for done, group in enumerate(every):
                passed_s = clock.monotonic() - began_s
                if done and passed_s * (done + 1) / done > budget_s:
                    break
                left_s = None if not done else min(budget_s - passed_s, passed_s / done * (len(every) - done))
                names = " + ".join(f"{t.model} {t.percent:g} %" for t in group)
                self.profiler.progress.advance(names, done, len(every), left_s)
                for model, point in self._together(group, known):
                    found[model].append(point)
        return {model: tuple(points) for model, points in found.items()}

    def _together(
        self, group: TenantGroup, subjects: Mapping[str, Subject]
    ) -> list[tuple[str, ColocationPoint]]:
        """Measure every combination of the tenants' batches with one start of their servers."""
        points = []
        with contextlib.ExitStack() as stack:
            benches = []
            for slot, tenant in enumerate(group):
                source = subjects[tenant.model].source
                server = stack.enter_context(
                    self.profiler.serving(source, self.place, tenant.percent, tenant.batches, slot=slot)
                )
                bench = Bench(server, self.profiler.launcher, self.profiler.clock)
                benches.append(stack.enter_context(bench))
            traffic = [subjects[t.model].traffic for t in group]
            for batches in itertools.product(*(t.batches for t in group)):
                times_ms = _times_ms(group, benches, traffic, batches)
                points += list(zip((t.model for t in group), _points(group, batches, times_ms), strict=True))
        return points


def _times_ms(
    group: TenantGroup,
    benches: Sequence[Bench],
    traffic: Sequence[Traffic],
    batches: Sequence[int],
) -> list[float]:
    """Return each tenant's mean execution time while all of them run back to back."""
    endpoints = [endpoint_of(t.model, batch) for t, batch in zip(group, batches, strict=True)]
    with contextlib.ExitStack() as stack:
        loops = [
            stack.enter_context(bench.loop(endpoint, own, own.in_flight(batch)))
            for bench, endpoint, own, batch in zip(benches, endpoints, traffic, batches, strict=True)
        ]
        for loop, own, batch in zip(loops, traffic, batches, strict=True):
            loop.wait_for(own.in_flight(batch), deadline_s=LATE_S)
        before = [b.statistics(e) for b, e in zip(benches, endpoints, strict=True)]
        answered = [loop.answered for loop in loops]
        loops[0].run(_POINT_S)
        for loop, first, batch in zip(loops, answered, batches, strict=True):
            loop.wait_for(first + LEAST_BATCHES * batch, deadline_s=LATE_S)
        after = [b.statistics(e) for b, e in zip(benches, endpoints, strict=True)]
        answers = [loop.answers(first) for loop, first in zip(loops, answered, strict=True)]
    return [
        executed(own, (old, new), seen, batch).mean_ms
        for old, new, own, seen, batch in zip(before, after, traffic, answers, batches, strict=True)
    ]


def _points(group: TenantGroup, batches: Sequence[int], times_ms: Sequence[float]) -> list[ColocationPoint]:
    there = [Neighbour(t.model, t.percent, batch) for t, batch in zip(group, batches, strict=True)]
    return [
        ColocationPoint(
            percent=one.percent,
            batch=one.batch,
            neighbours=tuple(other for j, other in enumerate(there) if j != i),
            execution_ms=time_ms,
        )
        for i, (one, time_ms) in enumerate(zip(there, times_ms, strict=True))
    ]

"""Measurement of interference: models beside each other on one device, all busy."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.errors import InputError
from controlplane.domain.profile import ColocationPoint, Neighbour
from controlplane.profiler.neighbours import Tenant, TenantGroup, tenant_groups
from controlplane.profiler.point import LATE_S, Bench, executed
from controlplane.profiler.session import Place, Profiler, endpoint_of
from controlplane.profiler.subject import Subject
from controlplane.profiler.sweep import LEAST_BATCHES
from controlplane.profiler.traffic import Traffic
from controlplane.render.config import batch_limit

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
        single = {model for model, s in known.items() if s.source.composing}
        every = [_one_batch(group, single) for group in tenant_groups(limits, self.place.device.grid)]
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


def _one_batch(group: TenantGroup, single: Collection[str]) -> TenantGroup:
    """Return the group with one batch of those models of which a server can have only one."""
    return tuple(replace(t, batches=t.batches[:1]) if t.model in single else t for t in group)


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
    there = [_neighbour(t, b) for t, b in zip(group, batches, strict=True)]
    return [
        ColocationPoint(
            percent=one.percent,
            batch=one.batch,
            neighbours=tuple(other for j, other in enumerate(there) if j != i),
            execution_ms=time_ms,
        )
        for i, (one, time_ms) in enumerate(zip(there, times_ms, strict=True))
    ]


def _neighbour(tenant: Tenant, batch: int) -> Neighbour:
    return Neighbour(tenant.model, tenant.percent, batch)

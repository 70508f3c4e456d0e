"""Alternatives of a queue: the next smaller and larger share and batch, each judged in the whole plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, ServedModel
from controlplane.planning.judge.evaluate import QueueVerdict, Terms, judge
from controlplane.planning.judge.placements import largest_batch
from controlplane.planning.protocol import Device

PLANNED = "as planned"
SMALLER_SHARE = "next smaller share"
LARGER_SHARE = "next larger share"
SMALLER_BATCH = "next smaller batch"
LARGER_BATCH = "next larger batch"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One share and batch in the workload's place; `holds`: it and all neighbours keep their promises.

    `p99_ms` is None under half-SLO and where the queue does not settle; `breaks` are the partitions that
    would not keep theirs.
    """

    what: str
    percent: float
    batch: int
    execution_ms: float
    p99_ms: float | None
    utilisation: float
    holds: bool
    breaks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload in one of its partitions."""

    gpu: PlannedGpu
    partition: Partition
    own: Placement

    @property
    def queue(self) -> tuple[Placement, ...]:
        """The workloads that share its queue, itself included."""
        return self.partition.queues()[self.own.model]

    @property
    def served(self) -> ServedModel:
        """Its model as the partition serves it."""
        return next(m for m in self.partition.models if m.model == self.own.model)


@dataclass(frozen=True, slots=True)
class _Case:
    """Another share and batch for a subject's queue."""

    subject: Subject
    what: str
    percent: float
    batch: int


def alternatives(
    plan: Plan, subjects: Sequence[Subject], devices: Mapping[str, Device]
) -> list[tuple[Alternative, ...]]:
    """Return the alternatives of each subject's queue; the first is what was planned."""
    cases = [_cases(subject, devices[subject.gpu.type]) for subject in subjects]
    judged = iter(_judged(plan, [case for own in cases for case in own], devices))
    return [tuple(next(judged) for _ in own) for own in cases]


def _cases(subject: Subject, device: Device) -> list[_Case]:
    """What was planned, then the next shares, a larger one where the GPU has room, and the next batches."""
    percent, batch, step = subject.partition.percent, subject.served.batch, subject.own.client_batch
    percents, room = device.pool.device.grid.percents(), 100.0 - subject.gpu.percent + percent
    smaller = [p for p in percents if p < percent - 1e-9]
    larger = [p for p in percents if percent + 1e-9 < p <= room + 1e-9]
    found = [(PLANNED, percent, batch)]
    found += [(SMALLER_SHARE, p, batch) for p in smaller[-1:]]
    found += [(LARGER_SHARE, p, batch) for p in larger[:1]]
    if batch > step:
        found.append((SMALLER_BATCH, percent, batch - step))
    if batch + step <= largest_batch(device, subject.own.model):
        found.append((LARGER_BATCH, percent, batch + step))
    return [_Case(subject, *one) for one in found]


def _judged(plan: Plan, cases: Sequence[_Case], devices: Mapping[str, Device]) -> list[Alternative]:
    """Judge the plan with one queue changed, for each case; all cases are one question to the model."""
    touched = [_touched(plan, case, f"{n}/") for n, case in enumerate(cases)]
    owner = {id(gpu): n for n, gpus in enumerate(touched) for gpu in gpus}
    verdicts: list[list[QueueVerdict]] = [[] for _ in cases]
    for one in judge([gpu for gpus in touched for gpu in gpus], devices, Terms.of(plan)):
        verdicts[owner[id(one.gpu)]].append(one)
    return [_alternative(case, verdicts[n], f"{n}/") for n, case in enumerate(cases)]


def _touched(plan: Plan, case: _Case, prefix: str) -> list[PlannedGpu]:
    """Return the GPUs that a case touches, changed; the other servers of a pool take the same batch.

    `prefix` makes the workloads' names those of this case alone.
    """
    gpu, partition, model = case.subject.gpu, case.subject.partition, case.subject.own.model
    own = {w.name for w in partition.workloads}
    # What shares the GPU may be served elsewhere too, and has its P99 from all its servers.
    here = {w.name for p in gpu.partitions for w in p.workloads}

    def changed(p: Partition) -> Partition:
        renamed = tuple(replace(w, name=prefix + w.name) for w in p.workloads)
        if own.isdisjoint(w.name for w in p.workloads):
            return replace(p, workloads=renamed)
        share = case.percent if p.id == partition.id else p.percent
        models = tuple(replace(m, batch=case.batch) if m.model == model else m for m in p.models)
        return replace(p, percent=share, models=models, workloads=renamed)

    return [
        replace(g, partitions=tuple(changed(p) for p in g.partitions))
        for g in plan.gpus
        if any(w.name in here for p in g.partitions for w in p.workloads)
    ]


def _alternative(case: _Case, verdicts: Sequence[QueueVerdict], prefix: str) -> Alternative:
    subject = case.subject
    own = {prefix + w.name for w in subject.partition.workloads}
    breaks = tuple(
        one.partition.id
        for one in verdicts
        if not one.meets_slo
        and (one.gpu.id == subject.gpu.id or not own.isdisjoint(w.name for w in one.workloads))
    )
    at = next(
        one
        for one in verdicts
        if one.partition.id == subject.partition.id and one.served.model == subject.own.model
    )
    return Alternative(
        case.what,
        case.percent,
        case.batch,
        at.execution_ms,
        at.p99_ms if math.isfinite(at.p99_ms) else None,
        at.utilisation,
        not breaks,
        breaks,
    )

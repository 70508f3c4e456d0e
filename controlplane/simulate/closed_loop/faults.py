"""Faults of a simulated fleet, and what came of them with and without the guard."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Partition, Plan, PlannedGpu
from controlplane.domain.units import positive
from controlplane.latency.protocol import FloatArray

_FORM = re.compile(
    r"(?P<kind>[a-z]+):(?P<subject>[^*@]+)(?:\*(?P<factor>[0-9]*\.?[0-9]+))?@(?P<at>[0-9]*\.?[0-9]+)"
)

BROKEN = 0.1
"""A second counts as late where more than this part of its requests was late or lost. One in a hundred may be
late by promise, and in a single second chance makes it more."""


class Kind(StrEnum):
    """The kind of a fault."""

    SLOW = "slow"
    """The present server of a partition takes `factor` times as long from now on, as with a smaller share."""
    SLOWER = "slower"
    """Every server of a model, the later ones too, takes `factor` times as long: its profile was wrong."""
    CRASH = "crash"
    """The present server of a partition dies."""
    LOST = "lost"
    """Every server of a GPU dies, and none starts there any more."""


_WITH_FACTOR = (Kind.SLOW, Kind.SLOWER)
_SUBJECT = {Kind.LOST: "GPU", Kind.SLOWER: "model"}
"""The others are faults of a partition."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `subject` is a partition, the model that is slower, or the GPU that is lost."""

    kind: Kind
    subject: str
    at_s: float
    factor: float = 1.0

    def hits(self, gpu: PlannedGpu, partition: Partition) -> bool:
        """Whether it hits this partition."""
        match self.kind:
            case Kind.LOST:
                return gpu.id == self.subject
            case Kind.SLOWER:
                return any(served.model == self.subject for served in partition.models)
        return partition.id == self.subject

    def __str__(self) -> str:
        factor = f"*{self.factor:g}" if self.kind in _WITH_FACTOR else ""
        return f"{self.kind}:{self.subject}{factor}@{self.at_s:g}"


def parse(text: str, plan: Plan) -> Fault:
    """Return the fault that a text like `slow:w-1*1.5@600` or `crash:w-1@600` names.

    Raises InputError for another form, and for a partition, model or GPU that the plan does not have.
    """
    found = _FORM.fullmatch(text)
    kinds = {kind.value for kind in Kind}
    if (
        found is None
        or found["kind"] not in kinds
        or (found["factor"] is None) == (found["kind"] in _WITH_FACTOR)
    ):
        raise InputError(
            f"{text!r} is not slow:PARTITION*FACTOR@SECOND, slower:MODEL*FACTOR@SECOND, "
            "crash:PARTITION@SECOND or lost:GPU@SECOND",
            field="--fault",
        )
    kind = Kind(found["kind"])
    known = {
        Kind.LOST: [gpu.id for gpu in plan.gpus],
        Kind.SLOWER: sorted({served.model for _, p in plan.partitions() for served in p.models}),
    }.get(kind, [p.id for _, p in plan.partitions()])
    if found["subject"] not in known:
        what = _SUBJECT.get(kind, "partition")
        raise InputError(
            f"the plan has no {what} {found['subject']!r}; it has {', '.join(known)}", field="--fault"
        )
    factor = float(found["factor"] or 1.0)
    positive(factor, "--fault")
    return Fault(kind, found["subject"], float(found["at"]), factor)


@dataclass(frozen=True, slots=True)
class Happened:
    """One decision of the guard, or one of its messages."""

    at_s: float
    subject: str
    text: str
    redirect: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """The requests of a workload by the second of their arrival; `late`: above the SLO or lost."""

    name: str
    slo_ms: float
    partitions: tuple[str, ...]
    sent: FloatArray
    late: FloatArray

    @property
    def late_percent(self) -> float:
        """The late ones of all."""
        total = float(self.sent.sum())
        return 100.0 * float(self.late.sum()) / total if total else 0.0

    @property
    def holds(self) -> bool:
        """Whether the P99 over the whole time is within the SLO."""
        return self.late_percent <= 1.0


@dataclass(frozen=True, slots=True)
class Repair:
    """What followed from one fault, until the next fault of the same partitions.

    `redirected_s`: from the fault to the first redirect of one of its partitions; None without one. `late_s`:
    the seconds in which requests of its workloads were late.
    """

    fault: Fault
    redirected_s: float | None
    late_s: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fleet's run: each workload, each fault, each decision."""

    workloads: tuple[WorkloadSeen, ...]
    repairs: tuple[Repair, ...]
    happened: tuple[Happened, ...]


@dataclass(frozen=True, slots=True)
class WithAndWithout:
    """Two runs with the same requests and faults."""

    seed: int
    seconds: float
    guarded: Outcome
    alone: Outcome

    @property
    def breaks(self) -> int:
        """The number of workloads that miss their SLO with the guard."""
        return sum(not w.holds for w in self.guarded.workloads)

    def document(self) -> dict[str, object]:
        """Return the JSON of `ctl simulate --guard`."""
        pairs = zip(self.guarded.workloads, self.alone.workloads, strict=True)
        repaired = zip(self.guarded.repairs, self.alone.repairs, strict=True)
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "workloads": [
                {
                    "name": one.name,
                    "slo_ms": one.slo_ms,
                    "requests": int(one.sent.sum()),
                    "late_percent": one.late_percent,
                    "late_percent_without": other.late_percent,
                    "holds": one.holds,
                    "holds_without": other.holds,
                }
                for one, other in pairs
            ],
            "faults": [
                {
                    "fault": str(one.fault),
                    "at_s": one.fault.at_s,
                    "redirected_s": one.redirected_s,
                    "late_s": one.late_s,
                    "late_s_without": other.late_s,
                }
                for one, other in repaired
            ],
            "events": [
                {"at_s": one.at_s, "subject": one.subject, "reason": one.text}
                for one in self.guarded.happened
            ],
            "totals": {"holds": len(self.guarded.workloads) - self.breaks, "breaks": self.breaks},
        }


def repairs(
    plan: Plan,
    faults: Iterable[Fault],
    workloads: tuple[WorkloadSeen, ...],
    happened: tuple[Happened, ...],
    seconds: int,
) -> tuple[Repair, ...]:
    """Return what followed from each fault of a plan's fleet."""
    found = []
    ordered = sorted(faults, key=lambda fault: fault.at_s)
    partitions = [{p.id for gpu, p in plan.partitions() if fault.hits(gpu, p)} for fault in ordered]
    for i, (fault, hit) in enumerate(zip(ordered, partitions, strict=True)):
        following = (
            f.at_s for f, own in zip(ordered[i + 1 :], partitions[i + 1 :], strict=True) if own & hit
        )
        until_s = min([*following, float(seconds)])
        moves = [
            h.at_s for h in happened if h.redirect and h.subject in hit and fault.at_s <= h.at_s < until_s
        ]
        late = np.zeros(seconds, dtype=bool)
        for one in workloads:
            if hit & set(one.partitions):
                late |= one.late > BROKEN * np.maximum(one.sent, 1.0)
        during = late[int(fault.at_s) : int(np.ceil(until_s))]
        found.append(Repair(fault, moves[0] - fault.at_s if moves else None, int(during.sum())))
    return tuple(found)

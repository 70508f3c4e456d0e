"""Faults of a simulated fleet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan
from controlplane.domain.units import positive

_FORM = re.compile(
    r"(?P<kind>[a-z]+):(?P<subject>[^*@]+)(?:\*(?P<factor>[0-9]*\.?[0-9]+))?@(?P<at>[0-9]*\.?[0-9]+)"
)


class Kind(StrEnum):
    """The kind of a fault."""

    SLOW = "slow"
    """The present server of a partition takes `factor` times as long from now on, as with a smaller share."""
    CRASH = "crash"
    """The present server of a partition dies."""
    LOST = "lost"
    """Every server of a GPU dies, and none starts there any more."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `subject` is a partition, or the GPU that is lost."""

    kind: Kind
    subject: str
    at_s: float
    factor: float = 1.0

    def __str__(self) -> str:
        factor = f"*{self.factor:g}" if self.kind is Kind.SLOW else ""
        return f"{self.kind}:{self.subject}{factor}@{self.at_s:g}"


def parse(text: str, plan: Plan) -> Fault:
    """Return the fault that a text like `slow:w-1*1.5@600`, `crash:w-1@600` or `lost:v100-0@600` names.

    Raises InputError for another form, and for a partition or GPU that the plan does not have.
    """
    found = _FORM.fullmatch(text)
    kinds = {kind.value for kind in Kind}
    if (
        found is None
        or found["kind"] not in kinds
        or (found["factor"] is None) == (found["kind"] == Kind.SLOW)
    ):
        raise InputError(
            f"{text!r} is not slow:PARTITION*FACTOR@SECOND, crash:PARTITION@SECOND or lost:GPU@SECOND",
            field="--fault",
        )
    kind = Kind(found["kind"])
    known = [gpu.id for gpu in plan.gpus] if kind is Kind.LOST else [p.id for _, p in plan.partitions()]
    if found["subject"] not in known:
        what = "GPU" if kind is Kind.LOST else "partition"
        raise InputError(
            f"the plan has no {what} {found['subject']!r}; it has {', '.join(known)}", field="--fault"
        )
    factor = float(found["factor"] or 1.0)
    positive(factor, "--fault")
    return Fault(kind, found["subject"], float(found["at"]), factor)

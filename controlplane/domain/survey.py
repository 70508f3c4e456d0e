"""The models of a repository and what each needs before it can be measured and planned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.tensors import TensorSpec


class Readiness(StrEnum):
    """Whether a model can be profiled."""

    READY = "ready"
    NEEDS_INPUTS = "needs inputs"
    """Its configuration does not determine a request; `Finding.note` has the options that do."""
    UNSUPPORTED = "not supported"


@dataclass(frozen=True, slots=True)
class Finding:
    """One model of a repository.

    `note` says what it needs, why it is not supported, or what to know about its measurement. `max_batch` is
    the largest batch of a plan. `completed`: Triton completed its configuration.
    """

    model: str
    readiness: Readiness
    note: str = ""
    max_batch: int | None = None
    inputs: tuple[TensorSpec, ...] = ()
    completed: bool = False

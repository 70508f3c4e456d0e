"""Inputs of a model, values for one inference, and what a model needs to be measured and planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Shapes = Mapping[str, tuple[int, ...]]
"""Input -> its dimensions without the batch, for inputs of variable shape."""

Ranges = Mapping[str, tuple[float, float]]
"""Input -> the smallest and the largest of its generated values."""

_SENTENCE = b"The quick brown fox jumps over the lazy dog, and the model reads on. "
SAMPLE_SHAPE = "sample_shape."
"""With an input's name: the parameter of a model's configuration that has the dimensions of a sample."""
SAMPLE_TEXT = (2 * _SENTENCE)[:128]
"""The generated text for BYTES inputs; many models refuse an empty one."""


def parsed_dims(text: str) -> tuple[int, ...] | None:
    """Return `3,48,320` as dimensions; None for anything else."""
    dims = text.split(",")
    if not all(d.isascii() and d.isdigit() and int(d) > 0 for d in dims):
        return None
    return tuple(int(d) for d in dims)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input. `datatype` is KServe's (FP32, BYTES, ...); a dimension of -1 is variable."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False

    @property
    def is_open(self) -> bool:
        """Whether some of its dimensions are variable."""
        return any(d < 0 for d in self.dims)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a value of this shape fits."""
        fits = len(shape) == len(self.dims) and all(
            d in (-1, s) for d, s in zip(self.dims, shape, strict=True)
        )
        return fits and all(s > 0 for s in shape)


@dataclass(frozen=True, slots=True)
class TensorValue:
    """One input of one inference in KServe's binary layout; `shape` leaves out the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


Sample = tuple[TensorValue, ...]
"""All inputs of one inference."""


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
    state: Readiness
    note: str | None = None
    max_batch: int | None = None
    completed: bool = False
    inputs: tuple[TensorSpec, ...] = ()

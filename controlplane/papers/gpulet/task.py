"""A demand while it is being placed."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.papers.gpulet.gpulets import Demand


@dataclass(slots=True)
class Task:
    """What is left of a demand's rate; `extra` is what neighbours took, to be served as well."""

    demand: Demand
    rate: int
    extra: int = 0

    @property
    def left(self) -> int:
        """The rate without a place."""
        return self.rate + self.extra

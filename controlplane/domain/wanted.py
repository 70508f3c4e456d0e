"""A fleet that an object of a cluster describes: what is wanted, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.domain.observation import Guarding


@dataclass(frozen=True, slots=True)
class WantedFleet:
    """What an object wants. `plan` is a plan's document, `generation` counts the changes of it.

    `applied` is the hash of the plan that was applied last, `devices` maps its GPU ids, and `guarding` has
    the partitions whose share is lent or whose servers end, as an earlier controller reported them.
    `ending`: the fleet is to be destroyed. `redirects` counts those since the plan was applied.
    `followed`: the plan is the one by which a leader follows the load, made from the object's.
    """

    plan: Mapping[str, Any]
    generation: int
    allow_violations: bool = False
    ending: bool = False
    applied: str | None = None
    guarding: tuple[Guarding, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    redirects: int = 0
    followed: bool = False


@dataclass(frozen=True, slots=True)
class FleetStanding:
    """How a fleet stands. `ready` of its `partitions` answer.

    `covers`: so many times slower than planned a model may be on all its servers while every promise is kept,
    at the partition where that is least. `trouble` is one word for what is not as planned.
    """

    ready: int
    partitions: int
    gpus: int
    redirects: int
    covers: float
    trouble: str | None
    message: str


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What became of a generation. `reason` is one word, `message` says more; the rest only if it applied."""

    generation: int
    applied: bool
    reason: str
    message: str
    plan: str = ""
    partitions: int = 0
    devices: Mapping[str, str] = field(default_factory=dict)

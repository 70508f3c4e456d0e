"""Strategies side by side, as `ctl compare --json` prints them: each one's plan, and how it fares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Truth:
    """How a simulated world differs from what a plan believes, in words."""

    name: str
    title: str
    meaning: str


@dataclass(frozen=True, slots=True)
class UnderTruth:
    """A plan under one truth: the late workloads, and the mean power where it is known."""

    late: tuple[str, ...]
    late_percent: float
    power_w: float | None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Utilisations of a plan's workloads."""

    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A strategy that cannot plan the spec, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Compared:
    """One strategy's plan. `predicted_late` by the default latency model."""

    name: str
    gpus: int
    cost_per_hour: float
    share_percent: float
    planning_ms: float
    infeasible: tuple[str, ...]
    predicted_late: tuple[str, ...]
    utilisation: Utilisation | None
    truths: Mapping[str, UnderTruth]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All strategies and truths of one spec."""

    workloads: int
    noun: str
    priced: bool
    seconds: float
    seed: int
    truths: tuple[Truth, ...]
    refused: tuple[Refused, ...]
    strategies: tuple[Compared, ...]

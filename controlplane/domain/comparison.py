"""Strategies side by side: each one's plan for the same workloads, and how it fares under several truths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Truth:
    """How a simulated world differs from what a plan believes.

    model: the latency model of the execution times; None is the plan's own. factor: on these times.
    burstiness: the coefficient of variation of the gaps between requests: 0 is even; None keeps the
    workloads' arrivals.
    """

    name: str
    title: str
    meaning: str
    model: str | None = None
    factor: float = 1.0
    burstiness: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan under one truth: the late workloads, and the mean power where it is known."""

    late: tuple[str, ...]
    late_percent: float
    power_w: float | None


@dataclass(frozen=True, slots=True)
class Compared:
    """One strategy's plan.

    `predicted_late` by the default latency model; `utilisation`: the median and the largest.
    """

    strategy: str
    gpus: int
    cost_per_hour: float
    share_percent: float
    planning_ms: float
    infeasible: tuple[str, ...]
    predicted_late: tuple[str, ...]
    utilisation: tuple[float, float] | None
    outcomes: Mapping[str, Outcome]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All strategies and truths of one spec."""

    workloads: int
    noun: str
    priced: bool
    seconds: float
    seed: int
    truths: tuple[Truth, ...]
    strategies: tuple[Compared, ...]
    refused: tuple[tuple[str, str], ...] = ()
    """The strategies that cannot plan this spec, with the reason."""

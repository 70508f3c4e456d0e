"""Local search for a problem's best placement: the fallback of a policy, and the polish of its plan.

Rounds of annealing, each from the best so far. Rounds are short, so that a time limit is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.papers.inss.problem import CAPACITY_WEIGHT, REJECTED, Problem
from controlplane.ports import Clock

if TYPE_CHECKING:
    from controlplane.papers.inss import kernel

STEPS_A_MODEL, MOST_STEPS = 1000, 200_000
"""Length of a round, for each model and in total."""
DEFAULT_ROUNDS = 4
HOT, COLD = 0.3, 1e-4
"""Temperatures of a round, in parts of an average model's value."""
WARM = 0.01
"""The first temperature for a good start, low enough that the search improves it and does not leave it."""


@dataclass(frozen=True, slots=True)
class Previous:
    """The running plan, (n,) each, and the cost of moving, resizing or stopping a model.

    The cost is in parts of all offered requests: a move must serve so many more of them. Starting a model
    that is REJECTED now is free.
    """

    gpu: IntArray
    units: IntArray
    cost: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """An assignment (n,), its value minus the cost of moves, and whether "converged" or "budget" ended it."""

    gpu: IntArray
    units: IntArray
    value: float
    stopped_by: str


def construct(problem: Problem) -> tuple[IntArray, IntArray]:
    """Place models by demand, largest first, each with the least share that holds."""
    from controlplane.papers.inss import search_kernel

    n = problem.model.size
    gpu, units = np.full(n, REJECTED, dtype=np.int64), np.ones(n, dtype=np.int64)
    order = np.argsort(-problem.rates_rps / problem.peak_rps, kind="stable")
    search_kernel.construct(order, *_told(problem), gpu, units)
    return gpu, units


def search(
    problem: Problem,
    clock: Clock,
    seed: int = 1,
    start: tuple[IntArray, IntArray] | None = None,
    rounds: int | None = None,
    budget_s: float | None = None,
    previous: Previous | None = None,
    first: float = HOT,
) -> SearchResult:
    """Return the best assignment found by `rounds` of annealing; if None, by as many as `budget_s` allows.

    Without both there are `DEFAULT_ROUNDS`. The first begins at the temperature `first`, the others at HOT.
    The same seed and rounds give the same answer. `start` must hold (1a) and (1b).
    """
    from controlplane.papers.inss import search_kernel

    began = clock.monotonic()
    gpu, units = construct(problem) if start is None else (start[0].copy(), start[1].copy())
    n = problem.model.size
    if previous is None:
        before = (np.full(n, REJECTED, dtype=np.int64), np.ones(n, dtype=np.int64), np.zeros(n))
    else:
        before = (previous.gpu, previous.units, np.full(n, previous.cost))
    units = np.maximum(units, 1)
    worth = _worth(problem)
    told = _told(problem)
    heat = np.array([first, COLD]) / n
    found = search_kernel.improve(seed, 0, heat, gpu, units, *told, worth, before)
    stopped_by, done = "converged", 0
    most = rounds if rounds is not None or budget_s is not None else DEFAULT_ROUNDS
    while most is None or done < most:
        if budget_s is not None and clock.monotonic() - began >= budget_s:
            stopped_by = "budget"
            break
        steps = min(STEPS_A_MODEL * n, MOST_STEPS)
        found = search_kernel.improve(seed * 7919 + done, steps, heat, gpu, units, *told, worth, before)
        heat = np.array([HOT, COLD]) / n
        done += 1
    return SearchResult(gpu, units, float(found), stopped_by)


def _told(
    problem: Problem,
) -> tuple[kernel.Asked, FloatArray, FloatArray, FloatArray, kernel.Tables]:
    """Return a problem as the kernels' arguments: problem, memory, needs, percent, tables."""
    s = problem.surfaces
    return problem.asked, problem.memory_mb, problem.model_memory_mb, s.percent, s.tables


def _worth(problem: Problem) -> FloatArray:
    """Return the weights in `problem.value` of each model's goodput and of a unit of its capacity; (2, n)."""
    spare = CAPACITY_WEIGHT / (problem.model.size * problem.peak_rps)
    return np.stack([problem.rates_rps / problem.rates_rps.sum(), spare])

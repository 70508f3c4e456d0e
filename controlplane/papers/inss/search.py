"""One decision of InSS: policy, polish, batches; with a running plan only batches, as long as these suffice.

With a running plan (Sec. 5.5), case 1 changes only batches, at once, if that serves every model. Case 2
changes shares, which takes a new process beside the old one: each move must save enough requests.

Local search is the fallback of a policy, and the polish of its plan: rounds of annealing, each from the best
so far. Rounds are short, so that a time limit is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import IntArray
from controlplane.papers.inss.policy import Weights, decide
from controlplane.papers.inss.problem import (
    CAPACITY_WEIGHT,
    REJECTED,
    Bda,
    Previous,
    Problem,
    fits,
    goodput,
)
from controlplane.ports import Clock

STEPS_A_MODEL, MOST_STEPS = 1000, 200_000
"""Length of a round, for each model and in total."""
DEFAULT_ROUNDS = 4
HOT, COLD = 0.3, 1e-4
"""Temperatures of a round, in parts of an average model's value."""
WARM = 0.01
"""The first temperature for a good start, low enough that the search improves it and does not leave it."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """An assignment (n,), its value minus the cost of moves, and whether "converged" or "budget" ended it."""

    gpu: IntArray
    units: IntArray
    value: float
    stopped_by: str


@dataclass(frozen=True, slots=True)
class Placed:
    """GPU, units and batch of each model, (n,): REJECTED and 0 where it is not served within its SLO.

    stopped_by as in `search.SearchResult`; phases_ms: the duration of each part.
    """

    gpu: IntArray
    units: IntArray
    batch: IntArray
    stopped_by: str
    phases_ms: tuple[tuple[str, float], ...]


def place(
    problem: Problem,
    clock: Clock,
    *,
    seed: int = 1,
    before: Previous | None = None,
    policy: Weights | None = None,
    rounds: int | None = None,
    budget_s: float | None = None,
    bda: Bda = Bda.EXACT,
) -> Placed:
    """Decide. Without a policy, or where its plan does not fit, the search alone does it.

    `rounds` and `budget_s` are the search's.
    """
    phases: list[tuple[str, float]] = []
    since = clock.monotonic()

    def spent(part: str) -> None:
        nonlocal since
        now = clock.monotonic()
        phases.append((part, (now - since) * 1000.0))
        since = now

    starts: list[tuple[IntArray, IntArray] | None] = []
    if before is not None and bool(fits(problem, before.gpu, before.units)):
        kept = goodput(problem, before.gpu, before.units, bda)
        spent("batches")
        if not kept.violated.any():
            return Placed(before.gpu, before.units, kept.batch, "converged", tuple(phases))
        starts.append((before.gpu, before.units))
    if policy is not None:
        planned = decide(problem, policy, before, seed=seed)
        spent("policy")
        if bool(fits(problem, *planned)):
            starts.append(planned)
    part = budget_s / len(starts) if budget_s is not None and starts else budget_s
    tried = [
        search(
            problem,
            clock,
            seed=seed,
            start=start,
            rounds=rounds,
            budget_s=part,
            previous=before,
            first=HOT if start is None else WARM,
        )
        for start in starts or [None]
    ]
    best = max(tried, key=lambda found: found.value)
    spent("polish" if starts else "search")
    gpu, units = best.gpu, best.units
    gpu = np.where(goodput(problem, gpu, units, bda).violated, REJECTED, gpu)
    # Rejected models slow no neighbour, so the batches of the others may be larger now.
    batch = goodput(problem, gpu, units, bda).batch
    spent("batches")
    return Placed(gpu, units, batch, best.stopped_by, tuple(phases))


def construct(problem: Problem) -> tuple[IntArray, IntArray]:
    """Place models by demand, largest first, each with the least share that holds."""
    from controlplane.papers.inss import search_kernel

    nothing = _nothing(problem)
    gpu, units = nothing.gpu.copy(), nothing.units.copy()
    order = np.argsort(-problem.rates_rps / problem.peak_rps, kind="stable")
    search_kernel.construct(order, problem, problem.space, nothing, gpu, units)
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
    before = _nothing(problem) if previous is None else previous
    units = np.maximum(units, 1)
    # The weights in `problem.value` of each model's goodput and of a unit of its capacity.
    spare = CAPACITY_WEIGHT / (n * problem.peak_rps)
    worth = np.stack([problem.rates_rps / problem.rates_rps.sum(), spare])
    heat, space = np.array([first, COLD]) / n, problem.space
    found = search_kernel.improve(seed, 0, heat, gpu, units, problem, space, worth, before)
    stopped_by, done = "converged", 0
    most = rounds if rounds is not None or budget_s is not None else DEFAULT_ROUNDS
    while most is None or done < most:
        if budget_s is not None and clock.monotonic() - began >= budget_s:
            stopped_by = "budget"
            break
        steps = min(STEPS_A_MODEL * n, MOST_STEPS)
        found = search_kernel.improve(
            seed * 7919 + done, steps, heat, gpu, units, problem, space, worth, before
        )
        heat = np.array([HOT, COLD]) / n
        done += 1
    return SearchResult(gpu, units, float(found), stopped_by)


def _nothing(problem: Problem) -> Previous:
    """Return a running plan without any model."""
    n = problem.model.size
    return Previous(np.full(n, REJECTED, dtype=np.int64), np.ones(n, dtype=np.int64), 0.0)

"""One decision of InSS: policy, polish, batches; with a running plan only batches, as long as these suffice.

With a running plan (Sec. 5.5), case 1 changes only batches, at once, if that serves every model. Case 2
changes shares, which takes a new process beside the old one: each move must save enough requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from controlplane.latency.protocol import IntArray
from controlplane.papers.inss import search
from controlplane.papers.inss.problem import REJECTED, Bda, Problem, fits, goodput
from controlplane.papers.inss.search import Previous
from controlplane.ports import Clock

if TYPE_CHECKING:
    from controlplane.papers.inss.policy import Weights

MOVE_COST = 0.1
"""A move must serve this part of an average model's requests."""


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


def running(gpu: IntArray, units: IntArray) -> Previous:
    """Return the running plan, (n,) or (E, n), with the cost of a move."""
    return Previous(gpu, units, MOVE_COST / gpu.shape[-1])


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
        from controlplane.papers.inss.policy import decide

        told = decide(problem, policy, before, seed=seed)
        spent("policy")
        if bool(fits(problem, *told)):
            starts.append(told)
    part = budget_s / len(starts) if budget_s is not None and starts else budget_s
    tried = [
        search.search(
            problem,
            clock,
            seed=seed,
            start=start,
            rounds=rounds,
            budget_s=part,
            previous=before,
            first=search.HOT if start is None else search.WARM,
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

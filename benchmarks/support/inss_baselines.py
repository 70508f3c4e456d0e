"""GSLICE-like and gpulet-like placements for InSS's figures, on a fixed set of GPUs.

Neither knows of neighbours, as InSS's paper runs them: both plan on `tables.without_interference()`. Their
batch is the largest whose time is within half the SLO; gpulet's with BDA instead is the paper's BDA-Gpulet.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import poisson

from controlplane.papers.inss.problem import REJECTED, Problem

SIZES = (20.0, 40.0, 50.0, 60.0, 80.0, 100.0)
"""What gpulet's code cuts off a whole GPU; the rest is the second piece."""


def half_slo_batch(problem: Problem, i: int, kind: int, unit: int) -> int:
    """The largest batch whose time alone is within half the SLO; 0 for none."""
    t = problem.tables.alone_ms[problem.model[i], kind, unit - 1]
    good = np.flatnonzero(t <= problem.slos_ms[i] / 2.0)
    return int(good[-1]) + 1 if good.size else 0


def rates(problem: Problem, i: int, kind: int) -> np.ndarray:
    """Requests per second that each share serves alone with that batch, (U,)."""
    s = problem.tables
    m = problem.model[i]
    batches = [half_slo_batch(problem, i, kind, u) for u in range(1, s.percent.shape[1] + 1)]
    return np.array([1000.0 * b / s.cycle_ms[m, kind, u, b - 1] if b else 0.0 for u, b in enumerate(batches)])


def knee(problem: Problem, i: int, kind: int) -> int:
    """The share after which more brings less: farthest above the chord of rate over share; in units."""
    served = rates(problem, i, kind)
    percent = problem.tables.percent[kind]
    known = np.isfinite(percent)
    gain = served[known] / max(served[known].max(), 1e-9) - percent[known] / 100.0
    return int(np.argmax(gain)) + 1


def enough(problem: Problem, i: int, kind: int, rate_rps: float) -> int | None:
    """The least units that serve this rate; None where all do not."""
    good = np.flatnonzero(rates(problem, i, kind) >= rate_rps)
    return int(good[0]) + 1 if good.size else None


def batches(problem: Problem, gpu: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Half-SLO batches of an assignment, at least 1, 0 where rejected; (n,)."""
    return np.array(
        [
            0 if k < 0 else max(half_slo_batch(problem, i, int(problem.type_of[k]), int(u)), 1)
            for i, (k, u) in enumerate(zip(gpu, units, strict=True))
        ]
    )


def gslice(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """GSLICE-like: each model the knee of its throughput, more where its rate needs it, on the emptiest GPU.

    Where the knee is not free the share is what is left, as long as that serves the rate.
    """
    n = problem.model.size
    gpu, units = np.full(n, REJECTED), np.ones(n, dtype=np.int64)
    percent, memory = np.full(problem.type_of.size, 100.0), problem.memory_mb.copy()
    for i in np.argsort(-problem.rates_rps, kind="stable"):
        for k in np.argsort(-percent, kind="stable"):
            kind = int(problem.type_of[k])
            least = enough(problem, i, kind, problem.rates_rps[i])
            grid = problem.tables.percent[kind]
            left = int(np.count_nonzero(grid <= percent[k] + 1e-9))
            if least is None or left < least or problem.model_memory_mb[i, kind] > memory[k]:
                continue
            gpu[i], units[i] = k, min(max(knee(problem, i, kind), least), left)
            percent[k] -= grid[units[i] - 1]
            memory[k] -= problem.model_memory_mb[i, kind]
            break
    return gpu, units


def gpulet(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Gpulet-like: the least share that serves the rate's P99, in the smallest free piece that holds it.

    Models by rate times SLO, ascending; a piece is taken whole, and only whole GPUs are cut. Its code takes
    min(knee, that) and serves the rest elsewhere; here a model has one GPU (1e).
    """
    n, gpus = problem.model.size, problem.type_of.size
    gpu, units = np.full(n, REJECTED), np.ones(n, dtype=np.int64)
    memory = problem.memory_mb.copy()
    free: list[list[float]] = [[100.0] for _ in range(gpus)]
    for i in np.argsort(problem.rates_rps * problem.slos_ms, kind="stable"):
        best: tuple[float, int, float] | None = None
        rate_rps = float(poisson.ppf(0.99, problem.rates_rps[i])) + 1.0
        for k in range(gpus):
            kind = int(problem.type_of[k])
            least = enough(problem, i, kind, rate_rps)
            if least is None or problem.model_memory_mb[i, kind] > memory[k]:
                continue
            wanted = float(problem.tables.percent[kind, least - 1])
            fitting = [space for space in free[k] if wanted <= space + 1e-9]
            if fitting and (best is None or min(fitting) < best[0]):
                best = (min(fitting), k, wanted)
        if best is None:
            continue
        space, k, wanted = best
        size = min(p for p in SIZES if wanted <= p + 1e-9) if space == 100.0 else space
        kind = int(problem.type_of[k])
        gpu[i] = k
        units[i] = int(np.flatnonzero(problem.tables.percent[kind] <= size + 1e-9)[-1]) + 1
        memory[k] -= problem.model_memory_mb[i, kind]
        free[k].remove(space)
        if space == 100.0 and size < 100.0:
            free[k].append(100.0 - size)
    return gpu, units

"""BDA and what fits by brute force in numpy: benches and tests hold the compiled ones to it."""

import numpy as np

from controlplane.papers.inss.problem import Problem


def capacities(problem: Problem, gpu: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of all 32 batches of placed models: capacity where (4b) and (4c) hold, else 0; whether (4b) fails.

    Shapes (E, n, 32).
    """
    s = problem.tables
    rows = np.arange(len(gpu))[:, None]
    kind, u = problem.type_of[rows, np.maximum(gpu, 0)], units - 1
    l2 = np.where(gpu >= 0, s.l2_percent[problem.model, kind, u], 0.0)
    together = (gpu[:, :, None] == gpu[:, None, :]) & (gpu >= 0)[:, :, None]
    busy = together.sum(axis=2)
    pressed = (together * l2[:, None, :]).sum(axis=2) - l2
    each = np.maximum(s.schedule[kind, 0] * busy + s.schedule[kind, 1], 0.0) * (busy > 1)
    alone, running = s.alone_ms[problem.model, kind, u], s.running_ms[problem.model, kind, u]
    with np.errstate(invalid="ignore"):
        slowed = (s.cache[problem.model, kind] * pressed)[..., None]
        t = alone + running * slowed + (each * s.kernels[problem.model, kind])[..., None]
        capacity = 1000.0 * np.arange(1, 33) / (s.cycle_ms[problem.model, kind, u] * t / alone)
    batch, gap = np.arange(1, 33), 1000.0 / problem.rates_rps[..., None]
    longest = np.zeros_like(t)
    for place in (np.ones_like(gap), problem.backlog[..., None] + 1.0):
        n = np.ceil(place / batch)
        longest = np.maximum(longest, np.maximum(t + (n - 1) * t, (n * batch - place) * gap) + t)
    late = ~(longest <= problem.slos_ms[..., None])
    holds = ~late & (capacity >= problem.rates_rps[..., None]) & (gpu >= 0)[..., None]
    return np.where(holds, capacity, 0.0), late


def room(problem: Problem, model: int, share: np.ndarray, memory_mb: np.ndarray) -> np.ndarray:
    """Which (GPU, units) the `model`-th model may still take beside what is taken: (K, U) or (E, K, U).

    `share` and `memory_mb` as `problem.taken` returns them; for stacked problems one row each.
    """
    needs = np.take_along_axis(problem.model_memory_mb[..., model, :], problem.type_of, axis=-1)
    space = memory_mb + needs <= problem.memory_mb
    times = problem.tables.alone_ms[problem.model[..., model, None], problem.type_of]
    known = np.isfinite(times[..., 0, 0])
    return (share[..., None] + problem.percent <= 100.0 + 1e-9) & (space & known)[..., None]

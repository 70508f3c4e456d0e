"""Local search over placements and shares, in compiled code. A step evaluates only the GPUs it changes."""

from __future__ import annotations

import math

import numpy as np

from controlplane.kernels import kernel
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.papers.inss.kernel import best_batch
from controlplane.papers.inss.problem import SLACK, Previous, Problem, Space

FIRST, LAST = 0, 1
"""Indices of a round's temperatures."""


@kernel
def _value(
    gpus: IntArray,
    gpu: IntArray,
    unit: IntArray,
    problem: Problem,
    worth: FloatArray,
    before: Previous,
    value: FloatArray,
) -> None:
    """Write what each model on these GPUs adds to the plan's value into `value` (n,).

    (1a) and (1b) hold already. `worth` (2, n): of its goodput, and of each request per second of capacity.
    """
    tables, model, slo = problem.tables, problem.model, problem.slos_ms
    for k in gpus:
        if k < 0:
            continue
        kind, pressed, busy = problem.type_of[k], 0.0, 0.0
        for i in range(gpu.size):
            if gpu[i] == k:
                pressed += tables.l2_percent[model[i], kind, unit[i] - 1]
                busy += 1.0
        for i in range(gpu.size):
            if gpu[i] != k:
                continue
            m, u, rate, backlog = model[i], unit[i] - 1, problem.rates_rps[i], problem.backlog[i]
            others = pressed - tables.l2_percent[m, kind, u]
            _, latency, capacity = best_batch(tables, m, kind, u, others, busy, rate, slo[i], backlog)
            value[i] = worth[0, i] + worth[1, i] * capacity if latency <= slo[i] else 0.0
            if before.gpu[i] >= 0 and (before.gpu[i] != k or before.units[i] != unit[i]):
                value[i] -= before.cost


@kernel
def _free_percent(k: int, but: int, gpu: IntArray, unit: IntArray, grid: FloatArray) -> float:
    """Return the share of GPU k that no model but `but` has; `grid`: what 1, 2, ... units are in percent."""
    left: float = 100.0
    for i in range(gpu.size):
        if gpu[i] == k and i != but:
            left -= grid[unit[i] - 1]
    return left


@kernel
def _most_units(k: int, but: int, gpu: IntArray, unit: IntArray, grid: FloatArray) -> int:
    """Return the largest share in what is free on GPU k, as units; 0 for none."""
    free_percent = _free_percent(k, but, gpu, unit, grid)
    units = 0
    while units < grid.size and grid[units] <= free_percent + SLACK:
        units += 1
    return units


@kernel
def _has_room(k: int, i: int, but: int, gpu: IntArray, space: Space) -> bool:
    """Return whether GPU k has a profile of model i, and memory for it without model `but`."""
    kind, needs_mb, left_mb = space.type_of[k], space.model_memory_mb, space.memory_mb[k]
    if not space.known[i, kind]:
        return False
    for j in range(gpu.size):
        if gpu[j] == k and j != but:
            left_mb -= needs_mb[j, kind]
    return bool(needs_mb[i, kind] <= left_mb)


@kernel
def _member(k: int, but: int, gpu: IntArray) -> int:
    """Draw one of the other models on a GPU; -1 for none."""
    found, count = -1, 0
    for i in range(gpu.size):
        if gpu[i] == k and i != but:
            count += 1
            if np.random.randint(count) == 0:
                found = i
    return found


@kernel
def _change_places(i: int, j: int, gpu: IntArray, unit: IntArray, space: Space, touched: IntArray) -> bool:
    """Swap model i, which has a GPU, with model j, on another or rejected; with their units or the rest."""
    here, there, grids = gpu[i], gpu[j], space.percent
    if not _has_room(here, j, i, gpu, space):
        return False
    most_here = _most_units(here, i, gpu, unit, grids[space.type_of[here]])
    touched[0], touched[1] = here, there
    if there < 0:
        gpu[i], gpu[j] = there, here
        unit[j] = most_here
        return True
    if not _has_room(there, i, j, gpu, space):
        return False
    most_there = _most_units(there, j, gpu, unit, grids[space.type_of[there]])
    gpu[i], gpu[j] = there, here
    if np.random.random() < 0.5:
        unit[i], unit[j] = min(unit[i], most_there), min(unit[j], most_here)
    else:
        unit[i], unit[j] = most_there, most_here
    return True


@kernel
def _step(gpu: IntArray, unit: IntArray, space: Space, touched: IntArray) -> bool:
    """Change the assignment at random within (1a) and (1b), or return False where this draw cannot.

    One of: another share; units from a neighbour; another GPU, in its room or part of a neighbour's share;
    two models change places, one of which may be rejected; one leaves and a neighbour grows.
    """
    n, grids, type_of = gpu.size, space.percent, space.type_of
    i = np.random.randint(n)
    here = gpu[i]
    touched[0], touched[1] = here, -1
    kind = np.random.random()
    if here >= 0 and kind < 0.25:
        most = _most_units(here, i, gpu, unit, grids[type_of[here]])
        unit[i] = most if np.random.random() < 0.3 else 1 + np.random.randint(most)
        return True
    if here >= 0 and kind < 0.45:
        j = _member(here, i, gpu)
        if j < 0 or unit[j] < 2:
            return False
        unit[j] -= 1 + np.random.randint(min(unit[j] - 1, 3))
        unit[i] = _most_units(here, i, gpu, unit, grids[type_of[here]])
        return True
    if kind < 0.65:
        j = np.random.randint(n)
        if gpu[j] == here:
            return False
        if here < 0:
            i, j = j, i
        return _change_places(i, j, gpu, unit, space, touched)
    if here >= 0 and kind < 0.68:
        gpu[i] = -1
        j = _member(here, i, gpu)
        if j >= 0:
            unit[j] = _most_units(here, j, gpu, unit, grids[type_of[here]])
        return True
    there = np.random.randint(type_of.size)
    if there == here or not _has_room(there, i, -1, gpu, space):
        return False
    grid = grids[type_of[there]]
    most = _most_units(there, -1, gpu, unit, grid)
    if most == 0 or np.random.random() < 0.5:
        j = _member(there, i, gpu)
        if j < 0 or unit[j] < 2:
            return False
        unit[j] = 1 + np.random.randint(unit[j] - 1)
        most = _most_units(there, -1, gpu, unit, grid)
        if most == 0:
            return False
    gpu[i] = there
    unit[i] = most if np.random.random() < 0.5 else 1 + np.random.randint(most)
    touched[1] = there
    return True


@kernel
def improve(
    seed: int,
    steps: int,
    temperature: FloatArray,
    gpu: IntArray,
    unit: IntArray,
    problem: Problem,
    space: Space,
    worth: FloatArray,
    before: Previous,
) -> float:
    """Run one round of annealing from `gpu`, `unit` (n,), which become the best found; return its value.

    Temperatures fall geometrically from `temperature[FIRST]` to `temperature[LAST]`. `before`: what runs now.
    """
    np.random.seed(seed)
    n = gpu.size
    value = np.zeros(n)
    _value(np.arange(problem.type_of.size), gpu, unit, problem, worth, before, value)
    for i in range(n):
        if gpu[i] < 0 and before.gpu[i] >= 0:
            value[i] = -before.cost
    best: float = value.sum()
    now = best
    best_gpu, best_unit = gpu.copy(), unit.copy()
    old_gpu, old_unit, old_value = gpu.copy(), unit.copy(), value.copy()
    touched = np.empty(2, dtype=np.int64)
    cooling = (temperature[LAST] / temperature[FIRST]) ** (1.0 / max(steps, 1))
    heat = temperature[FIRST]
    for _ in range(steps):
        heat *= cooling
        if not _step(gpu, unit, space, touched):
            gpu[:], unit[:] = old_gpu, old_unit
            continue
        _value(touched, gpu, unit, problem, worth, before, value)
        for i in range(n):
            if gpu[i] < 0:
                value[i] = -before.cost if before.gpu[i] >= 0 else 0.0
        total = value.sum()
        if total < now and np.random.random() >= math.exp((total - now) / heat):
            gpu[:], unit[:], value[:] = old_gpu, old_unit, old_value
            continue
        now = total
        old_gpu[:], old_unit[:], old_value[:] = gpu, unit, value
        if now > best + 1e-12:
            best = now
            best_gpu[:], best_unit[:] = gpu, unit
    gpu[:], unit[:] = best_gpu, best_unit
    return best


@kernel
def construct(
    order: IntArray, problem: Problem, space: Space, before: Previous, gpu: IntArray, unit: IntArray
) -> None:
    """Place models one by one, each with the least share that holds, where all others keep their SLOs.

    `gpu` holds -1 everywhere before. Among GPUs the fullest that takes it; without one it stays rejected.
    `before` is a plan in which nothing runs.
    """
    n = gpu.size
    worth, value = np.ones((2, n)), np.zeros(n)
    worth[1] = 0.0
    gpus = np.empty(1, dtype=np.int64)
    held = 0.0
    for i in order:
        best_gpu, best_unit, best_left = -1, 1, math.inf
        for k in range(problem.type_of.size):
            if not _has_room(k, i, -1, gpu, space):
                continue
            grid = space.percent[space.type_of[k]]
            free, most = _free_percent(k, -1, gpu, unit, grid), _most_units(k, -1, gpu, unit, grid)
            gpus[0] = k
            gpu[i] = k
            for u in range(1, most + 1):
                unit[i] = u
                _value(gpus, gpu, unit, problem, worth, before, value)
                if value.sum() > held + 0.5:
                    left = free - grid[u - 1]
                    if left < best_left:
                        best_gpu, best_unit, best_left = k, u, left
                    break
            gpu[i] = -1
            value[i] = 0.0
            _value(gpus, gpu, unit, problem, worth, before, value)
        gpu[i], unit[i] = best_gpu, best_unit
        if best_gpu >= 0:
            gpus[0] = best_gpu
            _value(gpus, gpu, unit, problem, worth, before, value)
            held = value.sum()

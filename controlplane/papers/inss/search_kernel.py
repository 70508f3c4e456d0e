"""Local search over placements and shares, in compiled code. A step evaluates only the GPUs it changes."""

from __future__ import annotations

import math

import numpy as np

from controlplane.kernels import kernel
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.papers.inss.kernel import Asked, Tables, settled
from controlplane.papers.inss.problem import SLACK

Given = tuple[Asked, FloatArray, FloatArray, FloatArray, Tables]
"""A problem: its models, the GPUs' memory and what models need of it, the shares in percent, the surfaces."""
FIRST, LAST = 0, 1
"""Indices of a round's temperatures."""


@kernel
def _ask(
    gpus: IntArray,
    gpu: IntArray,
    unit: IntArray,
    problem: Asked,
    surfaces: Tables,
    worth: FloatArray,
    before: tuple[IntArray, IntArray, FloatArray],
    told: FloatArray,
) -> None:
    """Write the value that each model on these GPUs adds into `told` (n,); (1a) and (1b) hold already.

    `worth` (2, n): of its goodput, and of each request per second of capacity; `before`: see `improve`.
    """
    model, rate, slo, backlog, type_of = problem
    l2 = surfaces[3]
    gpu_before, unit_before, cost = before
    for k in gpus:
        if k < 0:
            continue
        kind, pressed, busy = type_of[k], 0.0, 0.0
        for i in range(gpu.size):
            if gpu[i] == k:
                pressed += l2[model[i], kind, unit[i] - 1]
                busy += 1.0
        for i in range(gpu.size):
            if gpu[i] != k:
                continue
            m, u = model[i], unit[i] - 1
            others = pressed - l2[m, kind, u]
            _, latency, capacity = settled(surfaces, m, kind, u, others, busy, rate[i], slo[i], backlog[i])
            told[i] = worth[0, i] + worth[1, i] * capacity if latency <= slo[i] else 0.0
            if gpu_before[i] >= 0 and (gpu_before[i] != k or unit_before[i] != unit[i]):
                told[i] -= cost[i]


@kernel
def _most_units(percent: FloatArray, free_percent: float) -> int:
    """Return the largest share of a grid that fits, as units; 0 for none."""
    units = 0
    while units < percent.size and percent[units] <= free_percent + SLACK:
        units += 1
    return units


@kernel
def _free_percent(k: int, gpu: IntArray, unit: IntArray, percent: FloatArray) -> float:
    left: float = 100.0
    for i in range(gpu.size):
        if gpu[i] == k:
            left -= percent[unit[i] - 1]
    return left


@kernel
def _free_memory(k: int, gpu: IntArray, type_of: IntArray, memory: FloatArray, needs: FloatArray) -> float:
    left: float = memory[k]
    for i in range(gpu.size):
        if gpu[i] == k:
            left -= needs[i, type_of[k]]
    return left


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
def _change_places(
    i: int,
    j: int,
    gpu: IntArray,
    unit: IntArray,
    type_of: IntArray,
    percent: FloatArray,
    memory: FloatArray,
    needs: FloatArray,
    known: FloatArray,
    touched: IntArray,
) -> bool:
    """Swap model i, which has a GPU, with model j, on another or rejected; with their units or the rest."""
    here, there = gpu[i], gpu[j]
    a = type_of[here]
    if known[j, a] == np.inf:
        return False
    if needs[j, a] - needs[i, a] > _free_memory(here, gpu, type_of, memory, needs):
        return False
    share_here = _free_percent(here, gpu, unit, percent[a]) + percent[a, unit[i] - 1]
    most_here = _most_units(percent[a], share_here)
    touched[0], touched[1] = here, there
    if there < 0:
        gpu[i], gpu[j] = there, here
        unit[j] = most_here
        return True
    b = type_of[there]
    if known[i, b] == np.inf:
        return False
    if needs[i, b] - needs[j, b] > _free_memory(there, gpu, type_of, memory, needs):
        return False
    share_there = _free_percent(there, gpu, unit, percent[b]) + percent[b, unit[j] - 1]
    most_there = _most_units(percent[b], share_there)
    gpu[i], gpu[j] = there, here
    if np.random.random() < 0.5:
        unit[i], unit[j] = min(unit[i], most_there), min(unit[j], most_here)
    else:
        unit[i], unit[j] = most_there, most_here
    return True


@kernel
def _step(
    gpu: IntArray,
    unit: IntArray,
    type_of: IntArray,
    percent: FloatArray,
    memory: FloatArray,
    needs: FloatArray,
    known: FloatArray,
    touched: IntArray,
) -> bool:
    """Change the assignment at random within (1a) and (1b), or return False where this draw cannot.

    One of: another share; units from a neighbour; another GPU, in its room or part of a neighbour's share;
    two models change places, one of which may be rejected; one leaves and a neighbour grows.
    """
    n = gpu.size
    i = np.random.randint(n)
    here = gpu[i]
    touched[0], touched[1] = here, -1
    kind = np.random.random()
    if here >= 0 and kind < 0.25:
        grid = percent[type_of[here]]
        most = _most_units(grid, _free_percent(here, gpu, unit, grid) + grid[unit[i] - 1])
        unit[i] = most if np.random.random() < 0.3 else 1 + np.random.randint(most)
        return True
    if here >= 0 and kind < 0.45:
        j = _member(here, i, gpu)
        if j < 0 or unit[j] < 2:
            return False
        grid = percent[type_of[here]]
        unit[j] -= 1 + np.random.randint(min(unit[j] - 1, 3))
        room = _free_percent(here, gpu, unit, grid) + grid[unit[i] - 1]
        unit[i] = _most_units(grid, room)
        return True
    if kind < 0.65:
        j = np.random.randint(n)
        if gpu[j] == here:
            return False
        if here < 0:
            i, j, here = j, i, gpu[j]
        return _change_places(i, j, gpu, unit, type_of, percent, memory, needs, known, touched)
    if here >= 0 and kind < 0.68:
        gpu[i] = -1
        j = _member(here, i, gpu)
        if j >= 0:
            grid = percent[type_of[here]]
            unit[j] = _most_units(grid, _free_percent(here, gpu, unit, grid) + grid[unit[j] - 1])
        return True
    there = np.random.randint(type_of.size)
    if there == here or known[i, type_of[there]] == np.inf:
        return False
    if needs[i, type_of[there]] > _free_memory(there, gpu, type_of, memory, needs):
        return False
    grid = percent[type_of[there]]
    most = _most_units(grid, _free_percent(there, gpu, unit, grid))
    if most == 0 or np.random.random() < 0.5:
        j = _member(there, i, gpu)
        if j < 0:
            return False
        if unit[j] < 2:
            return False
        unit[j] = 1 + np.random.randint(unit[j] - 1)
        most = _most_units(grid, _free_percent(there, gpu, unit, grid))
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
    given: Given,
    worth: FloatArray,
    before: tuple[IntArray, IntArray, FloatArray],
) -> float:
    """Run one round of annealing from `gpu`, `unit` (n,), which become the best found; return its value.

    Temperatures fall geometrically from `temperature[FIRST]` to `temperature[LAST]`. `before`: what runs now
    and what moving each model costs.
    """
    np.random.seed(seed)
    problem, memory, needs, percent, surfaces = given
    n, model, type_of = gpu.size, problem[0], problem[4]
    known = np.empty((n, percent.shape[0]))
    for i in range(n):
        for kind in range(percent.shape[0]):
            known[i, kind] = surfaces[0][model[i], kind, 0, 0]
    told = np.zeros(n)
    _ask(np.arange(type_of.size), gpu, unit, problem, surfaces, worth, before, told)
    for i in range(n):
        if gpu[i] < 0 and before[0][i] >= 0:
            told[i] = -before[2][i]
    best: float = told.sum()
    now = best
    best_gpu, best_unit = gpu.copy(), unit.copy()
    old_gpu, old_unit, old_told = gpu.copy(), unit.copy(), told.copy()
    touched = np.empty(2, dtype=np.int64)
    cooling = (temperature[LAST] / temperature[FIRST]) ** (1.0 / max(steps, 1))
    heat = temperature[FIRST]
    for _ in range(steps):
        heat *= cooling
        if not _step(gpu, unit, type_of, percent, memory, needs, known, touched):
            gpu[:], unit[:] = old_gpu, old_unit
            continue
        _ask(touched, gpu, unit, problem, surfaces, worth, before, told)
        for i in range(n):
            if gpu[i] < 0:
                told[i] = -before[2][i] if before[0][i] >= 0 else 0.0
        value = told.sum()
        if value < now and np.random.random() >= math.exp((value - now) / heat):
            gpu[:], unit[:], told[:] = old_gpu, old_unit, old_told
            continue
        now = value
        old_gpu[:], old_unit[:], old_told[:] = gpu, unit, told
        if now > best + 1e-12:
            best = now
            best_gpu[:], best_unit[:] = gpu, unit
    gpu[:], unit[:] = best_gpu, best_unit
    return best


@kernel
def construct(order: IntArray, given: Given, gpu: IntArray, unit: IntArray) -> None:
    """Place models one by one, each with the least share that holds, where all others keep their SLOs.

    `gpu` holds -1 everywhere before. Among GPUs the fullest that takes it; without one it stays rejected.
    """
    problem, memory, needs, percent, surfaces = given
    model, type_of, n = problem[0], problem[4], gpu.size
    worth, told = np.ones((2, n)), np.zeros(n)
    worth[1] = 0.0
    before = (np.full(n, -1), np.ones(n, dtype=np.int64), np.zeros(n))
    asked = np.empty(1, dtype=np.int64)
    held = 0.0
    for i in order:
        best_gpu, best_unit, best_left = -1, 1, math.inf
        for k in range(type_of.size):
            kind = type_of[k]
            if surfaces[0][model[i], kind, 0, 0] == math.inf:
                continue
            if needs[i, kind] > _free_memory(k, gpu, type_of, memory, needs):
                continue
            free = _free_percent(k, gpu, unit, percent[kind])
            asked[0] = k
            gpu[i] = k
            for u in range(1, _most_units(percent[kind], free) + 1):
                unit[i] = u
                _ask(asked, gpu, unit, problem, surfaces, worth, before, told)
                if told.sum() > held + 0.5:
                    if free - percent[kind, u - 1] < best_left:
                        best_gpu, best_unit, best_left = k, u, free - percent[kind, u - 1]
                    break
            gpu[i] = -1
            told[i] = 0.0
            _ask(asked, gpu, unit, problem, surfaces, worth, before, told)
        gpu[i], unit[i] = best_gpu, best_unit
        if best_gpu >= 0:
            asked[0] = best_gpu
            _ask(asked, gpu, unit, problem, surfaces, worth, before, told)
            held = told.sum()

"""The policy's observations of E incomplete plans, in compiled code; `features` explains the columns.

Every action is evaluated exactly: `best_batch` of the model placed there, and of those it would press on.
"""

from __future__ import annotations

import math

from controlplane.kernels import kernel
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.papers.inss.features import CLIP, FloatArray32
from controlplane.papers.inss.kernel import Asked, Tables, holds, settled

Board = tuple[FloatArray, FloatArray, FloatArray, IntArray, IntArray]
"""Of each GPU: percent, MB and L2 pressure taken, models there (E, K), and which (E, K, most)."""
Plan = tuple[IntArray, IntArray, IntArray, BoolArray]
"""Of each model: GPU, units, batch and whether its SLO holds so far (E, n)."""
SLACK = 1e-9


@kernel
def needs(problem: Asked, percent: FloatArray, surfaces: Tables, need: FloatArray) -> None:
    """Fill `need` (E, n, T): the least share, of 1, at which a model alone holds; 1.5 where none does."""
    model, rate_rps, slo_ms, backlog, _ = problem
    for e in range(model.shape[0]):
        for i in range(model.shape[1]):
            m = model[e, i]
            for t in range(percent.shape[0]):
                need[e, i, t] = 1.5
                low, high = 0, percent.shape[1] - 1
                while high >= 0 and percent[t, high] == math.inf:
                    high -= 1
                # More units hardly ever hurt a model alone, so bisection is right: 5 evaluations, not 17.
                while low <= high:
                    u = (low + high) // 2
                    _, latency, _ = settled(
                        surfaces, m, t, u, 0.0, 1.0, rate_rps[e, i], slo_ms[e, i], backlog[e, i]
                    )
                    if latency <= slo_ms[e, i]:
                        need[e, i, t] = percent[t, u] / 100.0
                        high = u - 1
                    else:
                        low = u + 1


@kernel
def lost_rps(
    e: int,
    k: int,
    added: float,
    problem: Asked,
    surfaces: Tables,
    board: Board,
    plan: Plan,
) -> float:
    """Return the rate on GPU k of plan e whose SLO breaks with one more model of L2 utilisation `added`."""
    model, rate_rps, slo_ms, backlog, type_of = problem
    _, _, pressed, count, members = board
    _, unit, batch, held = plan
    t, lost = type_of[e, k], 0.0
    for c in range(count[e, k]):
        j = members[e, k, c]
        if not held[e, j]:
            continue
        w, v = model[e, j], unit[e, j] - 1
        others = max(pressed[e, k] - surfaces[3][w, t, v], 0.0) + added
        busy = count[e, k] + 1.0
        if not holds(
            surfaces, w, t, v, others, busy, rate_rps[e, j], slo_ms[e, j], backlog[e, j], batch[e, j]
        ):
            lost += rate_rps[e, j]
    return lost


@kernel
def observe(
    at: IntArray,
    problem: Asked,
    capacity_mib: FloatArray,
    memory_mb: FloatArray,
    percent: FloatArray,
    surfaces: Tables,
    peak_rps: FloatArray,
    before: tuple[IntArray, IntArray],
    board: Board,
    plan: Plan,
    actions: FloatArray32,
    valid: BoolArray,
) -> None:
    """Fill `actions` and `valid` (zeros before) for model at[e] of each plan e, but the step's features."""
    model, rate_rps, slo_ms, backlog, type_of = problem
    before_gpu, before_units = before
    share, memory, pressed, count, _ = board
    width = percent.shape[1]
    for e in range(model.shape[0]):
        i = at[e]
        m, slo, mean_rate = model[e, i], slo_ms[e, i], rate_rps[e].mean()
        valid[e, 0] = True
        for k in range(type_of.shape[1]):
            t = type_of[e, k]
            if memory[e, k] + memory_mb[e, i, t] > capacity_mib[e, k] or surfaces[0][m, t, 0, 0] == math.inf:
                continue
            for u in range(width):
                if share[e, k] + percent[t, u] > 100.0 + SLACK:
                    break
                _, latency, capacity = settled(
                    surfaces, m, t, u, pressed[e, k], count[e, k] + 1.0, rate_rps[e, i], slo, backlog[e, i]
                )
                # Later neighbours only slow it: where it does not hold now, rejecting it is as good.
                if latency > slo:
                    continue
                action, added = 1 + k * width + u, surfaces[3][m, t, u]
                lost = lost_rps(e, k, added, problem, surfaces, board, plan)
                valid[e, action] = True
                look = actions[e, action]
                look[0] = max(min((rate_rps[e, i] - lost) / mean_rate, CLIP), -CLIP)
                look[1] = percent[t, u] / 100.0
                look[2] = 1.0 - (share[e, k] + percent[t, u]) / 100.0
                look[3] = 1.0 - latency / slo
                look[4] = min(capacity / peak_rps[m], CLIP) / CLIP
                look[5] = (pressed[e, k] + added) / 100.0
                if before_gpu[e, i] == k:
                    look[6] = 1.0 if before_units[e, i] == u + 1 else 0.5


@kernel
def place(
    at: IntArray,
    action: IntArray,
    problem: Asked,
    memory_mb: FloatArray,
    percent: FloatArray,
    surfaces: Tables,
    board: Board,
    plan: Plan,
) -> None:
    """Put model at[e] on the GPU and units of action[e], or reject it; batches of all there follow."""
    model, rate_rps, slo_ms, backlog, type_of = problem
    l2_percent = surfaces[3]
    share, memory, pressed, count, members = board
    gpu, unit, batch, held = plan
    width = percent.shape[1]
    for e in range(model.shape[0]):
        if action[e] == 0:
            continue
        i, k, u = at[e], (action[e] - 1) // width, (action[e] - 1) % width
        t = type_of[e, k]
        gpu[e, i], unit[e, i] = k, u + 1
        share[e, k] += percent[t, u]
        memory[e, k] += memory_mb[e, i, t]
        pressed[e, k] += l2_percent[model[e, i], t, u]
        members[e, k, count[e, k]] = i
        count[e, k] += 1
        for c in range(count[e, k]):
            j = members[e, k, c]
            w, v = model[e, j], unit[e, j] - 1
            others = pressed[e, k] - l2_percent[w, t, v]
            batch[e, j], latency, _ = settled(
                surfaces,
                w,
                t,
                v,
                others,
                float(count[e, k]),
                rate_rps[e, j],
                slo_ms[e, j],
                backlog[e, j],
            )
            held[e, j] = latency <= slo_ms[e, j]

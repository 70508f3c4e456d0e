"""The policy's observations of E incomplete plans, in compiled code; `features` explains the columns.

Every action is looked at exactly: `best_batch` of the model placed there, and of those it would press on.
"""

from __future__ import annotations

import math

from controlplane.kernels import kernel
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.papers.inss.features import FloatArray32
from controlplane.papers.inss.kernel import Asked, Tables, holds, settled

Board = tuple[FloatArray, FloatArray, FloatArray, IntArray, IntArray]
"""Of each GPU: percent, MB and L2 pressure taken, models there (E, K), and which (E, K, most)."""
Plan = tuple[IntArray, IntArray, IntArray, BoolArray]
"""Of each model: GPU, units, batch and whether its SLO holds so far (E, n)."""
CLIP = 4.0
SLACK = 1e-9
LATER_L2_PERCENT = 25.0
"""Assumed L2 utilisation of later neighbours, for the feature that includes one more."""


@kernel
def _middle(percent: FloatArray) -> int:
    """Return the unit that is about half of a GPU."""
    units = 0
    while units < percent.size and percent[units] < math.inf:
        units += 1
    return units // 2


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
def observe(
    at: IntArray,
    remaining: FloatArray,
    problem: Asked,
    capacity_mib: FloatArray,
    memory_mb: FloatArray,
    percent: FloatArray,
    surfaces: Tables,
    peak_rps: FloatArray,
    need: FloatArray,
    before: tuple[IntArray, IntArray],
    board: Board,
    plan: Plan,
    seen: tuple[FloatArray32, FloatArray32, FloatArray32, BoolArray],
) -> None:
    """Fill `seen` for model at[e] of each plan e: features of the model, GPUs and actions, and the mask.

    `remaining` (E, 5): models, need, largest need, rate and MB of what comes after. Else see `Episodes`.
    """
    model, rate_rps, slo_ms, backlog, type_of = problem
    alone_ms, running_ms, l2_percent, cache = surfaces[0], surfaces[2], surfaces[3], surfaces[4]
    before_gpu, before_units = before
    share, memory, pressed, count, members = board
    _, unit, batch, held = plan
    of_model, of_gpu, of_action, valid = seen
    gpus, width = type_of.shape[1], percent.shape[1]
    for e in range(model.shape[0]):
        i = at[e]
        m, rate, slo, queued = model[e, i], rate_rps[e, i], slo_ms[e, i], backlog[e, i]
        mean_rate = rate_rps[e].mean()
        worth = rate / mean_rate
        free, least, most_free = 0.0, 1.5, 0.0
        for k in range(gpus):
            t = type_of[e, k]
            left = max(1.0 - share[e, k] / 100.0, 0.0)
            free += left
            most_free = max(most_free, left)
            least = min(least, need[e, i, t])
            fits = memory[e, k] + memory_mb[e, i, t] <= capacity_mib[e, k]
            fits = fits and alone_ms[m, t, 0, 0] < math.inf
            same = -1
            if count[e, k] == 0 and before_gpu[e, i] != k:
                for j in range(k):
                    if (
                        count[e, j] == 0
                        and type_of[e, j] == t
                        and capacity_mib[e, j] == capacity_mib[e, k]
                        and before_gpu[e, i] != j
                    ):
                        same = j
                        break
            if same >= 0:
                of_gpu[e, k] = of_gpu[e, same]
                of_action[e, k] = of_action[e, same]
                valid[e, k * width : (k + 1) * width] = valid[e, same * width : (same + 1) * width]
                continue
            busy = count[e, k] + 1.0
            held_rate, present_rate = 0.0, 0.0
            for c in range(count[e, k]):
                j = members[e, k, c]
                present_rate += rate_rps[e, j]
                if held[e, j]:
                    held_rate += rate_rps[e, j]
            first, best = 1.5, 0.0
            for u in range(width):
                look = of_action[e, k, u]
                look[:] = 0.0
                valid[e, k * width + u] = False
                if not fits or share[e, k] + percent[t, u] > 100.0 + SLACK:
                    continue
                _, latency, capacity = settled(surfaces, m, t, u, pressed[e, k], busy, rate, slo, queued)
                # Later neighbours only slow it: where it does not hold now, rejecting it is as good.
                if latency > slo:
                    continue
                valid[e, k * width + u] = True
                lost = 0.0
                added = l2_percent[m, t, u]
                for c in range(count[e, k]):
                    j = members[e, k, c]
                    if not held[e, j]:
                        continue
                    w, v = model[e, j], unit[e, j] - 1
                    others = max(pressed[e, k] - l2_percent[w, t, v], 0.0) + added
                    if not holds(
                        surfaces,
                        w,
                        t,
                        v,
                        others,
                        busy,
                        rate_rps[e, j],
                        slo_ms[e, j],
                        backlog[e, j],
                        batch[e, j],
                    ):
                        lost += rate_rps[e, j]
                lost /= mean_rate
                net = worth - lost
                part = percent[t, u] / 100.0
                if first > 1.0:
                    first = part
                best = max(best, net)
                beside = pressed[e, k] + LATER_L2_PERCENT
                cautious = holds(surfaces, m, t, u, beside, busy + 1.0, rate, slo, queued, 1)
                look[0] = max(min(net, CLIP), -CLIP)
                look[1] = min(lost, CLIP)
                look[2] = part
                look[3] = left - part
                look[4] = part - first
                look[5] = 1.0 - latency / slo
                look[6] = min(capacity / rate, CLIP) / CLIP
                look[7] = min(capacity / peak_rps[m], CLIP) / CLIP
                look[8] = added / 50.0
                look[9] = 1.0 if cautious else 0.0
                if before_gpu[e, i] == k:
                    look[10] = 1.0
                    look[11] = 1.0 if before_units[e, i] == u + 1 else 0.0
            see = of_gpu[e, k]
            see[0] = left
            see[1] = percent[t, 0] / 10.0
            see[2] = 1.0 - (memory[e, k] + memory_mb[e, i, t]) / capacity_mib[e, k]
            see[3] = count[e, k] / CLIP
            see[4] = pressed[e, k] / 100.0
            see[5] = min(held_rate / mean_rate, CLIP)
            see[6] = held_rate / present_rate if count[e, k] > 0 else 1.0
            see[7] = min(best, CLIP)
            see[8] = first
            see[9] = left - first
            see[10] = 1.0 if fits else 0.0
        valid[e, gpus * width] = True
        see = of_model[e]
        see[:] = 0.0
        see[0] = math.log(worth)
        see[1] = min(worth, CLIP)
        see[2] = least
        # Means over the GPUs that it has a profile for.
        known = 0
        for k in range(gpus):
            t = type_of[e, k]
            if alone_ms[m, t, 0, 0] < math.inf:
                half, known = _middle(percent[t]), known + 1
                see[3] += memory_mb[e, i, t] / capacity_mib[e, k]
                see[4] += 50.0 * cache[m, t] * running_ms[m, t, half, 0] / alone_ms[m, t, half, 0]
                see[5] += min(alone_ms[m, t, half, 0] / slo, 1.0)
                see[6] += l2_percent[m, t, half] / 50.0
        see[3:7] /= max(known, 1)
        see[7] = min(queued / rate, CLIP)
        # What is still to come, (count, need, largest need, rate, MB), against what is still free.
        see[8] = min(remaining[e, 0] / gpus, CLIP) / CLIP
        see[9] = min((least + remaining[e, 1]) / max(free, 0.01), CLIP)
        see[10] = remaining[e, 2]
        see[11] = min(remaining[e, 3] / mean_rate / max(remaining[e, 1], 0.01), 10.0) / 10.0
        see[12] = min(worth / least, 10.0) / 10.0
        see[13] = min(remaining[e, 4] / (capacity_mib[e].sum() - memory[e].sum() + 1.0), CLIP)
        see[14] = free / gpus
        see[15] = most_free - least


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
    gpus, width = type_of.shape[1], percent.shape[1]
    for e in range(model.shape[0]):
        if action[e] == gpus * width:
            continue
        i, k, u = at[e], action[e] // width, action[e] % width
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

"""Look-ups of solo times (`tables`) and of slowdowns (`interference`).

Kernels, because planners ask for a few GPUs thousands of times: in numpy a dozen GPUs take a hundred calls
and hardly any arithmetic.
"""

from __future__ import annotations

import math

from controlplane.kernels import kernel
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray


@kernel
def knot_below(knots: FloatArray, value: float) -> int:
    """Return the last knot at or below `value`, at most the last but one; 0 if all are above."""
    low, high = 0, knots.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if knots[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@kernel
def times_alone(
    model: IntArray,
    batch: FloatArray,
    percent: FloatArray,
    log_knots: FloatArray,
    largest: IntArray,
    values: FloatArray,
    lowest_percent: float,
    out: FloatArray,
) -> None:
    """Write execution time, cycle time and deviation of each (model, batch, percent) to `out` (3, n).

    `log_knots`, `largest` and `values` are those of `tables.Tables`.
    """
    for n in range(model.size):
        m = model[n]
        most = largest[m]
        # Outside the table time is proportional to 1 / share (below), to the batch (above).
        beyond = max(batch[n] / most, 1.0) * max(lowest_percent / percent[n], 1.0)
        inside = min(batch[n], float(most))
        row = min(int(inside), max(most - 1, 1))
        part = inside - row
        at = max(math.log(percent[n]), log_knots[0])
        knot = knot_below(log_knots, at)
        x = (at - log_knots[knot]) / (log_knots[knot + 1] - log_knots[knot])
        above = min(row, most - 1)
        small, large = values[m, row - 1], values[m, above]
        for q in range(2):
            low = math.exp((1.0 - x) * small[knot, q] + x * small[knot + 1, q])
            high = math.exp((1.0 - x) * large[knot, q] + x * large[knot + 1, q])
            out[q, n] = beyond * (low + part * (high - low))
        low = (1.0 - x) * small[knot, 2] + x * small[knot + 1, 2]
        high = (1.0 - x) * large[knot, 2] + x * large[knot + 1, 2]
        out[2, n] = (1.0 - part) * low + part * high


@kernel
def cell_of(knots: FloatArray, value: float) -> tuple[int, float]:
    """Return the cell of `value`, or the nearest, and the position in it: 0 to 1 from knot to knot."""
    inside = min(max(value, knots[0]), knots[knots.size - 1])
    index = knot_below(knots, inside)
    return index, (inside - knots[index]) / (knots[index + 1] - knots[index])


@kernel
def slowdowns(
    model: IntArray,
    batch: FloatArray,
    percent: FloatArray,
    mask: BoolArray,
    alone_ms: FloatArray,
    log_batch: FloatArray,
    knots: FloatArray,
    table: FloatArray,
    delay_ms: FloatArray,
    item_ms: FloatArray,
    excess: FloatArray,
    further_ms: FloatArray,
    peak: FloatArray,
    seen_batch: BoolArray,
    low: FloatArray,
    high: FloatArray,
    beside: BoolArray,
    cells: IntArray,
    parts: FloatArray,
    new: BoolArray,
    out: FloatArray,
) -> None:
    """Write slowdown, its deviation and the part by new neighbours of every slot to `out` (3, GPUs, slots).

    `out` is 0 before. A neighbour is new if the pair, its batch size or share, or the slot's, is not `known`.
    The first five arrays are (GPUs, slots); the others are those of `interference.Interference` and of its
    `known`. Scratch: `cells` and `parts`, (2, slots), and `new`, (slots,).
    """
    gpus, width = mask.shape
    last = seen_batch.shape[1] - 1
    for g in range(gpus):
        count, load = 0, 0.0
        for j in range(width):
            if mask[g, j]:
                count += 1
                load += batch[g, j] / alone_ms[g, j] / peak[model[g, j]]
                cells[0, j], parts[0, j] = cell_of(log_batch, math.log(batch[g, j]))
                cells[1, j], parts[1, j] = cell_of(knots, percent[g, j])
                n = model[g, j]
                inside = low[n] <= percent[g, j] and percent[g, j] <= high[n]
                new[j] = not (inside and seen_batch[n, min(int(batch[g, j]), last)])
        if count < 2:
            continue
        beyond = max(load - 1.0, 0.0)
        for j in range(width):
            if not mask[g, j]:
                continue
            m, i, x = model[g, j], cells[0, j], parts[0, j]
            total, deviation, unknown = 0.0, 0.0, 0.0
            for other in range(width):
                if other == j or not mask[g, other]:
                    continue
                n = model[g, other]
                a, y = cells[0, other], parts[0, other]
                s, z = cells[1, other], parts[1, other]
                effect, spread = 0.0, 0.0
                for du in range(2):
                    for dv in range(2):
                        weight = (x if du else 1.0 - x) * (y if dv else 1.0 - y)
                        corner = table[m, n, i + du, a + dv]
                        effect += weight * ((1.0 - z) * corner[s, 0] + z * corner[s + 1, 0])
                        spread += weight * ((1.0 - z) * corner[s, 1] + z * corner[s + 1, 1])
                # No neighbour makes a model faster: with one more, each term of the sum stays or grows.
                effect = max(effect + (delay_ms[m, n] + item_ms[m, n] * batch[g, j]) / alone_ms[g, j], 0.0)
                total += effect
                if new[j] or new[other] or not beside[m, n]:
                    unknown += effect
                # Deviations of one model's neighbours have a common cause: they add up.
                deviation += spread
            total += beyond * excess[m] + (count - 2) * further_ms[m] / alone_ms[g, j]
            out[0, g, j], out[1, g, j], out[2, g, j] = total, deviation, unknown

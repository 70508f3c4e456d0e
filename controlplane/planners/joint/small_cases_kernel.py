"""Sizes packed best fit decreasing, thousands of combinations at once; compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from controlplane.latency.protocol import FloatArray, IntArray

FULL = 100.0 + 1e-6


@njit(cache=True)
def _pack(
    ways: IntArray,
    size: FloatArray,
    home: IntArray,
    falling: IntArray,
    room: FloatArray,
    kind: IntArray,
    gpu: IntArray,
) -> tuple[int, int]:
    """The partitions of these ways and the GPUs they take.

    Fills in their order, as way times slots plus slot, and each one's GPU; of each GPU the room and the type.
    """
    items, slots = 0, size.shape[1]
    for w in ways:
        for j in range(slots):
            if size[w, j] <= 0.0:
                break
            at = items
            while at > 0 and size[falling[at - 1] // slots, falling[at - 1] % slots] < size[w, j]:
                falling[at] = falling[at - 1]
                at -= 1
            falling[at] = w * slots + j
            items += 1
    gpus = 0
    for i in range(items):
        w, j = falling[i] // slots, falling[i] % slots
        best = -1
        for g in range(gpus):
            if kind[g] == home[w, j] and room[g] >= size[w, j] and (best < 0 or room[g] < room[best]):
                best = g
        if best < 0:
            best = gpus
            gpus += 1
            room[best], kind[best] = FULL, home[w, j]
        room[best] -= size[w, j]
        gpu[i] = best
    return items, gpus


@njit(cache=True)
def cost_of(combination: IntArray, size: FloatArray, home: IntArray, price: FloatArray) -> FloatArray:
    """Cost of the GPUs of each combination of ways: (combinations,).

    `combination` (combinations, families) holds numbers of ways; `size` in percent, 0 for none, and `home`,
    the GPU type's number, are (ways, slots). `price` (types,).
    """
    cost, most = np.zeros(combination.shape[0]), combination.shape[1] * size.shape[1]
    falling, kind, gpu = np.empty((3, most), np.int64)
    room = np.empty(most)
    for n in range(cost.size):
        _, gpus = _pack(combination[n], size, home, falling, room, kind, gpu)
        for g in range(gpus):
            cost[n] += price[kind[g]]
    return cost


@njit(cache=True)
def placed(
    combination: IntArray, size: FloatArray, home: IntArray, item: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Where the same packing puts the items, `item` (ways, slots), of each combination.

    The items of each GPU (GPUs, slots), -1 where empty; its combination and its type's number (GPUs,).
    """
    most = combination.shape[1] * size.shape[1]
    falling, kind, gpu, filled = np.empty((4, most), np.int64)
    room = np.empty(most)
    rows = np.full((combination.shape[0] * most, most), -1)
    owner, type_ = np.empty((2, rows.shape[0]), np.int64)
    count, width = 0, 1
    for n in range(combination.shape[0]):
        items, gpus = _pack(combination[n], size, home, falling, room, kind, gpu)
        filled[:gpus] = 0
        for i in range(items):
            g, w = gpu[i], falling[i] // size.shape[1]
            rows[count + g, filled[g]] = item[w, falling[i] % size.shape[1]]
            filled[g] += 1
            width = max(width, filled[g])
        owner[count : count + gpus], type_[count : count + gpus] = n, kind[:gpus]
        count += gpus
    return rows[:count, :width].copy(), owner[:count], type_[:count]

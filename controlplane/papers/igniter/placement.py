"""iGniter's Alg 1 and 2, and its two first-fit baselines: all GPUs that may take a workload at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.papers.igniter.latency import Igniter

_FULL_PERCENT = 100.0 + 1e-9
_SAME = 1e-9


class Pick(IntEnum):
    """Which GPU a workload goes to."""

    LEAST_INCREASE = 0
    """The one whose shares grow least (Alg 1)."""
    FIRST_FIT = 1
    """The first where Alg 2 finds room (FFD++)."""
    FIRST_FLOOR = 2
    """The first with room for the lower bound; no share ever grows (FFD+)."""


NO_GPU = -1
"""The workload does not fit on a GPU of its own."""
NONE_LEFT = -2
"""All GPUs are taken."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What workloads need, arrays (workloads,), and what the GPU type has.

    `batch` by Eq 17, `allowed_ms` for a batch by Eq 13 and 14, `floor` the lower bound of the share in
    percent by Eq 18, `memory_mb` with the shadow.
    """

    model: IntArray
    batch: FloatArray
    allowed_ms: FloatArray
    floor: FloatArray
    memory_mb: FloatArray
    step_percent: float
    gpu_memory_mb: float
    most_gpus: int


@dataclass(frozen=True, slots=True)
class Placed:
    """`gpu` (workloads,) or NO_GPU or NONE_LEFT; `percent` (workloads,)."""

    gpu: IntArray
    percent: FloatArray


class _Trial(NamedTuple):
    """A GPU's shares with one more workload, and by how much their sum grows."""

    gpu: int
    percents: FloatArray
    increase: float


def place(needs: Needs, order: IntArray, eq: Igniter, pick: Pick) -> Placed:
    """Place workloads in this order (Alg 1)."""
    count = len(needs.model)
    most = min(count, needs.most_gpus)
    members: list[list[int]] = []
    used, memory_mb = np.zeros(most), np.zeros(most)
    gpu_of, percent = np.full(count, NO_GPU, dtype=np.int64), np.zeros(count)
    for w in order.tolist():
        room = used + needs.floor[w] <= _FULL_PERCENT
        room &= memory_mb + needs.memory_mb[w] <= needs.gpu_memory_mb
        chosen = _choose(w, np.flatnonzero(room[: len(members)]), members, percent, needs, eq, pick)
        if chosen is None and len(members) == most:
            gpu_of[w] = NONE_LEFT
            continue
        if chosen is None and room[len(members)]:
            members.append([])
            chosen = _choose(w, np.array([len(members) - 1]), members, percent, needs, eq, pick)
            if chosen is None:
                members.pop()
        if chosen is None:
            continue
        gpu_of[w] = chosen.gpu
        members[chosen.gpu].append(w)
        percent[members[chosen.gpu]] = chosen.percents
        used[chosen.gpu] += chosen.increase
        memory_mb[chosen.gpu] += needs.memory_mb[w]
    return Placed(gpu_of, percent)


def _choose(
    w: int,
    candidates: IntArray,
    members: list[list[int]],
    percent: FloatArray,
    needs: Needs,
    eq: Igniter,
    pick: Pick,
) -> _Trial | None:
    """Return the GPU for workload `w`, None where no candidate holds it."""
    if not candidates.size:
        return None
    # First fit seldom looks beyond the first GPUs.
    if pick is not Pick.LEAST_INCREASE and candidates.size > 4:
        first = _choose(w, candidates[:4], members, percent, needs, eq, pick)
        return first or _choose(w, candidates[4:], members, percent, needs, eq, pick)
    width = 1 + max(len(members[g]) for g in candidates)
    rows = np.full((candidates.size, width), -1)
    for row, g in enumerate(candidates):
        rows[row, : len(members[g]) + 1] = [*members[g], w]
    shares = np.where(rows >= 0, percent[rows], 0.0)
    before = shares.sum(axis=1)
    shares[rows == w] = needs.floor[w]
    if pick is not Pick.FIRST_FLOOR:
        shares = _grown(rows, shares, needs, eq)
    after = shares.sum(axis=1)
    best: _Trial | None = None
    for row in np.flatnonzero(after <= _FULL_PERCENT):
        increase = float(after[row] - before[row])
        if best is None or increase < best.increase - _SAME:
            g = int(candidates[row])
            best = _Trial(g, shares[row, : len(members[g]) + 1], increase)
            if pick is not Pick.LEAST_INCREASE:
                break
    return best


def _grown(rows: IntArray, percent: FloatArray, needs: Needs, eq: Igniter) -> FloatArray:
    """Return the shares at which every workload is fast enough (Alg 2), of GPUs of the workloads `rows`.

    Their sum is above 100 where that takes more than the GPU has.
    """
    grown = percent.copy()
    left = np.arange(len(rows))
    while left.size:
        here = rows[left]
        mask = here >= 0
        slots = Slots(
            np.where(mask, needs.model[here], 0),
            np.where(mask, needs.batch[here], 1.0),
            np.where(mask, grown[left], 100.0),
            mask,
        )
        slow = mask & (eq.times(slots)[0] > needs.allowed_ms[here])
        grown[left] += np.where(slow, needs.step_percent, 0.0)
        left = left[slow.any(axis=1) & (grown[left].sum(axis=1) <= _FULL_PERCENT)]
    return grown

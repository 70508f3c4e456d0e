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
    """A GPU's workloads and shares with one more, and by how much the sum of the shares grows."""

    gpu: int
    members: IntArray
    percents: FloatArray
    increase: float


def place(needs: Needs, order: IntArray, eq: Igniter, pick: Pick) -> Placed:
    """Place workloads in this order (Alg 1)."""
    count = len(needs.model)
    most = min(count, needs.most_gpus)
    widest = int(_FULL_PERCENT / needs.floor[order].min(initial=_FULL_PERCENT)) + 1
    members = np.full((most, widest), -1)
    opened = 0
    used, memory_mb = np.zeros(most), np.zeros(most)
    gpu_of, percent = np.full(count, NO_GPU, dtype=np.int64), np.zeros(count)
    for w in order.tolist():
        room = used + needs.floor[w] <= _FULL_PERCENT
        room &= memory_mb + needs.memory_mb[w] <= needs.gpu_memory_mb
        chosen = _choose(w, np.flatnonzero(room[:opened]), members, percent, needs, eq, pick)
        if chosen is None and opened == most:
            gpu_of[w] = NONE_LEFT
            continue
        if chosen is None and room[opened]:
            chosen = _choose(w, np.array([opened]), members, percent, needs, eq, pick)
            opened += chosen is not None
        if chosen is None:
            continue
        gpu_of[w] = chosen.gpu
        members[chosen.gpu, : chosen.members.size] = chosen.members
        percent[chosen.members] = chosen.percents
        used[chosen.gpu] += chosen.increase
        memory_mb[chosen.gpu] += needs.memory_mb[w]
    return Placed(gpu_of, percent)


def _choose(
    w: int,
    candidates: IntArray,
    members: IntArray,
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
    count = (members[candidates] >= 0).sum(axis=1)
    rows = members[candidates, : count.max() + 1]
    rows[np.arange(candidates.size), count] = w
    shares = np.where(rows >= 0, percent[rows], 0.0)
    before = shares.sum(axis=1)
    shares[rows == w] = needs.floor[w]
    if pick is not Pick.FIRST_FLOOR:
        shares = _grown(rows, shares, needs, eq)
    after = shares.sum(axis=1)
    increase = np.where(after <= _FULL_PERCENT, after - before, np.inf)
    most = increase.min() + _SAME if pick is Pick.LEAST_INCREASE else _FULL_PERCENT
    best = int(np.argmax(increase <= most))
    if increase[best] == np.inf:
        return None
    here = slice(count[best] + 1)
    return _Trial(int(candidates[best]), rows[best, here], shares[best, here], float(increase[best]))


def _grown(rows: IntArray, percent: FloatArray, needs: Needs, eq: Igniter) -> FloatArray:
    """Return the shares at which every workload is fast enough (Alg 2), of GPUs of the workloads `rows`.

    Their sum is above 100 where that takes more than the GPU has.
    """
    grown = percent.copy()
    mask = rows >= 0
    model, batch = np.where(mask, needs.model[rows], 0), np.where(mask, needs.batch[rows], 1.0)
    allowed_ms = np.where(mask, needs.allowed_ms[rows], np.inf)
    left = np.arange(len(rows))
    while left.size:
        shares = np.where(mask[left], grown[left], 100.0)
        slow = eq.times(Slots(model[left], batch[left], shares, mask[left]))[0] > allowed_ms[left]
        grown[left] += np.where(slow, needs.step_percent, 0.0)
        left = left[slow.any(axis=1) & (grown[left].sum(axis=1) <= _FULL_PERCENT)]
    return grown

"""iGniter's Alg 1 and 2, and its two first-fit baselines.

Plain Python: a thousand workloads take a tenth of a second, less than loading compiled code does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from controlplane.latency.models.igniter import SLOWEST_CLOCK, Hardware
from controlplane.latency.protocol import FloatArray, IntArray

_FULL_PERCENT = 100.0 + 1e-9


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


class Need(NamedTuple):
    """What Eq 1-11 say of a workload at its batch; times in ms.

    gamma: k1 b^2 + k2 b + k3. kernels_ms: k_sch n_k. cache, power: slope and offset over the processing
    ability. floor: the lower bound of the share in percent (Eq 18). memory_mb: with its shadow.
    """

    allowed_ms: float
    batch: float
    gamma: float
    k4: float
    k5: float
    kernels_ms: float
    n_k: float
    alpha_cache: float
    cache_slope: float
    cache_offset: float
    power_slope: float
    power_offset: float
    transfers_ms: float
    floor: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of all workloads, and what the GPU type has."""

    rows: tuple[Need, ...]
    step_percent: float
    memory_mb: float
    most_gpus: int

    @property
    def floor(self) -> FloatArray:
        """The lower bound of each workload's share, in percent."""
        return np.array([need.floor for need in self.rows], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Placed:
    """`gpu` (workloads,) or NO_GPU or NONE_LEFT; `percent` (workloads,)."""

    gpu: IntArray
    percent: FloatArray


@dataclass(slots=True)
class _Gpu:
    """A GPU's workloads (rows of `Needs`) and their shares."""

    members: list[int] = field(default_factory=list)
    percents: list[float] = field(default_factory=list)


class _Trial(NamedTuple):
    """The shares of a GPU with one more workload, and by how much their sum grows."""

    gpu: int
    percents: list[float]
    increase: float


def place(needs: Needs, order: IntArray, hardware: Hardware, pick: Pick) -> Placed:
    """Place workloads in this order."""
    most = min(len(needs.rows), needs.most_gpus)
    gpus: list[_Gpu] = []
    used, memory_mb = np.zeros(most), np.zeros(most)
    gpu_of = np.full(len(needs.rows), NO_GPU, dtype=np.int64)
    for w in order.tolist():
        need = needs.rows[w]
        room = (used + need.floor <= _FULL_PERCENT) & (memory_mb + need.memory_mb <= needs.memory_mb)
        candidates = np.flatnonzero(room[: len(gpus)]).tolist()
        chosen = _choose(w, candidates, gpus, used, needs, hardware, pick)
        if chosen is None and len(gpus) == most:
            gpu_of[w] = NONE_LEFT
            continue
        if chosen is None and room[len(gpus)]:
            gpus.append(_Gpu())
            chosen = _choose(w, [len(gpus) - 1], gpus, used, needs, hardware, pick)
            if chosen is None:
                gpus.pop()
        if chosen is None:
            continue
        gpu_of[w] = chosen.gpu
        gpus[chosen.gpu].members.append(w)
        gpus[chosen.gpu].percents = chosen.percents
        used[chosen.gpu] += chosen.increase
        memory_mb[chosen.gpu] += need.memory_mb
    percent = np.zeros(len(needs.rows))
    for gpu in gpus:
        percent[gpu.members] = gpu.percents
    return Placed(gpu_of, percent)


def _choose(
    w: int,
    candidates: Sequence[int],
    gpus: Sequence[_Gpu],
    used: FloatArray,
    needs: Needs,
    hardware: Hardware,
    pick: Pick,
) -> _Trial | None:
    """Return the GPU for workload `w`, None where no candidate holds it (Alg 1)."""
    best: _Trial | None = None
    floor = needs.rows[w].floor
    for g in candidates:
        percents = [*gpus[g].percents, floor]
        total = before = float(used[g])
        total += floor
        if pick is not Pick.FIRST_FLOOR:
            members = [needs.rows[i] for i in gpus[g].members]
            members.append(needs.rows[w])
            total = _grow(members, percents, total, needs.step_percent, hardware)
        if total > _FULL_PERCENT:
            continue
        increase = total - before
        if best is None or increase < best.increase - 1e-9:
            best = _Trial(g, percents, increase)
            if pick is not Pick.LEAST_INCREASE or increase <= floor + 1e-9:
                break
    return best


def _grow(
    members: Sequence[Need], percents: list[float], total: float, step: float, hardware: Hardware
) -> float:
    """Grow the shares in place until every workload is fast enough; return their sum (Alg 2).

    The sum is above 100 where that takes more than the GPU has.
    """
    count = len(members)
    added_ms = hardware.alpha_sch * count + hardware.beta_sch if count > 1 else 0.0
    clock_slope = hardware.alpha_f / hardware.clock_mhz
    growing = True
    while growing and total <= _FULL_PERCENT:
        # Eq 1-11 of all on this GPU, then Alg 2, line 7, for those that are too slow.
        cache, power = 0.0, hardware.idle_w
        active, own_cache = [], []
        for need, percent in zip(members, percents, strict=True):
            active_ms = need.gamma / (percent + need.k4) + need.k5
            ability = 1000.0 * need.batch / active_ms
            of_this = need.cache_slope * ability + need.cache_offset
            cache += of_this
            power += need.power_slope * ability + need.power_offset
            active.append(active_ms)
            own_cache.append(of_this)
        clock = max(1.0 + clock_slope * max(power - hardware.power_cap_w, 0.0), SLOWEST_CLOCK)
        growing = False
        for i, need in enumerate(members):
            slowed_ms = active[i] * (1.0 + need.alpha_cache * (cache - own_cache[i]))
            busy_ms = need.kernels_ms + added_ms * need.n_k + slowed_ms
            if busy_ms / clock + need.transfers_ms > need.allowed_ms:
                percents[i] += step
                total += step
                growing = True
    return total

"""iGniter: the batch by Eq 17, the lower bound of the share by Eq 18, Alg 1 and Alg 2 under half the SLO.

Unlike in the authors' prototype, every GPU is validated with the full model, a newly opened one too; an SLO
that no share can meet (delta <= 0) is refused with the reason; the batch holds whole requests and is at most
what engines and profile speak for, and where that cap binds the rate (Eq 13) is asked for as well. The
strategy always plans with Eq 1-11 on the profiles' coefficients; the plan is judged by the latency model and
rule of the request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import numpy as np

from controlplane.domain.plan import Infeasible, PlannedGpu
from controlplane.domain.units import spoken
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import FloatArray, IntArray, Slots
from controlplane.papers.igniter import latency as model
from controlplane.papers.igniter.latency import Igniter, percent_for
from controlplane.papers.per_type import PerGpuType, alone, own_model, split
from controlplane.planning.explain.infeasible import (
    fragmented,
    free_percents,
    is_fragmented,
    nearest_rate,
    nearest_slo,
)
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import (
    gpu_of,
    largest_batch,
    memory_with_shadow,
    refusal,
    too_large,
)
from controlplane.planning.judge.shadows import EXTRA_PERCENT
from controlplane.planning.protocol import Device, PlanRequest

_FULL_PERCENT = 100.0 + 1e-9
_SAME = 1e-9
UNREACHABLE = 1e9
"""The lower bound of a workload that no share can hold."""


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


class _Trial(NamedTuple):
    """A GPU's workloads and shares with one more, and by how much the sum of the shares grows."""

    gpu: int
    members: IntArray
    percents: FloatArray
    increase: float


PICKS = {"igniter": Pick.LEAST_INCREASE, "ffd+": Pick.FIRST_FLOOR, "ffd++": Pick.FIRST_FIT}
"""By strategy. FFD+ takes the lower bound of each share and looks no further: its plans break promises by
design."""


def strategy(name: str) -> PerGpuType:
    """IGniter, with each workload on the GPU whose shares grow least, or one of its first-fit baselines."""
    return PerGpuType(name, model.NAME, partial(draft_on, pick=PICKS[name]))


def draft_on(device: Device, request: PlanRequest, pick: Pick = Pick.LEAST_INCREASE) -> Draft:
    """The placement on one GPU type."""
    known, refused = split(request.workloads, lambda w: refusal(w, device))
    eq = own_model(device, Igniter, model.fit)
    needs = needs_of(eq, device, known)
    possible = np.flatnonzero(needs.floor <= 100.0)
    order = possible[np.argsort(-needs.floor[possible], kind="stable")]
    gpu, percent = place(needs, order, eq, pick)
    rows: dict[int, list[int]] = {}
    for w in order[gpu[order] >= 0].tolist():
        rows.setdefault(int(gpu[w]), []).append(w)
    batch = needs.batch.astype(int).tolist()
    gpus = tuple(
        gpu_of(g, device, [alone(known[w], float(percent[w]), batch[w], device) for w in rows[g]])
        for g in sorted(rows)
    )
    refused.extend(
        _no_room(device, known[i], gpus, float(needs.floor[i]))
        if gpu[i] == NONE_LEFT
        else _explain(eq, device, known[i], float(needs.floor[i]), pick)
        for i in np.flatnonzero(gpu < 0).tolist()
    )
    return Draft(gpus, tuple(refused), most_extra=EXTRA_PERCENT)


def needs_of(eq: Igniter, device: Device, workloads: Sequence[Workload]) -> Needs:
    """Eq 17 and 18 for all workloads."""
    c, hw, grid = eq.coefficients, eq.hardware, device.pool.device.grid
    m = np.array([eq.models.index(w.model) for w in workloads], dtype=np.int64)
    slo = np.array([w.slo_ms for w in workloads], dtype=np.float64)
    rate = np.array([w.rate_rps for w in workloads], dtype=np.float64) / 1000.0
    client_batch = np.array([w.client_batch for w in workloads], dtype=np.int64)
    most = {name: largest_batch(device, name) for name in device.profiles}
    largest = np.array([most[w.model] for w in workloads], dtype=np.int64) // client_batch * client_batch
    load, feedback = c.d_load[m] / hw.pcie_bytes_per_ms, c.d_feedback[m] / hw.pcie_bytes_per_ms
    batch = np.ceil(slo * rate / (2.0 * (1.0 + rate * load)) - 1e-9)
    batch = np.clip(np.ceil(batch / client_batch) * client_batch, client_batch, largest)
    # Eq 14, and Eq 13 as a time: b / R >= t_gpu + t_feedback. The latter binds only where b was capped.
    allowed = np.minimum(slo / 2.0, batch / rate + load * batch) * (1.0 + 1e-9)
    active = allowed - (load + feedback) * batch - c.k_sch[m] * c.n_k[m]
    reachable = active > c.k5[m]
    wanted = percent_for(c.curve(m), np.where(reachable, active, c.k5[m] + 1.0), batch)
    least, step = grid.minimum_percent, grid.step_percent
    floor = least + np.maximum(np.ceil((wanted - least) / step - 1e-9), 0.0) * step
    total, count = device.pool.device.memory_mb, device.pool.count
    return Needs(
        model=m,
        batch=batch,
        allowed_ms=allowed,
        floor=np.where(reachable & (floor <= 100.0 + 1e-9), floor, UNREACHABLE),
        memory_mb=np.array([memory_with_shadow(w, device) for w in workloads], dtype=np.float64),
        step_percent=step,
        gpu_memory_mb=math.inf if total is None else total,
        most_gpus=len(workloads) if count is None else count,
    )


def _no_room(device: Device, workload: Workload, gpus: Sequence[PlannedGpu], floor: float) -> Infeasible:
    """Why a workload has no place on devices that are counted."""
    name, count = device.pool.device.name, device.pool.count or len(gpus)
    free = free_percents(gpus, name, count)
    if is_fragmented(free, floor):
        return Infeasible(workload.name, fragmented(name, free, f"{spoken(floor)} %"))
    return Infeasible(workload.name, f"all {count} {name} are taken")


def _explain(eq: Igniter, device: Device, workload: Workload, floor: float, pick: Pick) -> Infeasible:
    """Why a workload has no place, and the nearest SLO and rate a GPU of its own would hold."""
    no_memory = too_large(workload, device)
    if no_memory is not None:
        return Infeasible(workload.name, no_memory)

    def fits(w: Workload) -> bool:
        needs = needs_of(eq, device, [w])
        if needs.floor[0] > 100.0:
            return False
        return bool(place(needs, np.array([0]), eq, pick)[0][0] >= 0)

    slo = nearest_slo(fits, workload)
    rate = nearest_rate(fits, workload)
    name = device.pool.device.name
    if floor >= UNREACHABLE:
        reason = f"no share of {name} executes a batch within half of {workload.slo_ms:g} ms at this rate"
    else:
        reason = f"alone on {name} its clock falls below what half of {workload.slo_ms:g} ms needs"
    return Infeasible(workload.name, reason, slo, rate)


# -- Alg 1 and 2, all GPUs that may take a workload at once ---------------------------------------------


def place(needs: Needs, order: IntArray, eq: Igniter, pick: Pick) -> tuple[IntArray, FloatArray]:
    """Place workloads in this order (Alg 1): each one's GPU, NO_GPU or NONE_LEFT, and share in percent."""
    count = len(needs.model)
    most = min(count, needs.most_gpus)
    widest = int(_FULL_PERCENT / needs.floor[order].min(initial=_FULL_PERCENT)) + 1
    members = np.full((most, widest), -1)
    opened = 0
    used, memory_mb = np.zeros(most), np.zeros(most)
    gpu_on, percent = np.full(count, NO_GPU, dtype=np.int64), np.zeros(count)
    for w in order.tolist():
        room = used + needs.floor[w] <= _FULL_PERCENT
        room &= memory_mb + needs.memory_mb[w] <= needs.gpu_memory_mb
        chosen = _choose(w, np.flatnonzero(room[:opened]), members, percent, needs, eq, pick)
        if chosen is None and opened == most:
            gpu_on[w] = NONE_LEFT
            continue
        if chosen is None and room[opened]:
            chosen = _choose(w, np.array([opened]), members, percent, needs, eq, pick)
            opened += chosen is not None
        if chosen is None:
            continue
        gpu_on[w] = chosen.gpu
        members[chosen.gpu, : chosen.members.size] = chosen.members
        percent[chosen.members] = chosen.percents
        used[chosen.gpu] += chosen.increase
        memory_mb[chosen.gpu] += needs.memory_mb[w]
    return gpu_on, percent


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

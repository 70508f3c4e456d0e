"""InSS's problem (1)-(1f): n models, a fixed set of K GPUs, one GPU and one share for each model.

The objective is goodput: requests served within their SLO. Between plans of equal goodput the paper's own
measure decides, capacity b/t over the model's peak (Eq 3). Batches follow by exact enumeration (`kernel`).

Shares are units of the GPU's grid (17 of 2 SMs on an RTX 2060 Super): unit u is `percent[type, u - 1]`, and
(1a) is in percent, as printed: two models never get all 17 units of a grid of 6 %, which would be 102 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.papers.inss import latency
from controlplane.papers.per_type import own_model
from controlplane.planning.protocol import Device

LARGEST_BATCH = 32
REJECTED = -1
"""The GPU of a model that gets none."""
CAPACITY_WEIGHT = 0.01
"""The weight of normalised capacity beside goodput: it decides between plans of (nearly) equal goodput."""
MOVE_COST = 0.1
"""A move must serve this part of an average model's requests."""
SLACK = 1e-9
"""Percent: shares are sums of a decimal grid."""


class Bda(StrEnum):
    """How batches are decided once models are placed (problem (4))."""

    EXACT = "exact"
    """Try every batch, since Eq 2 rises and falls with the batch."""
    PAPER = "paper"
    """The binary search of Alg 1, as its text describes it, for comparison."""


class Tables(NamedTuple):
    """InSS's latency model (Sec. 4.1) of m kinds of requests on T GPU types: at most U shares, B batches.

    percent (T, U), infinite beyond a type's grid; alone_ms, cycle_ms, running_ms (m, T, U, B), infinite
    beyond a model's largest batch and where it has no profile: a batch alone from load to result, between
    ends of successive batches, and the part that the L2 slows. l2_percent (m, T, U): utilisation alone.
    cache (m, T): alpha_cache per percent. kernels (m, T), schedule (T, 2): (alpha_s n + beta_s) ms a kernel.
    peak_rps (m,): H_i, batch 1 on all of the fastest type.
    """

    percent: FloatArray
    alone_ms: FloatArray
    cycle_ms: FloatArray
    running_ms: FloatArray
    l2_percent: FloatArray
    cache: FloatArray
    kernels: FloatArray
    schedule: FloatArray
    peak_rps: FloatArray

    def without_interference(self) -> Tables:
        """Return the tables without interference (the paper's InSS-ni)."""
        return self._replace(cache=np.zeros_like(self.cache), schedule=np.zeros_like(self.schedule))


def tabulate(devices: Mapping[str, Device], kinds: Sequence[tuple[str, int]]) -> Tables:
    """Tabulate each type's InSS model, fitted on its profiles where it has another model.

    A kind is a model and its client batch; rates and batches count requests. Raises InputError for profiles
    it cannot be fitted on.
    """
    grids = [d.pool.device.grid.percents() for d in devices.values()]
    shape = (len(kinds), len(grids), max(len(g) for g in grids), LARGEST_BATCH)
    percent = np.full(shape[1:3], np.inf)
    alone, cycle, running = (np.full(shape, np.inf) for _ in range(3))
    l2, cache, kernels = np.zeros(shape[:3]), np.zeros(shape[:2]), np.zeros(shape[:2])
    schedule = np.zeros((shape[1], 2))
    for t, (device, grid) in enumerate(zip(devices.values(), grids, strict=True)):
        percent[t, : len(grid)] = grid
        fitted = own_model(device, latency.Inss, latency.fit)
        known = fitted.contention.coefficients
        schedule[t] = known.schedule
        for m, (name, client_batch) in enumerate(kinds):
            if name not in fitted.models:
                continue
            own = fitted.models.index(name)
            most = min(LARGEST_BATCH, device.profiles[name].largest_batch) // client_batch
            batch = client_batch * np.arange(1.0, most + 1)
            times = fitted.estimate(Slots.alone(own, np.tile(batch, len(grid)), np.repeat(grid, most)))
            here = (m, t, slice(len(grid)), slice(most))
            alone[here] = times.execution_ms.reshape(len(grid), most)
            cycle[here] = times.cycle_ms.reshape(len(grid), most)
            running[here] = np.maximum(alone[here] - known.fixed_ms(own, batch), 0.0)
            line = known.utilisation[own]
            l2[m, t, : len(grid)] = np.clip(line[0] * np.array(grid) + line[1], 0.0, 100.0)
            cache[m, t], kernels[m, t] = known.cache[own], known.kernels[own]
    whole = np.array([len(g) - 1 for g in grids])
    peak = 1000.0 / alone[:, np.arange(shape[1]), whole, 0].min(axis=1)
    return Tables(percent, alone, cycle, running, l2, cache, kernels, schedule, peak)


class Space(NamedTuple):
    """What decides where models fit: of a `Problem` these arrays alone, since each one passed on costs time.

    known (n, T): whether a model has a profile on a type; the others as in `Problem` and `Tables`.
    """

    type_of: IntArray
    percent: FloatArray
    memory_mb: FloatArray
    model_memory_mb: FloatArray
    known: BoolArray


class Problem(NamedTuple):
    """n models on K GPUs, or E such problems of one shape with a leading axis on every array (`stack`).

    model (n,) and type_of (K,) index `tables`; rates_rps, slos_ms, backlog (n,); memory_mb (K,);
    model_memory_mb (n, T), a hot shadow's copy included (1b).
    """

    tables: Tables
    model: IntArray
    rates_rps: FloatArray
    slos_ms: FloatArray
    backlog: FloatArray
    type_of: IntArray
    memory_mb: FloatArray
    model_memory_mb: FloatArray

    @staticmethod
    def stack(problems: Sequence[Problem]) -> Problem:
        """Stack problems of one shape with the same tables, for assignments (E, n)."""
        arrays = zip(*(problem[1:] for problem in problems), strict=True)
        return Problem(problems[0].tables, *map(np.stack, arrays))

    def row(self, row: int) -> Problem:
        """Return one of stacked problems."""
        return Problem(self.tables, *(array[row] for array in self[1:]))

    @property
    def space(self) -> Space:
        """What the local search asks most often."""
        known = np.isfinite(self.tables.alone_ms[self.model, :, 0, 0])
        return Space(self.type_of, self.tables.percent, self.memory_mb, self.model_memory_mb, known)

    @property
    def units(self) -> IntArray:
        """The number of units of each GPU, (K,)."""
        shares: IntArray = np.isfinite(self.percent).sum(axis=-1)
        return shares

    @property
    def percent(self) -> FloatArray:
        """The share that 1..U units are on each GPU, (K, U), infinite beyond its grid."""
        return self.tables.percent[self.type_of]

    @property
    def peak_rps(self) -> FloatArray:
        """H_i of each model, (n,)."""
        return self.tables.peak_rps[self.model]


class Previous(NamedTuple):
    """The running plan, (n,) or (E, n) each, and the cost of moving, resizing or stopping a model.

    The cost is in parts of all offered requests: a move must serve so many more of them. Starting a model
    that is REJECTED now is free.
    """

    gpu: IntArray
    units: IntArray
    cost: float


def running(gpu: IntArray, units: IntArray) -> Previous:
    """Return the running plan with the usual cost of a move."""
    return Previous(gpu, units, MOVE_COST / gpu.shape[-1])


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of assignments; shapes as the assignment, (n,) or (M, n).

    batch is 0, latency_ms infinite and capacity_rps 0 where a model is rejected; latency_ms is also infinite
    where less is served than arrives. violated: requests arrive and their SLO is not held, a rejected model's
    included. goodput_rps is the rate where the SLO holds, else 0: it never holds below the rate.
    """

    batch: IntArray
    latency_ms: FloatArray
    capacity_rps: FloatArray
    goodput_rps: FloatArray
    violated: BoolArray


def goodput(problem: Problem, gpu: IntArray, share_units: IntArray, bda: Bda = Bda.EXACT) -> Outcome:
    """Evaluate one assignment (n,), or M at once (M, n): of one problem, or one of each stacked problem.

    `gpu` in 0..K-1 or REJECTED; `share_units` in 1..U, ignored where rejected. (1a) and (1b) are not
    evaluated here, see `fits`.
    """
    # Imports numba, which commands that do not plan need not wait for.
    from controlplane.papers.inss import kernel

    rows, units = np.atleast_2d(gpu), np.atleast_2d(share_units)
    stacked = problem if problem.model.ndim > 1 else Problem.stack([problem])
    batch = np.empty(rows.shape, dtype=np.int64)
    latency_ms, capacity_rps = np.empty(rows.shape), np.empty(rows.shape)
    kernel.outcomes(rows, units, stacked, bda is Bda.PAPER, batch, latency_ms, capacity_rps)
    violated = ~(latency_ms <= stacked.slos_ms)
    served = np.where(violated, 0.0, stacked.rates_rps)
    shape = gpu.shape
    return Outcome(
        batch.reshape(shape),
        latency_ms.reshape(shape),
        capacity_rps.reshape(shape),
        served.reshape(shape),
        violated.reshape(shape),
    )


def value(problem: Problem, outcome: Outcome) -> FloatArray:
    """Return the objective of search and policy, () or (M,): goodput over the offered requests.

    Plus `CAPACITY_WEIGHT` of the mean normalised capacity b / (t H_i), of models that hold their SLO.
    """
    total: FloatArray = outcome.goodput_rps.sum(axis=-1) / problem.rates_rps.sum(axis=-1)
    spare = np.where(outcome.violated, 0.0, outcome.capacity_rps / problem.peak_rps)
    result: FloatArray = total + CAPACITY_WEIGHT * spare.mean(axis=-1)
    return result


def taken(problem: Problem, gpu: IntArray, share_units: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the percent and MB of each GPU that assignments take; shapes (K,) or (M, K)."""
    rows, units = np.atleast_2d(gpu), np.atleast_2d(share_units)
    types, memory_mb = np.atleast_2d(problem.type_of), problem.model_memory_mb
    share, memory = np.zeros((2, len(rows), types.shape[1]))
    a, i = np.nonzero(rows >= 0)
    stacked = problem.model.ndim > 1
    k, p = rows[a, i], a if stacked else np.zeros_like(a)
    kind = types[p, k]
    np.add.at(share, (a, k), problem.tables.percent[kind, units[a, i] - 1])
    np.add.at(memory, (a, k), (memory_mb if stacked else memory_mb[None])[p, i, kind])
    out = (*gpu.shape[:-1], types.shape[1])
    return share.reshape(out), memory.reshape(out)


def fits(problem: Problem, gpu: IntArray, share_units: IntArray) -> BoolArray:
    """Return whether (1a) and (1b) hold, () or (M,)."""
    share, memory = taken(problem, gpu, share_units)
    good: BoolArray = ((share <= 100.0 + SLACK) & (memory <= problem.memory_mb)).all(axis=-1)
    return good

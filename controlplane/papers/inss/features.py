"""The policy's observations of E incomplete plans, step by step, for training and for planning.

One plan is an episode of n placements, the model with the largest need first. Features hold no ids of models
or GPUs, only latency, L2, memory, rates and backlogs, relative to the SLO, the mean rate or a whole GPU.

The model and what is left (MODEL_FEATURES): ln and value of its rate over the mean rate; its least share
    alone; memory; how L2 pressure slows it; batch 1 on half a GPU over the SLO; L2 utilisation there; seconds
    of backlog; models to come per GPU; their need and its own over the free share; the largest need to come;
    rate per need of those to come, and its own; memory to come over free memory; free share; room to spare.
A GPU (GPU_FEATURES): free share; grid step; memory left after this model; models; L2 pressure; rate held
    there, and its part of the rate there; the most an action here gains; the least share that holds here, and
    what it leaves; whether memory suffices.
An action (ACTION_FEATURES): the rate it gains less what neighbours lose, and that loss; share; what it
    leaves; what it takes beyond the least that holds; slack to the SLO; capacity over rate and over peak; L2
    added; whether it would hold beside one more neighbour; whether the GPU, and the units too, are those of
    the running plan.

Masked are shares (1a) and memory (1b) that are not free, and shares on which the SLO (1c) would not hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.papers.inss.problem import REJECTED, Problem
from controlplane.papers.inss.search import Previous

MODEL_FEATURES = 16
GPU_FEATURES = 11
ACTION_FEATURES = 12
FloatArray32 = NDArray[np.float32]


class Observation(NamedTuple):
    """One step of E plans.

    model (E, MODEL_FEATURES), gpus (E, K, GPU_FEATURES), actions (E, K, U, ACTION_FEATURES); valid
    (E, K U + 1), the last action being `reject`; present (E, K): 1 for GPUs that exist, 0 for padding.
    """

    model: FloatArray32
    gpus: FloatArray32
    actions: FloatArray32
    valid: BoolArray
    present: FloatArray32


class Episodes:
    """E plans of stacked problems, in lockstep: `observe` one model each, `place` it, until `done`.

    `before` is the running plan, of shape (E, n); REJECTED where a model is new.
    """

    def __init__(self, problem: Problem, before: Previous | None = None) -> None:
        count, n = problem.model.shape
        gpus = problem.type_of.shape[1]
        self._problem = problem
        self._need = _needs(problem)
        least = np.take_along_axis(self._need, problem.type_of[:, None, :], axis=2).min(axis=2)
        self._order = np.argsort(-least, axis=1, kind="stable")
        self._left = _remaining(problem, least, self._order)
        self.gpu = np.full((count, n), REJECTED)
        self.units = np.zeros((count, n), dtype=np.int64)
        none = self.gpu.copy(), self.units.copy()
        self._before = none if before is None else (before.gpu, before.units)
        most = min(n, problem.surfaces.percent.shape[1])
        self._board = (
            np.zeros((count, gpus)),
            np.zeros((count, gpus)),
            np.zeros((count, gpus)),
            np.zeros((count, gpus), dtype=np.int64),
            np.zeros((count, gpus, most), dtype=np.int64),
        )
        batch = np.ones((count, n), dtype=np.int64)
        self._plan = (self.gpu, self.units, batch, np.zeros((count, n), dtype=np.bool_))
        self._step = 0

    @property
    def done(self) -> bool:
        """Whether all models are placed or rejected."""
        return self._step == self._order.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(GPUs, units): action k units + (u - 1) puts the model on GPU k with u units, the last rejects."""
        return self._problem.type_of.shape[1], self._problem.surfaces.percent.shape[1]

    @property
    def at(self) -> IntArray:
        """The model that each plan places next, (E,)."""
        return self._order[:, self._step]

    def observe(self) -> Observation:
        """Return the observation before the next placement."""
        from controlplane.papers.inss import features_kernel

        problem, (gpus, width) = self._problem, self.shape
        count = len(problem.model)
        seen = Observation(
            np.empty((count, MODEL_FEATURES), dtype=np.float32),
            np.empty((count, gpus, GPU_FEATURES), dtype=np.float32),
            np.empty((count, gpus, width, ACTION_FEATURES), dtype=np.float32),
            np.empty((count, gpus * width + 1), dtype=np.bool_),
            np.ones((count, gpus), dtype=np.float32),
        )
        surfaces = problem.surfaces
        features_kernel.observe.compiled(
            self.at,
            self._left[:, self._step],
            problem.asked,
            problem.memory_mb,
            problem.model_memory_mb,
            surfaces.percent,
            problem.surfaces.tables,
            surfaces.peak_rps,
            self._need,
            self._before,
            self._board,
            self._plan,
            (seen.model, seen.gpus, seen.actions, seen.valid),
        )
        return seen

    def place(self, action: IntArray) -> None:
        """Take one valid action for each plan, (E,)."""
        from controlplane.papers.inss import features_kernel

        problem = self._problem
        features_kernel.place.compiled(
            self.at,
            action,
            problem.asked,
            problem.model_memory_mb,
            problem.surfaces.percent,
            problem.surfaces.tables,
            self._board,
            self._plan,
        )
        self._step += 1


def _needs(problem: Problem) -> FloatArray:
    from controlplane.papers.inss import features_kernel

    surfaces = problem.surfaces
    need = np.empty((*problem.model.shape, len(surfaces.percent)))
    features_kernel.needs.compiled(problem.asked, surfaces.percent, surfaces.tables, need)
    return need


def _remaining(problem: Problem, need: FloatArray, order: IntArray) -> FloatArray:
    """Return what comes after each step: models, need, largest need, rate, MB; shape (E, n, 5)."""
    need = np.take_along_axis(need, order, axis=1)
    rate = np.take_along_axis(problem.rates_rps, order, axis=1)
    memory = np.take_along_axis(problem.model_memory_mb[..., 0], order, axis=1)

    def after(values: FloatArray) -> FloatArray:
        later: FloatArray = np.cumsum(values[:, ::-1], axis=1)[:, ::-1] - values
        return later

    # Models are in the order of their needs: the largest need to come is the next one's.
    largest = np.pad(need[:, 1:], ((0, 0), (0, 1)))
    return np.stack([after(np.ones_like(need)), after(need), largest, after(rate), after(memory)], axis=-1)

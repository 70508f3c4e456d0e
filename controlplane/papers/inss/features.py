"""The policy's observations of E incomplete plans, step by step, for training and for planning.

One plan is an episode of n placements, the model with the largest need first. Action 0 rejects the model,
1 + k U + (u - 1) puts it on GPU k with u units. Features hold no ids of models or GPUs, only quantities
relative to the SLO, the mean rate or a whole GPU, so order and number of models and GPUs are free.

Of an action (0 where it rejects): the rate that it gains less what neighbours lose; its share; the share
    that it leaves; slack to the SLO; capacity over the model's peak; L2 utilisation there with it; 1 where
    the running plan has it, a half where that has another share of the same GPU.
Of the step, the same for all its actions: the least shares of this model and those to come over the free
    share; of those to come the rate, the rate per share, the largest least share, the memory over the free
    memory; the free share.

Masked are shares (1a) and memory (1b) that are not free, and shares on which the SLO (1c) would not hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.papers.inss.problem import REJECTED, Problem
from controlplane.papers.inss.search import Previous

ACTION_FEATURES = 7
STEP_FEATURES = 6
FEATURES = ACTION_FEATURES + STEP_FEATURES
CLIP = 4.0
FloatArray32 = NDArray[np.float32]


class Observation(NamedTuple):
    """One step of E plans: features of all actions (E, 1 + K U, FEATURES), and which are valid."""

    actions: FloatArray32
    valid: BoolArray


class Episodes:
    """E plans of stacked problems, in lockstep: `observe` one model each, `place` it, until `done`.

    `before` is the running plan, of shape (E, n); REJECTED where a model is new.
    """

    def __init__(self, problem: Problem, before: Previous | None = None) -> None:
        count, n = problem.model.shape
        gpus = problem.type_of.shape[1]
        self._problem = problem
        need = _needs(problem)
        self._order = np.argsort(-need, axis=1, kind="stable")
        self._to_come = _to_come(problem, need, self._order)
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
        """The number of GPUs and of units of each."""
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
        actions = np.zeros((count, 1 + gpus * width, FEATURES), dtype=np.float32)
        actions[..., ACTION_FEATURES:] = self._step_features()[:, None, :]
        valid = np.zeros(actions.shape[:2], dtype=np.bool_)
        surfaces = problem.surfaces
        features_kernel.observe(
            self.at,
            problem.asked,
            problem.memory_mb,
            problem.model_memory_mb,
            surfaces.percent,
            surfaces.tables,
            surfaces.peak_rps,
            self._before,
            self._board,
            self._plan,
            actions,
            valid,
        )
        return Observation(actions, valid)

    def _step_features(self) -> FloatArray:
        """Return what is to come beside what is free, (E, STEP_FEATURES)."""
        share, memory_mb = self._board[:2]
        total, need, largest, rate, later_mb = self._to_come[:, self._step].T
        free = np.maximum(1.0 - share / 100.0, 0.0).sum(axis=1)
        free_mb = self._problem.memory_mb.sum(axis=1) - memory_mb.sum(axis=1)
        return np.stack(
            [
                np.minimum(total / np.maximum(free, 0.01), CLIP),
                np.minimum(rate, 10.0) / 10.0,
                np.minimum(rate / np.maximum(need, 0.01), 10.0) / 10.0,
                largest,
                np.minimum(later_mb / (free_mb + 1.0), CLIP),
                free / share.shape[1],
            ],
            axis=-1,
        )

    def place(self, action: IntArray) -> None:
        """Take one valid action for each plan, (E,)."""
        from controlplane.papers.inss import features_kernel

        problem = self._problem
        features_kernel.place(
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
    """Return the least share, of 1, at which each model alone holds on some GPU, else 1.5; (E, n)."""
    from controlplane.papers.inss import features_kernel

    surfaces = problem.surfaces
    need = np.empty((*problem.model.shape, len(surfaces.percent)))
    features_kernel.needs(problem.asked, surfaces.percent, surfaces.tables, need)
    least: FloatArray = np.take_along_axis(need, problem.type_of[:, None, :], axis=2).min(axis=2)
    return least


def _to_come(problem: Problem, need: FloatArray, order: IntArray) -> FloatArray:
    """Return what comes at and after each step: need; after it need, largest need, rate, MB; (E, n, 5)."""
    need = np.take_along_axis(need, order, axis=1)
    rate = np.take_along_axis(problem.rates_rps, order, axis=1) / problem.rates_rps.mean(
        axis=1, keepdims=True
    )
    memory = np.take_along_axis(problem.model_memory_mb[..., 0], order, axis=1)

    def from_here(values: FloatArray) -> FloatArray:
        total: FloatArray = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
        return total

    all_need = from_here(need)
    # Models are in the order of their needs: the largest need to come is the next one's.
    largest = np.pad(need[:, 1:], ((0, 0), (0, 1)))
    later = (from_here(values) - values for values in (rate, memory))
    return np.stack([all_need, all_need - need, largest, *later], axis=-1)

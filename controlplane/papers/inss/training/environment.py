"""One plan as an episode, by gymnasium's API: E plans of one shape in lockstep.

`Reward.GOODPUT` sums up to the plan's value minus the cost of moves, in units of an average model's requests;
each placement earns the value that it adds. `Reward.TERMINAL` pays the same sum with the last placement.
`Reward.PAPER` is Eq 3, paid at the end: sum_i b/(t H_i) - omega v_i, where v_i is 1 for a model whose
requests miss their SLO and for one that is not placed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.papers.inss.features import (
    ACTION_FEATURES,
    GPU_FEATURES,
    MODEL_FEATURES,
    Episodes,
    Observation,
)
from controlplane.papers.inss.policy import worth
from controlplane.papers.inss.problem import Problem, goodput
from controlplane.papers.inss.search import Previous

PENALTY = 100.0
"""Omega of Eq 3 (Sec. 6.1)."""

Draw = Callable[[np.random.Generator], tuple[Problem, Previous]]
"""Draws stacked problems of one shape, and the running assignment of each."""


class Reward(StrEnum):
    """The reward of a plan; see the module."""

    GOODPUT = "goodput"
    TERMINAL = "terminal"
    PAPER = "paper"


def earned(kind: Reward, problem: Problem, gpu: IntArray, units: IntArray, before: Previous) -> FloatArray:
    """Return the reward of assignments (E, n) of stacked problems, (E,)."""
    if kind is Reward.PAPER:
        outcome = goodput(problem, gpu, units)
        normalised = outcome.capacity_rps / problem.peak_rps - PENALTY * outcome.violated
        total: FloatArray = normalised.sum(axis=1)
        return total
    return gpu.shape[1] * worth(problem, gpu, units, before)


def observation_space(gpus: int, units: int) -> spaces.Dict:
    """Return the space of one plan's `features.Observation`."""

    def box(*shape: int) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, shape, np.float32)

    return spaces.Dict(
        model=box(MODEL_FEATURES),
        gpus=box(gpus, GPU_FEATURES),
        actions=box(gpus, units, ACTION_FEATURES),
        valid=spaces.MultiBinary(gpus * units + 1),
        present=box(gpus),
    )


class PlacementVectorEnv(VectorEnv[dict[str, Any], IntArray, Any]):
    """`num_envs` plans in lockstep: all end at the same step, and `reset` draws the next ones.

    An observation holds `features.Observation`'s fields by name; `valid` masks the actions. The last
    placement returns the observation before it again.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, draw: Draw, reward: Reward = Reward.GOODPUT) -> None:
        self._draw = draw
        self._reward = reward
        self._total: FloatArray = np.zeros(0)
        self._begin(np.random.default_rng(0))
        self.num_envs = len(self.problem.model)
        gpus, units = self.episodes.shape
        self.single_observation_space = observation_space(gpus, units)
        self.single_action_space = spaces.Discrete(gpus * units + 1)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _begin(self, rng: np.random.Generator) -> None:
        self.problem, self.before = self._draw(rng)
        self.episodes = Episodes(self.problem, self.before)
        self.seen: Observation = self.episodes.observe()
        self._total = np.zeros(len(self.problem.model))

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw new problems; with `seed` the same ones again."""
        if seed is not None:
            self._np_random = np.random.default_rng(seed if isinstance(seed, int) else seed[0])
        self._begin(self.np_random)
        return self._observation(), {}

    def step(
        self, actions: IntArray
    ) -> tuple[dict[str, Any], FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Place one model in each plan. Raises ValueError for a masked action."""
        chosen = np.asarray(actions, dtype=np.int64)
        if not self.seen.valid[np.arange(len(chosen)), chosen].all():
            raise ValueError("a masked action was chosen")
        self.episodes.place(chosen)
        ended = np.full(len(chosen), self.episodes.done)
        won = np.zeros(len(chosen))
        if self.episodes.done or self._reward is Reward.GOODPUT:
            total = earned(self._reward, self.problem, self.episodes.gpu, self.episodes.units, self.before)
            won, self._total = total - self._total, total
        if not self.episodes.done:
            self.seen = self.episodes.observe()
        return self._observation(), won, ended, np.zeros_like(ended), {}

    def _observation(self) -> dict[str, Any]:
        return {**self.seen._asdict(), "valid": self.seen.valid.astype(np.int8)}

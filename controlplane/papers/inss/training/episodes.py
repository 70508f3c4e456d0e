"""Episodes to learn from: random variations of a spec's problem, their rewards, and demonstrations.

One plan is an episode, E plans of one shape in lockstep. `Reward.GOODPUT` sums up to the plan's value minus
the cost of moves, in units of an average model's requests; each placement earns the value that it adds.
`Reward.TERMINAL` pays the same sum with the last placement. `Reward.PAPER` is Eq 3, paid at the end: sum_i
b/(t H_i) - omega v_i, where v_i is 1 for a model whose requests miss their SLO and for one that is not
placed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.papers.inss.policy import Episodes, worth
from controlplane.papers.inss.problem import REJECTED, Previous, Problem, goodput, running
from controlplane.papers.inss.search import search
from controlplane.ports import Clock

RATE_SPREAD = (1 / 3, 5 / 3)
"""One model's rate over the spec's, about the range of the rates in the authors' code."""
LOAD_SPREAD = (0.7, 1.7)
SLO_SPREAD = (0.75, 1.5)
MOST_BACKLOG_S = 0.02
KNOWN_BEFORE = 0.5
"""The part of the problems with a running assignment."""
PENALTY = 100.0
"""Omega of Eq 3 (Sec. 6.1)."""


@dataclass(frozen=True, slots=True)
class Around:
    """Problems of `n` models on `gpus` GPUs, drawn from those of `base`, `lanes` at a time.

    Rates are the base's, each scaled independently and all by one load, which grows with the GPUs per model;
    SLOs are scaled independently. Half of the problems have a running assignment: the greedy one for other
    rates.
    """

    base: Problem
    n: int
    gpus: int
    lanes: int

    def __call__(self, rng: np.random.Generator) -> tuple[Problem, Previous]:
        """Draw stacked problems, and the running assignment of each."""
        base, shape = self.base, (self.lanes, self.n)
        models, kinds = len(base.model), len(base.type_of)
        # Each model once before any twice.
        rounds = [rng.random((self.lanes, models)).argsort(axis=1) for _ in range(-(-self.n // models))]
        pick = np.concatenate(rounds, axis=1)[:, : self.n]
        gpus = rng.integers(kinds, size=(self.lanes, self.gpus))
        fair = (self.gpus / self.n) / (kinds / models)
        load = fair * rng.uniform(*LOAD_SPREAD, size=(self.lanes, 1))
        usual = base.rates_rps[pick] * load
        rates = usual * rng.uniform(*RATE_SPREAD, size=shape)
        seconds = rng.uniform(0.0, MOST_BACKLOG_S, size=shape) * (rng.random((self.lanes, 1)) < 0.5)
        problem = Problem(
            base.tables,
            base.model[pick],
            rates,
            base.slos_ms[pick] * rng.uniform(*SLO_SPREAD, size=shape),
            np.floor(rates * seconds),
            base.type_of[gpus],
            base.memory_mb[gpus],
            base.model_memory_mb[pick],
        )
        earlier = problem._replace(rates_rps=usual * rng.uniform(*RATE_SPREAD, size=shape))
        gpu, units = greedy(earlier)
        new = rng.random((self.lanes, 1)) >= KNOWN_BEFORE
        return problem, running(np.where(new, REJECTED, gpu), np.where(new, 0, units))


def greedy(problem: Problem) -> tuple[IntArray, IntArray]:
    """Place each model in turn where it gains most for the least additional share; shapes (E, n)."""
    episodes = Episodes(problem)
    while not episodes.done:
        seen = episodes.observe()
        gain, share = seen.actions[..., 0], seen.actions[..., 1]
        score = np.where(seen.valid, gain - 0.3 * share, -np.inf)
        score[:, 0] = -0.3
        episodes.place(score.argmax(axis=1))
    return episodes.gpu, episodes.units


class Reward(StrEnum):
    """The reward of a plan; see the module."""

    GOODPUT = "goodput"
    TERMINAL = "terminal"
    PAPER = "paper"


class Plays:
    """Plans in lockstep, all of which end at the same step; `reset` draws the next ones."""

    def __init__(self, draw: Around, reward: Reward = Reward.GOODPUT) -> None:
        self._draw = draw
        self._reward = reward

    def reset(self, rng: np.random.Generator) -> None:
        """Draw new problems, and the running assignment of each."""
        self.problem, self.before = self._draw(rng)
        self.episodes = Episodes(self.problem, self.before)
        self.seen = self.episodes.observe()
        self._total: FloatArray = np.zeros(len(self.problem.model))

    def step(self, actions: IntArray) -> FloatArray:
        """Place one model in each plan; return what that earns. Raises ValueError for a masked action."""
        if not self.seen.valid[np.arange(len(actions)), actions].all():
            raise ValueError("a masked action was chosen")
        self.episodes.place(actions)
        won: FloatArray = np.zeros(len(actions))
        if self.episodes.done or self._reward is Reward.GOODPUT:
            total = self._earned()
            won, self._total = total - self._total, total
        if not self.episodes.done:
            self.seen = self.episodes.observe()
        return won

    def _earned(self) -> FloatArray:
        problem, gpu, units = self.problem, self.episodes.gpu, self.episodes.units
        if self._reward is Reward.PAPER:
            outcome = goodput(problem, gpu, units)
            normalised = outcome.capacity_rps / problem.peak_rps - PENALTY * outcome.violated
            total: FloatArray = normalised.sum(axis=1)
            return total
        return gpu.shape[1] * worth(problem, gpu, units, self.before)


def taught(problem: Problem, before: Previous, rounds: int, seed: int, clock: Clock) -> IntArray:
    """Return the local search's action for each model of stacked problems, (E, n).

    With so many rounds of annealing each; a model whose SLO would not hold is rejected.
    """
    found = [
        search(
            problem.row(e),
            clock,
            seed=seed + e,
            rounds=rounds,
            previous=before._replace(gpu=before.gpu[e], units=np.maximum(before.units[e], 1)),
        )
        for e in range(len(problem.model))
    ]
    gpu, units = np.stack([f.gpu for f in found]), np.stack([f.units for f in found])
    late = goodput(problem, gpu, units).violated
    chosen: IntArray = np.where(late, 0, gpu * problem.tables.percent.shape[1] + units)
    return chosen

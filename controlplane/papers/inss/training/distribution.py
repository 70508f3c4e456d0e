"""Random variations of a spec's problem, so that a policy also fits later sizes, rates and SLOs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from controlplane.latency.protocol import IntArray
from controlplane.papers.inss.features import Episodes
from controlplane.papers.inss.place import running
from controlplane.papers.inss.problem import REJECTED, Problem
from controlplane.papers.inss.search import Previous

RATE_SPREAD = (1 / 3, 5 / 3)
"""One model's rate over the spec's, about the range of the rates in the authors' code."""
LOAD_SPREAD = (0.7, 1.7)
SLO_SPREAD = (0.75, 1.5)
MOST_BACKLOG_S = 0.02
KNOWN_BEFORE = 0.5
"""The part of the problems with a running assignment."""


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
        pick = _without_repeats(rng, models, shape)
        gpus = rng.integers(kinds, size=(self.lanes, self.gpus))
        fair = (self.gpus / self.n) / (kinds / models)
        load = fair * rng.uniform(*LOAD_SPREAD, size=(self.lanes, 1))
        usual = base.rates_rps[pick] * load
        rates = usual * rng.uniform(*RATE_SPREAD, size=shape)
        seconds = rng.uniform(0.0, MOST_BACKLOG_S, size=shape) * (rng.random((self.lanes, 1)) < 0.5)
        problem = Problem(
            base.surfaces,
            base.model[pick],
            rates,
            base.slos_ms[pick] * rng.uniform(*SLO_SPREAD, size=shape),
            np.floor(rates * seconds),
            base.type_of[gpus],
            base.memory_mb[gpus],
            base.model_memory_mb[pick],
        )
        earlier = replace(problem, rates_rps=usual * rng.uniform(*RATE_SPREAD, size=shape))
        gpu, units = greedy(earlier)
        new = rng.random((self.lanes, 1)) >= KNOWN_BEFORE
        return problem, running(np.where(new, REJECTED, gpu), np.where(new, 0, units))


def greedy(problem: Problem) -> tuple[IntArray, IntArray]:
    """Place each model in turn where it gains most for the least additional share; shapes (E, n)."""
    episodes = Episodes(problem)
    gpus, units = episodes.shape
    while not episodes.done:
        seen = episodes.observe()
        gain, share = seen.actions[..., 0], seen.actions[..., 2]
        score = np.where(seen.valid[:, :-1].reshape(share.shape), gain - 0.3 * share, -np.inf)
        score = score.reshape(len(score), -1)
        best = score.argmax(axis=1)
        reject = np.take_along_axis(score, best[:, None], axis=1)[:, 0] < -0.3
        episodes.place(np.where(reject, gpus * units, best))
    return episodes.gpu, episodes.units


def _without_repeats(rng: np.random.Generator, models: int, shape: tuple[int, int]) -> IntArray:
    """Draw indices below `models`, (lanes, n): each model once before any twice."""
    lanes, n = shape
    rounds = [rng.random((lanes, models)).argsort(axis=1) for _ in range(-(-n // models))]
    picked: IntArray = np.concatenate(rounds, axis=1)[:, :n]
    return picked

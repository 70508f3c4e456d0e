"""Demonstrations for the start of a training: the local search's placements as actions of the environment."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from controlplane.latency.protocol import IntArray
from controlplane.papers.inss.features import Episodes
from controlplane.papers.inss.problem import REJECTED, Problem, goodput
from controlplane.papers.inss.search import Previous, search
from controlplane.ports import Clock


@dataclass(frozen=True, slots=True)
class Teacher:
    """The assignments of each model of stacked problems, (E, n); REJECTED where its SLO would not hold."""

    gpu: IntArray
    units: IntArray

    @staticmethod
    def of(problem: Problem, before: Previous, rounds: int, seed: int, clock: Clock) -> Teacher:
        """Search each problem with so many rounds of annealing."""
        found = [
            search(
                _one(problem, e),
                clock,
                seed=seed + e,
                rounds=rounds,
                previous=replace(before, gpu=before.gpu[e], units=np.maximum(before.units[e], 1)),
            )
            for e in range(len(problem.model))
        ]
        gpu, units = np.stack([f.gpu for f in found]), np.stack([f.units for f in found])
        return Teacher(np.where(goodput(problem, gpu, units).violated, REJECTED, gpu), units)

    def action(self, episodes: Episodes) -> IntArray:
        """Return the teacher's actions for the next model of each episode, (E,)."""
        rows = np.arange(len(self.gpu))
        gpu, units = self.gpu[rows, episodes.at], self.units[rows, episodes.at]
        gpus, width = episodes.shape
        chosen: IntArray = np.where(gpu == REJECTED, gpus * width, gpu * width + units - 1)
        return chosen


def _one(problem: Problem, row: int) -> Problem:
    """Return one of stacked problems."""
    own = {f.name: getattr(problem, f.name) for f in fields(Problem)}
    return Problem(**{n: a[row] if isinstance(a, np.ndarray) else a for n, a in own.items()})

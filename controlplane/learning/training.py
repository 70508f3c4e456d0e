"""The training loop: episodes of random problems into the replay buffer, updates out of it, checks between.

Everything random comes from one seed and everything that changes is in the checkpoint: a run that was
interrupted and resumed ends with the weights of one that was not.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from controlplane.domain.errors import InputError
from controlplane.learning.batch import TensorObservation
from controlplane.learning.curve import Check
from controlplane.learning.distribution import Around
from controlplane.learning.environment import PlacementVectorEnv, Reward
from controlplane.learning.export import exported
from controlplane.learning.replay import Replay
from controlplane.learning.sac import Agent, Losses, SacSettings
from controlplane.learning.teacher import Teacher
from controlplane.planners.inss.policy import Weights, rollout
from controlplane.planners.inss.problem import REJECTED, Problem, goodput, value
from controlplane.planners.inss.search import Previous
from controlplane.ports import Clock, Progress


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """A run. A round is `lanes` episodes of one size, then `updates` updates of `batch` steps each.

    The first `shown` rounds are played by the local search, `shown_search` rounds of it a problem: what it
    did fills the replay buffer, and the agent learns from that as from its own steps.
    """

    seed: int = 1
    rounds: int = 400
    shown: int = 40
    shown_search: int = 2
    lanes: int = 64
    updates: int = 16
    batch: int = 128
    replay: int = 20_000
    check_every: int = 20
    check_problems: int = 256
    patience: int = 16
    """Checks without a better one after which training stops early."""
    reward: Reward = Reward.GOODPUT
    sac: SacSettings = field(default_factory=SacSettings)

    def of_length(self, rounds: int) -> TrainSettings:
        """The same with `rounds` rounds, as large a part of them demonstrations."""
        shown = max(round(self.shown * rounds / self.rounds), 1)
        return replace(self, rounds=rounds, shown=shown, check_every=min(self.check_every, rounds))


def sizes_up_to(models: int, gpus: int) -> list[tuple[int, int]]:
    """The sizes trained on, (models, GPUs): from about half of each up to all."""
    return [(n, k) for n in range((models + 1) // 2, models + 1) for k in range((gpus + 1) // 2, gpus + 1)]


@dataclass(frozen=True, slots=True)
class Trained:
    """The best policy by value on the problems kept apart, its learning curve, and why training stopped."""

    weights: Weights
    curve: tuple[Check, ...]
    stopped_by: str


def train(
    base: Problem,
    sizes: Sequence[tuple[int, int]],
    settings: TrainSettings,
    *,
    checkpoint: Path | None,
    progress: Progress,
    clock: Clock,
) -> Trained:
    """Train on problems of `sizes` (models, GPUs) around `base`; goes on from `checkpoint` if there is one.

    Raises InputError for a checkpoint of other settings.
    """
    run = _Run(base, sizes, settings, clock)
    if checkpoint is not None and checkpoint.exists():
        run.load(checkpoint)
    began, start = clock.monotonic(), run.round
    while (stopped_by := run.over()) is None:
        run.play()
        if run.round % settings.check_every == 0:
            run.check()
            if checkpoint is not None:
                run.save(checkpoint)
        done = run.round - start
        left = (clock.monotonic() - began) / done * (settings.rounds - run.round)
        progress.advance(run.told(), run.round, settings.rounds, left)
    assert run.best is not None
    return Trained(run.best, tuple(run.curve), stopped_by)


class _Run:
    """All that changes in training."""

    def __init__(
        self, base: Problem, sizes: Sequence[tuple[int, int]], settings: TrainSettings, clock: Clock
    ) -> None:
        # Sums in the same order, so the same weights: one thread, as many cores as there are.
        torch.set_num_threads(1)
        self._settings = settings
        self._clock = clock
        self._torch = torch.Generator().manual_seed(settings.seed)
        torch.manual_seed(settings.seed)
        self._rng = np.random.default_rng(settings.seed)
        held_out = np.random.default_rng([settings.seed, 1])
        self._envs = [
            PlacementVectorEnv(Around(base, n, k, settings.lanes), settings.reward) for n, k in sizes
        ]
        each = -(-settings.check_problems // len(sizes))
        self._held_out = [Around(base, n, k, each)(held_out) for n, k in sizes]
        units = base.surfaces.percent.shape[1]
        self._replay = Replay(settings.replay, settings.lanes, max(k for _, k in sizes), units)
        self._agent = Agent(settings.sac)
        self._reward = 0.0
        self._losses = Losses(0.0, 0.0, 0.0, 0.0)
        self.round = 0
        self.curve: list[Check] = []
        self.best: Weights | None = None
        self._since_best = 0
        self._told_of = f"{settings} {list(sizes)} {_digest(base)}"

    def over(self) -> str | None:
        """Why no further round is played, if none is."""
        if self.round >= self._settings.rounds:
            return "rounds"
        return "no better for long" if self._since_best >= self._settings.patience else None

    def told(self) -> str:
        """A line for the progress bar."""
        if not self.curve:
            return "training"
        last = self.curve[-1]
        return f"goodput {last.goodput_percent:.2f} %, violations {last.violations_percent:.2f} %"

    def play(self) -> None:
        """One round."""
        settings = self._settings
        env = self._envs[int(self._rng.integers(len(self._envs)))]
        env.reset(seed=int(self._rng.integers(2**31)))
        teacher = None
        if self.round < settings.shown:
            seed = int(self._rng.integers(2**31))
            teacher = Teacher.of(env.problem, env.before, settings.shown_search, seed, self._clock)
        seen, actions, rewards = [], [], []
        ended = False
        while not ended:
            state = env.seen
            if teacher is not None:
                action = teacher.action(env.episodes)
            else:
                action = self._agent.act(TensorObservation.of(state), self._torch).numpy()
            _, won, last, _, _ = env.step(action)
            seen.append(state)
            actions.append(action)
            rewards.append(won)
            ended = bool(last.all())
        self._replay.push(seen, actions, rewards)
        self._reward = float(np.sum(rewards, axis=0).mean())
        losses = [
            self._agent.update(self._replay.sample(self._rng, settings.batch), self.round / settings.rounds)
            for _ in range(settings.updates)
        ]
        self._losses = Losses(*(float(x) for x in np.mean(losses, axis=0)))
        self.round += 1

    def check(self) -> None:
        """A point of the curve; the best policy so far is kept."""
        weights = exported(self._agent.actor)
        judged = [_judged(problem, before, weights) for problem, before in self._held_out]
        good, broken, worth = (float(x) for x in np.mean(judged, axis=0))
        episodes = self.round * self._settings.lanes
        check = Check(self.round, episodes, self._reward, 100 * good, 100 * broken, worth, *self._losses)
        better = self.best is None or check.value > max(c.value for c in self.curve)
        self.curve.append(check)
        self._since_best = 0 if better else self._since_best + 1
        if better:
            self.best = weights

    def save(self, path: Path) -> None:
        """Replace the checkpoint in one step."""
        assert self.best is not None
        state = {
            "of": self._told_of,
            "round": self.round,
            "since_best": self._since_best,
            "curve": [asdict(c) for c in self.curve],
            "best": {name: torch.from_numpy(a) for name, a in asdict(self.best).items()},
            "agent": self._agent.state_dict(),
            "replay": self._replay.state_dict(),
            "rng": self._rng.bit_generator.state,
            "torch": self._torch.get_state(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        torch.save(state, temporary)
        os.replace(temporary, path)

    def load(self, path: Path) -> None:
        """Go on where `save` was. Raises InputError for another run's checkpoint and for a broken file."""
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except (RuntimeError, EOFError, OSError, LookupError, ValueError, pickle.UnpicklingError) as error:
            raise InputError(
                "is no checkpoint that can be read; delete it to begin anew", file=str(path)
            ) from error
        if state.get("of") != self._told_of:
            raise InputError(
                "is of a run with another spec, seed or settings; delete it to begin anew", file=str(path)
            )
        self.round, self._since_best = state["round"], state["since_best"]
        self.curve = [Check(**c) for c in state["curve"]]
        self.best = Weights.of({name: t.numpy() for name, t in state["best"].items()})
        self._agent.load_state_dict(state["agent"])
        self._replay.load_state_dict(state["replay"])
        self._rng.bit_generator.state = state["rng"]
        self._torch.set_state(state["torch"])


def _judged(problem: Problem, before: Previous, weights: Weights) -> tuple[float, float, float]:
    """Parts of the offered requests within their SLO, and on a model that breaks it; mean `problem.value`."""
    gpu, units = rollout(problem, weights, before)
    outcome = goodput(problem, gpu, units)
    offered = problem.rates_rps.sum(axis=1)
    broken = (problem.rates_rps * (outcome.violated & (gpu != REJECTED))).sum(axis=1)
    return (
        float((outcome.goodput_rps.sum(axis=1) / offered).mean()),
        float((broken / offered).mean()),
        float(value(problem, outcome).mean()),
    )


def _digest(problem: Problem) -> str:
    told = hashlib.sha256()
    for array in (
        problem.model,
        problem.rates_rps,
        problem.slos_ms,
        problem.type_of,
        problem.memory_mb,
        problem.model_memory_mb,
        problem.surfaces.alone_ms,
    ):
        told.update(np.ascontiguousarray(array).tobytes())
    return told.hexdigest()

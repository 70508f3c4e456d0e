"""The training loop: episodes of random problems fill the replay buffer, updates draw from it, checks follow.

All randomness comes from one seed and the checkpoint holds everything that changes, so an interrupted and
resumed training ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from controlplane.domain.errors import InputError
from controlplane.papers.inss.policy import Weights, rollout, written
from controlplane.papers.inss.problem import REJECTED, Previous, Problem, goodput, value
from controlplane.papers.inss.strategy import known_of, problem_of, tables_of
from controlplane.papers.inss.training.agent import (
    Agent,
    Losses,
    Replay,
    SacSettings,
    TensorObservation,
    exported,
)
from controlplane.papers.inss.training.episodes import Around, Plays, Reward, taught
from controlplane.planning.protocol import PlanRequest
from controlplane.ports import Clock, Progress

_FORMAT = 3
"""Of a checkpoint: another version's is refused."""
REWARDS: Mapping[str, Reward] = {kind.value: kind for kind in Reward}


@dataclass(frozen=True, slots=True)
class Check:
    """A point of the learning curve: the likeliest plans on held-out problems.

    reward: of the last round's episodes, with drawn actions or the search's. goodput_percent of the offered
    requests; violations_percent: the part of them for models that were placed and break their SLO; value as
    `problem.value`. Of the last round's updates: the critics' and the actor's loss, the temperature, and the
    policy's entropy in nats.
    """

    round: int
    episodes: int
    reward: float
    goodput_percent: float
    violations_percent: float
    value: float
    critic_loss: float
    actor_loss: float
    temperature: float
    entropy: float


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """A training. A round is `lanes` episodes of one size, then `updates` updates of `batch` steps each.

    In the first `shown` rounds the local search (`shown_search` rounds a problem) chooses the actions; the
    agent learns from them as from its own.
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
    """Training stops after so many checks without a better one."""
    reward: Reward = Reward.GOODPUT
    sac: SacSettings = field(default_factory=SacSettings)

    def of_length(self, rounds: int) -> TrainSettings:
        """Return the settings for `rounds` rounds, with the same part of demonstrations."""
        shown = max(round(self.shown * rounds / self.rounds), 1)
        return replace(self, rounds=rounds, shown=shown, check_every=min(self.check_every, rounds))


def sizes_up_to(models: int, gpus: int) -> list[tuple[int, int]]:
    """Return the sizes to train on, (models, GPUs): from about half of each up to all."""
    return [(n, k) for n in range((models + 1) // 2, models + 1) for k in range((gpus + 1) // 2, gpus + 1)]


@dataclass(frozen=True, slots=True)
class Trained:
    """The policy with the best value on held-out problems, its learning curve, and why training stopped."""

    weights: Weights
    curve: tuple[Check, ...]
    stopped_by: str

    def file(self, about: Mapping[str, object]) -> bytes:
        """Return the policy's file; `about` says how it was trained."""
        return written(self.weights, about)


def train_on(
    request: PlanRequest,
    settings: TrainSettings,
    most_models: int | None,
    *,
    checkpoint: Path,
    progress: Progress,
    clock: Clock,
) -> tuple[Trained, list[tuple[int, int]]]:
    """Train on problems like a request's, of at most so many models; return the sizes too."""
    known, _ = known_of(request)
    base = problem_of(request, known, *tables_of(request, known))
    sizes = sizes_up_to(min(most_models or len(base.model), len(base.model)), len(base.type_of))
    return train(base, sizes, settings, checkpoint=checkpoint, progress=progress, clock=clock), sizes


def train(
    base: Problem,
    sizes: Sequence[tuple[int, int]],
    settings: TrainSettings,
    *,
    checkpoint: Path | None,
    progress: Progress,
    clock: Clock,
) -> Trained:
    """Train on problems of `sizes` (models, GPUs) around `base`; continue from `checkpoint` if there is one.

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
        progress.advance(run.summary(), run.round, settings.rounds, left)
    assert run.best is not None
    return Trained(run.best, tuple(run.curve), stopped_by)


class _Run:
    """The state of a training."""

    def __init__(
        self, base: Problem, sizes: Sequence[tuple[int, int]], settings: TrainSettings, clock: Clock
    ) -> None:
        # One thread, on any number of cores: sums in the same order give the same weights.
        torch.set_num_threads(1)
        self._settings = settings
        self._clock = clock
        self._torch = torch.Generator().manual_seed(settings.seed)
        torch.manual_seed(settings.seed)
        self._rng = np.random.default_rng(settings.seed)
        held_out = np.random.default_rng([settings.seed, 1])
        self._plays = [Plays(Around(base, n, k, settings.lanes), settings.reward) for n, k in sizes]
        each = -(-settings.check_problems // len(sizes))
        self._held_out = [Around(base, n, k, each)(held_out) for n, k in sizes]
        units = base.tables.percent.shape[1]
        actions = 1 + max(k for _, k in sizes) * units
        self._replay = Replay(settings.replay, settings.lanes, actions)
        self._agent = Agent(settings.sac)
        self._reward = 0.0
        self._losses = Losses(0.0, 0.0, 0.0, 0.0)
        self.round = 0
        self.curve: list[Check] = []
        self.best: Weights | None = None
        self._since_best = 0
        digest = hashlib.sha256()
        for array in (*base[1:], base.tables.alone_ms):
            digest.update(np.ascontiguousarray(array).tobytes())
        self._identity = f"{_FORMAT} {settings} {list(sizes)} {digest.hexdigest()}"

    def over(self) -> str | None:
        """Return why training has ended, None while it has not."""
        if self.round >= self._settings.rounds:
            return "rounds"
        return "no improvement" if self._since_best >= self._settings.patience else None

    def summary(self) -> str:
        """Return a line for the progress bar."""
        if not self.curve:
            return "training"
        last = self.curve[-1]
        return f"goodput {last.goodput_percent:.2f} %, violations {last.violations_percent:.2f} %"

    def play(self) -> None:
        """Run one round: episodes, then updates."""
        settings = self._settings
        plays = self._plays[int(self._rng.integers(len(self._plays)))]
        plays.reset(np.random.default_rng(int(self._rng.integers(2**31))))
        shown = None
        if self.round < settings.shown:
            seed = int(self._rng.integers(2**31))
            shown = taught(plays.problem, plays.before, settings.shown_search, seed, self._clock)
        seen, actions, rewards = [], [], []
        while not plays.episodes.done:
            seen.append(plays.seen)
            if shown is not None:
                actions.append(shown[np.arange(len(shown)), plays.episodes.at])
            else:
                actions.append(self._agent.act(TensorObservation.of(plays.seen), self._torch).numpy())
            rewards.append(plays.step(actions[-1]))
        self._replay.push(seen, actions, rewards)
        self._reward = float(np.sum(rewards, axis=0).mean())
        losses = [
            self._agent.update(self._replay.sample(self._rng, settings.batch), self.round / settings.rounds)
            for _ in range(settings.updates)
        ]
        self._losses = Losses(*(float(x) for x in np.mean(losses, axis=0)))
        self.round += 1

    def check(self) -> None:
        """Add a point to the curve, and keep the policy if it is the best so far."""
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
            "of": self._identity,
            "round": self.round,
            "since_best": self._since_best,
            "curve": [asdict(c) for c in self.curve],
            "best": {name: torch.from_numpy(a) for name, a in asdict(self.best).items()},
            "agent": self._agent.state(),
            "replay": self._replay.state(),
            "rng": self._rng.bit_generator.state,
            "torch": self._torch.get_state(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        torch.save(state, temporary)
        os.replace(temporary, path)

    def load(self, path: Path) -> None:
        """Restore a saved state. Raises InputError for another training's checkpoint and a broken file."""
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except (RuntimeError, EOFError, OSError, LookupError, ValueError, pickle.UnpicklingError) as error:
            raise InputError(
                "is not a readable checkpoint; delete it to start again", file=str(path)
            ) from error
        if state.get("of") != self._identity:
            raise InputError(
                "belongs to a training with another version, spec, seed or settings; "
                "delete it to start again",
                file=str(path),
            )
        self.round, self._since_best = state["round"], state["since_best"]
        self.curve = [Check(**c) for c in state["curve"]]
        self.best = Weights.of({name: t.numpy() for name, t in state["best"].items()})
        self._agent.restore(state["agent"])
        self._replay.restore(state["replay"])
        self._rng.bit_generator.state = state["rng"]
        self._torch.set_state(state["torch"])


def _judged(problem: Problem, before: Previous, weights: Weights) -> tuple[float, float, float]:
    """Return the parts of the offered requests within and beyond their SLO, and the mean `problem.value`."""
    gpu, units = rollout(problem, weights, before)
    outcome = goodput(problem, gpu, units)
    offered = problem.rates_rps.sum(axis=1)
    broken = (problem.rates_rps * (outcome.violated & (gpu != REJECTED))).sum(axis=1)
    return (
        float((outcome.goodput_rps.sum(axis=1) / offered).mean()),
        float((broken / offered).mean()),
        float(value(problem, outcome).mean()),
    )

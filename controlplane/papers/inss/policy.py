"""The trained policy in plain numpy: its observations, the network of `training.agent`, and its file.

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

One plan takes the likeliest actions and a few are drawn. All run in lockstep, which costs little, and the one
with the best exact value is taken.
"""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.errors import InputError
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.papers.inss.problem import REJECTED, SLACK, Outcome, Previous, Problem, goodput, value

FORMAT = 2
"""The `schema_version` of a policy's file."""
DRAWN = 7
"""Drawn plans beside the greedy one."""
FEW = 1000
"""Plans are drawn up to so many models times GPUs. Beyond, the time is better spent on the search."""
ACTION_FEATURES = 7
STEP_FEATURES = 6
FEATURES = ACTION_FEATURES + STEP_FEATURES
CLIP = 4.0
NEVER = 1.5
"""The need of a model that no share holds alone."""
FloatArray32 = NDArray[np.float32]


class Observation(NamedTuple):
    """One step of E plans: features of all actions (E, 1 + K U, FEATURES), and which are valid."""

    actions: FloatArray32
    valid: BoolArray


class Episodes:
    """E plans of stacked problems, in lockstep: `observe` one model each, `place` it, until `done`.

    `before` is the running plan, of shape (E, n); REJECTED where a model is new. Of each GPU (E, K): percent,
    MB and L2 utilisation taken, the rate that holds its SLO, and the models there, `members` (E, K, most).
    """

    def __init__(self, problem: Problem, before: Previous | None = None) -> None:
        count, n = problem.model.shape
        gpus, width = problem.type_of.shape[1], problem.tables.percent.shape[1]
        self._problem = problem
        need = _needs(problem)
        self._order = np.argsort(-need, axis=1, kind="stable")
        self._to_come = _to_come(problem, need, self._order)
        self.shape = gpus, width
        self.gpu = np.full((count, n), REJECTED)
        self.units = np.zeros((count, n), dtype=np.int64)
        self._before = before or Previous(self.gpu.copy(), self.units.copy(), 0.0)
        self._share, self._memory_mb, self._pressed, self._good = np.zeros((4, count, gpus))
        self._members = np.full((count, gpus, min(n, width)), REJECTED)
        self._step = 0

    @property
    def done(self) -> bool:
        """Whether all models are placed or rejected."""
        return self._step == self._order.shape[1]

    @property
    def at(self) -> IntArray:
        """The model that each plan places next, (E,)."""
        return self._order[:, self._step]

    def observe(self) -> Observation:
        """Return the observation before the next placement; every action is evaluated exactly."""
        problem, (gpus, width) = self._problem, self.shape
        count, at = len(problem.model), self.at
        actions = np.zeros((count, 1 + gpus * width, FEATURES), dtype=np.float32)
        actions[..., ACTION_FEATURES:] = self._step_features()[:, None, :]
        valid = np.zeros(actions.shape[:2], dtype=np.bool_)
        valid[:, 0] = True
        e, k, u = np.nonzero(self._room(at))
        outcome = self._beside(e, k, u + 1)
        # Later neighbours only slow it: where it does not hold now, rejecting it is as good.
        holds = np.flatnonzero(~outcome.violated[:, -1])
        e, k, u, i = e[holds], k[holds], u[holds], at[e[holds]]
        model, kind = problem.model[e, i], problem.type_of[e, k]
        taken = self._share[e, k] + problem.tables.percent[kind, u]
        gained = outcome.goodput_rps[holds].sum(axis=1) - self._good[e, k]
        capacity = outcome.capacity_rps[holds, -1] / problem.tables.peak_rps[model]
        known = np.where(self._before.units[e, i] == u + 1, 1.0, 0.5)
        actions[e, 1 + k * width + u, :ACTION_FEATURES] = np.stack(
            [
                np.clip(gained / problem.rates_rps.mean(axis=1)[e], -CLIP, CLIP),
                problem.tables.percent[kind, u] / 100.0,
                1.0 - taken / 100.0,
                1.0 - outcome.latency_ms[holds, -1] / problem.slos_ms[e, i],
                np.minimum(capacity, CLIP) / CLIP,
                (self._pressed[e, k] + problem.tables.l2_percent[model, kind, u]) / 100.0,
                np.where(self._before.gpu[e, i] == k, known, 0.0),
            ],
            axis=-1,
        )
        valid[e, 1 + k * width + u] = True
        return Observation(actions, valid)

    def place(self, action: IntArray) -> None:
        """Take one valid action for each plan, (E,)."""
        problem, e = self._problem, np.flatnonzero(action)
        k, u = np.divmod(action[e] - 1, self.shape[1])
        i, kind = self.at[e], problem.type_of[e, k]
        self._good[e, k] = self._beside(e, k, u + 1).goodput_rps.sum(axis=1)
        self._members[e, k, (self._members[e, k] >= 0).sum(axis=1)] = i
        self.gpu[e, i], self.units[e, i] = k, u + 1
        self._share[e, k] += problem.tables.percent[kind, u]
        self._memory_mb[e, k] += problem.model_memory_mb[e, i, kind]
        self._pressed[e, k] += problem.tables.l2_percent[problem.model[e, i], kind, u]
        self._step += 1

    def _room(self, at: IntArray) -> BoolArray:
        """Return where a model of each plan fits by (1a) and (1b), (E, K, U)."""
        problem, e = self._problem, np.arange(len(at))[:, None]
        needs = problem.model_memory_mb[e, at[:, None], problem.type_of]
        times = problem.tables.alone_ms[problem.model[e, at[:, None]], problem.type_of, 0, 0]
        space = (self._memory_mb + needs <= problem.memory_mb) & np.isfinite(times)
        return np.asarray((self._share[..., None] + problem.percent <= 100.0 + SLACK) & space[..., None])

    def _beside(self, e: IntArray, k: IntArray, units: IntArray) -> Outcome:
        """Evaluate GPUs k of plans e, with the next model there as the last of each row."""
        most = int((self._members[e, k] >= 0).sum(axis=1).max(initial=0))
        who = np.column_stack([self._members[e, k, :most], self.at[e]])
        here = _gpus_alone(self._problem, e[:, None], who, self._problem.type_of[e, k])
        share = np.column_stack([self.units[e[:, None], who[:, :-1]], units])
        return goodput(here, np.where(who < 0, REJECTED, 0), share)

    def _step_features(self) -> FloatArray:
        """Return what is to come beside what is free, (E, STEP_FEATURES)."""
        total, need, largest, rate, later_mb = self._to_come[:, self._step].T
        free = np.maximum(1.0 - self._share / 100.0, 0.0).sum(axis=1)
        free_mb = self._problem.memory_mb.sum(axis=1) - self._memory_mb.sum(axis=1)
        return np.stack(
            [
                np.minimum(total / np.maximum(free, 0.01), CLIP),
                np.minimum(rate, 10.0) / 10.0,
                np.minimum(rate / np.maximum(need, 0.01), 10.0) / 10.0,
                largest,
                np.minimum(later_mb / (free_mb + 1.0), CLIP),
                free / self.shape[0],
            ],
            axis=-1,
        )


def _gpus_alone(problem: Problem, e: IntArray, who: IntArray, kind: IntArray) -> Problem:
    """Return a problem of one GPU of type `kind` for each row of models `who` (rows, models) of plans e.

    For `goodput`, which evaluates no memory.
    """
    return problem._replace(
        model=problem.model[e, who],
        rates_rps=problem.rates_rps[e, who],
        slos_ms=problem.slos_ms[e, who],
        backlog=problem.backlog[e, who],
        type_of=kind[:, None],
    )


def _needs(problem: Problem) -> FloatArray:
    """Return the least share, of 1, at which each model alone holds on some GPU, else NEVER; (E, n)."""
    percent, shape = problem.tables.percent, problem.model.shape
    e, i, t, u = (index.ravel() for index in np.indices((*shape, *percent.shape)))
    alone = _gpus_alone(problem, e[:, None], i[:, None], t)
    late = goodput(alone, np.zeros((e.size, 1), dtype=np.int64), u[:, None] + 1).violated
    need = np.where(late[:, 0], NEVER, percent[t, u] / 100.0).reshape(*shape, *percent.shape).min(axis=3)
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


@dataclass(frozen=True, slots=True)
class Weights:
    """Matrices as (inputs, outputs): (FEATURES, W), (W, W), (W, 1), each with its bias."""

    first: FloatArray32
    first_bias: FloatArray32
    second: FloatArray32
    second_bias: FloatArray32
    score: FloatArray32
    score_bias: FloatArray32

    @staticmethod
    def of(arrays: Mapping[str, FloatArray32]) -> Weights:
        """Check names, shapes and numbers. Raises InputError naming what is wrong."""
        names = [f.name for f in fields(Weights)]
        if set(arrays) != set(names):
            odd = ", ".join(sorted(set(arrays) ^ set(names)))
            raise InputError(f"has other weights than this version's policy: {odd}; train it anew")
        width = arrays["second"].shape[-1]
        wanted: dict[str, tuple[int, ...]] = {
            "first": (FEATURES, width),
            "second": (width, width),
            "score": (width, 1),
        }
        wanted |= {f"{name}_bias": shape[1:] for name, shape in wanted.items()}
        for name, shape in wanted.items():
            if arrays[name].shape != shape:
                raise InputError(f"must have the shape {shape}, not {arrays[name].shape}", field=name)
            if not np.isfinite(arrays[name]).all():
                raise InputError("must be finite", field=name)
        return Weights(**{name: np.ascontiguousarray(arrays[name], dtype=np.float32) for name in names})


@functools.cache
def built_in() -> Weights:
    """Return the policy of the package; its file says how it was trained."""
    file = resources.files(__package__ or "").joinpath("policy.npz")
    return read(file.read_bytes(), file.name)[0]


def read(raw: bytes, file: str) -> tuple[Weights, Mapping[str, object]]:
    """Return the weights and the `about` of a policy's file. Raises InputError naming the file."""
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            kept = {name: arrays[name] for name in arrays.files}
        about = json.loads(kept.pop("about").tobytes())
        if about.get("schema_version") != FORMAT:
            raise InputError(f"this version reads schema_version: {FORMAT}", file=file)
        return Weights.of(kept), about
    except InputError as error:
        raise InputError(error.problem, file=file, field=error.field) from None
    except (OSError, EOFError, ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError("is not a policy of `ctl train`", file=file) from error


def written(weights: Weights, about: Mapping[str, object]) -> bytes:
    """Return a policy's file: the weights as arrays, and their origin."""
    text = json.dumps({"schema_version": FORMAT, **about}, allow_nan=False)
    stream = io.BytesIO()
    np.savez_compressed(stream, **asdict(weights), about=np.frombuffer(text.encode(), dtype=np.uint8))
    return stream.getvalue()


def scores(weights: Weights, seen: Observation) -> FloatArray32:
    """Return the logits of all actions, (E, 1 + K U), -inf for masked ones."""
    w = weights
    hidden = np.maximum(seen.actions[seen.valid] @ w.first + w.first_bias, 0.0)
    hidden = np.maximum(hidden @ w.second + w.second_bias, 0.0)
    logits = np.full(seen.valid.shape, -np.inf, dtype=np.float32)
    logits[seen.valid] = (hidden @ w.score + w.score_bias)[:, 0]
    return logits


def decide(
    problem: Problem, weights: Weights, before: Previous | None = None, *, seed: int = 1, drawn: int = DRAWN
) -> tuple[IntArray, IntArray]:
    """Return the policy's plan of one problem: GPU (n,), REJECTED for none, and units (n,).

    `before` is what runs now. The same seed gives the same plan.
    """
    if len(problem.model) * len(problem.type_of) > FEW:
        drawn = 0
    plans = Problem.stack([problem] * (drawn + 1))
    if before is not None:
        gpu, units = (np.tile(a, (drawn + 1, 1)) for a in (before.gpu, before.units))
        before = Previous(gpu, units, before.cost)
    gpu, units = rollout(plans, weights, before, np.random.default_rng(seed) if drawn else None)
    best = int(np.argmax(worth(plans, gpu, units, before)))
    return gpu[best], units[best]


def rollout(
    problem: Problem,
    weights: Weights,
    before: Previous | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[IntArray, IntArray]:
    """Plan each stacked problem, (E, n), by the likeliest actions; with `rng` all but the first draw."""
    episodes = Episodes(problem, before)
    while not episodes.done:
        logits = scores(weights, episodes.observe())
        if rng is not None:
            # The largest of logits with Gumbel noise is a draw from their softmax.
            noise = rng.gumbel(size=logits.shape)
            noise[0] = 0.0
            logits = logits + noise
        episodes.place(logits.argmax(axis=1))
    return episodes.gpu, episodes.units


def worth(problem: Problem, gpu: IntArray, units: IntArray, before: Previous | None) -> FloatArray:
    """Return `problem.value` of assignments (E, n) of stacked problems minus the cost of moves, (E,)."""
    total = value(problem, goodput(problem, gpu, units))
    if before is None:
        return total
    moved = (before.gpu != REJECTED) & ((gpu != before.gpu) | (units != before.units))
    less: FloatArray = total - before.cost * moved.sum(axis=1)
    return less

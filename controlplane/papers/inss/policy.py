"""The trained policy in plain numpy: the network of `training.agent` by its weights, and its file.

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

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.papers.inss.features import (
    FEATURES,
    Episodes,
    FloatArray32,
    Observation,
)
from controlplane.papers.inss.problem import REJECTED, Problem, goodput, value
from controlplane.papers.inss.search import Previous

FORMAT = 2
"""The `schema_version` of a policy's file."""
DRAWN = 7
"""Drawn plans beside the greedy one."""
FEW = 1000
"""Plans are drawn up to so many models times GPUs. Beyond, the time is better spent on the search."""


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

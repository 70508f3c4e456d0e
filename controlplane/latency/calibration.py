"""Calibration: factors between predicted and observed execution times, by model, device and neighbours.

A factor is the geometric mean of observed over predicted execution times, drawn towards 1 by the weight of
PRIOR batches, so that few batches change little. An observation of too few batches, or beyond any plausible
error, changes nothing: then something else is wrong (another model, a stalled host), not the latency model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.profile import Factor
from controlplane.latency.adjusted import Adjusted, Change
from controlplane.latency.protocol import FloatArray, LatencyModel, Slots

FEWEST_BATCHES = 30
PRIOR = 100
MEMORY = 10_000
"""The most batches that a factor counts: older ones fade, so that a new driver's times are learned."""
PLAUSIBLE = (0.5, 2.0)
WIDEST_VARIATION = 0.5
SATURATED = 0.7
"""A quota limits a partition that uses it up: one that is busy for this part of the time, ..."""
LONG_MS = 20.0
"""... or a batch of at least two quota periods that follows another: it has little unused quota left."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Batches of one model beside given neighbours: their mean execution time, observed and predicted.

    `neighbours` names the models of all other busy partitions of the GPU, sorted, one entry each; `variation`
    is the coefficient of variation of their means from window to window, `at_s` seconds since the epoch.
    """

    model: str
    device: str
    neighbours: tuple[str, ...]
    predicted_ms: float
    observed_ms: float
    batches: int
    variation: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch size of one partition, which executed for the part `busy` of the time.

    `unmeasured` says why it cannot be compared with the prediction, `refused` why it changes no factor; both
    are None for a usable observation.
    """

    partition: str
    batch: int
    busy: float
    observation: Observation
    unmeasured: str | None
    refused: str | None

    @staticmethod
    def of(
        partition: str, batch: int, busy: float, observation: Observation, *, quota: bool, queued: bool
    ) -> Seen:
        """Judge an observation.

        `quota`: the share is a quota of processor time, which limits only a partition that uses it up.
        `queued`: the requests waited for the batch before, so the share was in use when this one began.
        """
        unmeasured = too_few(observation)
        bound = busy >= SATURATED or (queued and observation.predicted_ms >= LONG_MS)
        if unmeasured is None and quota and not bound:
            short = f"is shorter than {LONG_MS:g} ms" if queued else "waits for no other"
            unmeasured = f"busy {busy:.0%} of the time, and a batch that {short} runs on quota that lay idle"
        return Seen(partition, batch, busy, observation, unmeasured, unmeasured or refusal(observation))


def too_few(observation: Observation) -> str | None:
    """Return the problem if there are too few batches for a mean, else None."""
    if observation.batches >= FEWEST_BATCHES:
        return None
    noun = "batch" if observation.batches == 1 else "batches"
    return f"only {observation.batches} {noun}, {FEWEST_BATCHES} are needed"


def refusal(observation: Observation) -> str | None:
    """Return why an observation changes no factor, None for a usable one."""
    few = too_few(observation)
    if few is not None:
        return few
    numbers = (observation.predicted_ms, observation.observed_ms, observation.variation, observation.at_s)
    if not all(map(math.isfinite, numbers)) or min(numbers[:2]) <= 0:
        return "a time is not a positive, finite number"
    ratio = observation.observed_ms / observation.predicted_ms
    if not PLAUSIBLE[0] <= ratio <= PLAUSIBLE[1]:
        return f"observed {ratio:.2f} times the prediction, beyond any error of a latency model"
    if observation.variation > WIDEST_VARIATION:
        return f"the means vary by {observation.variation:.0%} from one moment to the next"
    return None


def update(factors: Iterable[Factor], observations: Iterable[Observation]) -> tuple[Factor, ...]:
    """Return the factors after these observations, sorted by key; refused observations change nothing.

    `predicted_ms` of an observation is the uncalibrated prediction.
    """
    kept = {f.key: f for f in factors}
    for seen in observations:
        if refusal(seen) is not None:
            continue
        key = (seen.model, seen.device, tuple(sorted(seen.neighbours)))
        before = kept.get(key)
        weight = min(before.batches, MEMORY) if before else 0
        # The stored factor is already drawn towards 1: its evidence is ln(factor) (weight + PRIOR).
        evidence = math.log(before.factor) * (weight + PRIOR) if before else 0.0
        evidence += seen.batches * math.log(seen.observed_ms / seen.predicted_ms)
        total = weight + seen.batches
        factor = math.exp(evidence / (total + PRIOR))
        at_s = max(seen.at_s, before.at_s) if before else seen.at_s
        kept[key] = Factor(*key, factor=factor, batches=total, at_s=at_s)
    return tuple(kept[key] for key in sorted(kept))


def scaled(
    factors: Iterable[Factor], model: str, device: str, ratio: float, at_s: float
) -> tuple[Factor, ...]:
    """Return the factors with those of a model on a device, beside all neighbours, multiplied by `ratio`.

    One that was not known counts as PRIOR batches.
    """
    known = tuple(factors)
    others = [factor for factor in known if (factor.model, factor.device) != (model, device)]
    mine = [factor for factor in known if factor not in others]
    mine = mine or [Factor(model, device, (), factor=1.0, batches=PRIOR, at_s=at_s)]
    mine = [replace(one, factor=ratio * one.factor, at_s=at_s) for one in mine]
    return tuple(sorted((*others, *mine), key=lambda factor: factor.key))


@dataclass(frozen=True, slots=True)
class Calibrated(Adjusted):
    """A latency model with factors: those for a slot's neighbours, else for the most similar neighbours."""

    factors: tuple[Factor, ...]

    @staticmethod
    def of(model: LatencyModel, device: str, factors: Sequence[Factor]) -> LatencyModel:
        """Return `model` with the factors of this device; or `model` itself without any."""
        names = set(model.models)
        own = tuple(
            f for f in factors if f.device == device and f.model in names and names.issuperset(f.neighbours)
        )
        return Calibrated(model, own) if own else model

    def change(self, slots: Slots) -> Change:
        """Return the multiplication of every time by the factor of its slot."""
        factor = self._at(slots)
        return lambda time_ms: time_ms * factor

    def factor(self, model: str, neighbours: Iterable[str]) -> Factor | None:
        """Return the factor that corrects a model beside these neighbours; None where there is none."""
        beside = self._counts(neighbours)
        mine = (f for f in self.factors if f.model == model)
        return min(mine, key=lambda f: float(_apart(beside, self._counts(f.neighbours))), default=None)

    def _at(self, slots: Slots) -> FloatArray:
        """Return the factor of each slot, shape (GPUs, slots)."""
        index = {name: i for i, name in enumerate(self.models)}
        one_hot = (slots.model[:, :, None] == np.arange(len(index))) & slots.mask[:, :, None]
        others = one_hot.sum(axis=1)[:, None, :] - one_hot
        answer = np.ones(slots.mask.shape)
        nearest = np.full(slots.mask.shape, np.inf)
        for entry in self.factors:
            distance = _apart(others, self._counts(entry.neighbours))
            better = (slots.model == index[entry.model]) & slots.mask & (distance < nearest)
            answer = np.where(better, entry.factor, answer)
            nearest = np.where(better, distance, nearest)
        return answer

    def _counts(self, names: Iterable[str]) -> FloatArray:
        """Return how often each model is among these, shape (models,)."""
        found = Counter(names)
        return np.array([found[name] for name in self.models], dtype=float)


def _apart(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return the number of neighbours in which counts by model (last axis) differ.

    The nearest factor holds, of several the first by key.
    """
    distance: FloatArray = np.abs(one - other).sum(axis=-1)
    return distance

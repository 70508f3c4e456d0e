"""The contents of one GPU that earn most at given prices: the columns of the closer lower bound.

Of up to three partitions what they do to each other is counted; of more, each has the least harmful
neighbours that there are.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.planning.exact.effects import LEVELS, PairEffects

_MOST_PAIRS = 2_000
"""Pairs to which thirds are tried in a round: the rest count with what they earn at most."""
_MANY = 4
"""Partitions from which on neighbours are the least harmful ones."""

Part = tuple[int, int]
"""An option, and the level at which its neighbours slow it."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Parts of one GPU, and what they earn."""

    earned: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """Everything that a GPU of a type may hold.

    `pair` (2, pairs) are options that fit together, the larger share first, and `felt` (2, pairs) how much
    they slow each other; `left` (pairs,) is the room that a third may take. `least` (options,): by how much
    the least harmful neighbour slows each. `weight` (options,) and `room` of the GPU are in units, rounded
    down: what fits in percent fits in units.
    """

    effects: PairEffects
    pair: IntArray
    felt: FloatArray
    left: IntArray
    least: FloatArray
    weight: IntArray
    room: int

    @staticmethod
    def of(effects: PairEffects) -> Gpu:
        """Look at every two options once."""
        effect, percents = effects.effect, effects.gpu_type.percents
        unit = min(percents[0], np.diff(percents).min(initial=percents[0]))
        weight = np.floor(effects.percent / unit + 1e-6).astype(np.int64)
        room = int(100.0 / unit + 1e-6)
        order = np.argsort(np.argsort(-weight, kind="stable"))
        a, b = np.nonzero(np.isfinite(effect) & (order[:, None] <= order))
        felt, left = (
            np.stack([effect[a, b], effect[b, a]]),
            np.minimum(room - weight[a] - weight[b], weight[b]),
        )
        # What fits beside nothing is in no pair.
        least = np.where(np.isfinite(effect), effect, np.inf).min(axis=1)
        least = np.where(np.isfinite(least), least, 0.0)
        return Gpu(effects, np.stack([a, b]), felt, left, least, weight, room)

    def best(self, worth: FloatArray, price: float) -> tuple[list[Contents], float]:
        """Contents that earn more than the price of a GPU, and what none earns more than.

        `worth` (options, levels).
        """
        options = np.arange(worth.shape[0])[None]
        found = [*self._contents(worth, options, np.zeros(options.shape)), *self._many(worth)]
        found += self._contents(worth, self.pair, self.felt)
        above = max(price, *(c.earned for c in found))
        # A third beside each pair, the most promising ones first.
        sure = self._worth(worth, self.pair, self.felt + self.least[self.pair]).sum(axis=0)
        third = self._worth(worth, options[0], 2.0 * self.least)
        best_third = np.zeros(self.room + 1)
        np.maximum.at(best_third, self.weight, third)
        at_most = np.where(self.left > 0, sure + np.maximum.accumulate(best_third)[self.left], 0.0)
        likely = np.flatnonzero(at_most > above)
        likely = likely[np.argsort(-at_most[likely], kind="stable")]
        if likely.size:
            some = likely[:_MOST_PAIRS]
            fits = self.weight <= self.left[some, None]
            row, c = np.nonzero(fits & (sure[some, None] + third > above))
            found += self._thirds(worth, some[row], c)
        most = max(above, *(c.earned for c in found))
        if likely.size > _MOST_PAIRS:
            most = max(most, float(at_most[likely[_MOST_PAIRS]]))
        return [c for c in found if c.earned > price], most

    def _thirds(self, worth: FloatArray, pair: IntArray, c: IntArray) -> list[Contents]:
        """The best contents of these pairs with these thirds."""
        effect, (a, b) = self.effects.effect, self.pair[:, pair]
        felt = [effect[a, b] + effect[a, c], effect[b, a] + effect[b, c], effect[c, a] + effect[c, b]]
        return self._contents(worth, np.stack([a, b, c]), np.stack(felt))

    @staticmethod
    def _worth(worth: FloatArray, option: IntArray, felt: FloatArray) -> FloatArray:
        return np.asarray(worth[option, _level_of(felt)])

    def _contents(self, worth: FloatArray, option: IntArray, felt: FloatArray) -> list[Contents]:
        """The best of these sets (parts, sets) for each two models of its largest: so fewer rounds do."""
        level = _level_of(felt)
        value = worth[option, level].sum(axis=0)
        key = self.effects.model[option[:2]]
        order = np.lexsort((-value, *key))
        heads = np.flatnonzero((np.diff(key[:, order], prepend=-1, axis=1) != 0).any(axis=0))
        return [
            Contents(float(value[n]), tuple(zip(option[:, n].tolist(), level[:, n].tolist(), strict=True)))
            for n in order[heads].tolist()
        ]

    def _many(self, worth: FloatArray) -> list[Contents]:
        """The best contents of four or more, each beside the three least harmful: a knapsack."""
        felt = np.maximum(self.effects.by_three, 3.0 * self.least)
        fits = np.isfinite(felt)
        level = _level_of(np.where(fits, felt, 0.0))
        value = np.where(fits, worth[np.arange(level.size), level], 0.0)
        heaviest = np.unique(self.weight)
        option = np.array([np.where(self.weight == w, value, -1.0).argmax() for w in heaviest])
        # Rows: with one partition more each, the last one with four or more.
        best = np.full((_MANY + 1, self.room + 1), -np.inf)
        last = np.full(best.shape, -1)
        best[0] = 0.0
        for n, units in itertools.product(range(1, _MANY + 1), range(1, self.room + 1)):
            taken = np.flatnonzero(heaviest <= units)
            before = best[n - 1, units - heaviest[taken]]
            if n == _MANY:
                before = np.maximum(before, best[n, units - heaviest[taken]])
            total = before + value[option[taken]]
            if total.size and total.max() > best[n, units]:
                best[n, units], last[n, units] = total.max(), taken[total.argmax()]
        parts, n, left = list[Part](), _MANY, self.room
        while n > 0 and last[n, left] >= 0:
            own = int(option[last[n, left]])
            parts.append((own, int(level[own])))
            left -= int(self.weight[own])
            if n < _MANY or best[n - 1, left] >= best[n, left]:
                n -= 1
        return [Contents(float(best[_MANY, self.room]), tuple(parts))] if parts else []


def _level_of(felt: FloatArray) -> IntArray:
    """The index of the largest of `LEVELS` up to each."""
    return np.asarray(np.searchsorted(LEVELS, felt, side="right") - 1)

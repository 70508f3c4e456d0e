"""Rates of all workloads as estimates with bounds, from counts of arrivals.

Counts come in steps of a fixed length; a step that was not seen is NaN, not zero. Of the last `KEPT` steps
the newest that agree with one rate are the *stretch*: a step in the rate shortens it, so that an estimate
rests on all that still applies and on nothing else. Bounds are those of a count with the variance
`dispersion` times its mean, by the square root, whose variance does not depend on the rate.

The profile of a day (`Days`) says how a rate goes on from now, not how high it is: that is for the counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

KEPT = 120
_AGE = np.arange(KEPT - 1, -1, -1, dtype=np.float64)[None, :]
CUT_Z = 4.0
"""Deviations between an older and a newer part of a stretch from which on the older part is dropped."""
_FEWEST = 4
"""Steps in a lower bound: the first of a stretch may hold the end of what was before."""
_FRESH = 20
"""Steps after the last one that was seen until nothing is known any more."""
_TREND_FEWEST = 3
_TREND_Z = 4.0
"""Deviations of a slope from zero from which on a forecast follows it."""
_DAMPED = 0.5
"""A trend is expected to last for this part of the time that it has been seen for: ramps end."""
_DISPERSION_FEWEST = 20
_DISPERSION_MEMORY = 60.0
_BY_CHANCE = 1.0 + 3.0 * math.sqrt(2.0 / (KEPT - 1))
"""Up to this dispersion, so many steps of Poisson arrivals show by chance."""
_BLOCK = 5
"""Steps that are added up to see bursts that are longer than one step."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Counts and what was learned of them; arrays have a row for each workload.

    `counts` (workloads, KEPT) has the newest step last, NaN where it was not seen. `stretch` is the length of
    the stretch in steps. `dispersion` is the variance of a count over its mean: 1 for Poisson arrivals.
    """

    step_s: float
    counts: FloatArray
    stretch: IntArray
    dispersion: FloatArray

    @staticmethod
    def unknown(workloads: int, step_s: float) -> Rates:
        """No count seen so far."""
        return Rates(
            step_s, np.full((workloads, KEPT), np.nan), np.zeros(workloads, np.int64), np.ones(workloads)
        )

    def after(self, counts: FloatArray) -> Rates:
        """With the next step's counts (workloads,); NaN where they were not seen."""
        grown = np.column_stack([self.counts[:, 1:], counts])
        stretch = np.minimum(self.stretch + 1, KEPT)
        # Steps before the first one that was seen belong to no stretch.
        stretch = np.where(np.isnan(grown).all(axis=1), 0, stretch)
        # Without a request there is nothing to cut and no burst: most of a large fleet costs little.
        seen = ~np.isnan(grown) & (stretch[:, None] > _AGE)
        dispersion = _moved(self.dispersion, 1.0, seen.sum(axis=1))
        busy = (grown > 0.0).any(axis=1)
        stretch[busy] = _cut(grown[busy], stretch[busy], self.dispersion[busy])
        dispersion[busy] = _learned(grown[busy], stretch[busy], self.dispersion[busy])
        return replace(self, counts=grown, stretch=stretch, dispersion=dispersion)

    def of_workloads(self, rows: Sequence[int | None]) -> Rates:
        """Of these workloads, by their rows; None for one that was not seen so far."""
        anew = Rates.unknown(len(rows), self.step_s)
        new = [i for i, row in enumerate(rows) if row is not None]
        old = [row for row in rows if row is not None]
        anew.counts[new], anew.stretch[new] = self.counts[old], self.stretch[old]
        anew.dispersion[new] = self.dispersion[old]
        return anew


@dataclass(frozen=True, slots=True)
class Estimate:
    """Requests per second at a horizon, (workloads,): what is expected, and bounds around it.

    `level` is the rate now. Without `known`, nothing was seen lately: the bounds are 0 and infinity then.
    `error` is the deviation of `expected` where `trended`, else that of its square root.
    """

    level: FloatArray
    expected: FloatArray
    error: FloatArray
    trended: BoolArray
    known: BoolArray
    enough: BoolArray

    def lower(self, z: float) -> FloatArray:
        """The bound `z` deviations below; 0 where too few steps were seen."""
        root = np.maximum(np.sqrt(self.expected) - z * self.error, 0.0)
        bound = np.where(self.trended, np.maximum(self.expected - z * self.error, 0.0), root**2)
        return np.where(self.known & self.enough, bound, 0.0)

    def upper(self, z: float) -> FloatArray:
        """The bound `z` deviations above."""
        root = np.sqrt(self.expected) + z * self.error
        return np.where(self.known, np.where(self.trended, self.expected + z * self.error, root**2), np.inf)


def estimate(rates: Rates, horizon_s: float) -> Estimate:
    """The rates `horizon_s` from now.

    A trend counts where it is `_TREND_Z` deviations from none, and half as far ahead as it has been seen.
    """
    line = _Line.of(rates.counts, rates.stretch, rates.dispersion)
    steps = np.maximum(line.count, 1.0)
    reach = line.middle + np.minimum(horizon_s / rates.step_s, _DAMPED * rates.stretch)
    trended = line.slope != 0.0
    error = np.sqrt(line.variance * (1.0 / steps + reach**2 / line.spread)) / rates.step_s
    root_error = np.sqrt(rates.dispersion / steps / rates.step_s) / 2.0
    return Estimate(
        level=np.maximum(line.mean + line.slope * line.middle, 0.0) / rates.step_s,
        expected=np.maximum(line.mean + line.slope * reach, 0.0) / rates.step_s,
        error=np.where(trended, error, root_error),
        trended=trended,
        known=(line.count > 0) & ~np.isnan(rates.counts[:, -_FRESH:]).all(axis=1),
        enough=line.count >= _FEWEST,
    )


def is_bursty(rates: Rates) -> BoolArray:
    """Where arrivals are burstier than Poisson, beyond what so many steps show by chance."""
    return np.asarray(rates.dispersion > _BY_CHANCE, dtype=np.bool_)


def bursts(rates: Rates, rate_rps: FloatArray, planned: FloatArray, z: float) -> FloatArray:
    """What a step brings above a rate by bursts, at a bound of `z` deviations; 0 for Poisson arrivals.

    A plan's queues hold the fluctuation of the dispersion that it was `planned` for. Only the variance beyond
    that is added, and only as far as it is not due to chance.
    """
    excess = np.maximum(rates.dispersion - np.maximum(planned, _BY_CHANCE), 0.0)
    known = np.where(np.isfinite(rate_rps), rate_rps, 0.0)
    return np.asarray(z * np.sqrt(excess * known / rates.step_s))


@dataclass(frozen=True, slots=True)
class _Line:
    """The line through each stretch, level unless its slope is surely none: (workloads,) except where said.

    `seen` (workloads, KEPT) says which steps count. `middle` is their mean age, the
    newest being 0, and `spread` the sum of squared distances to it. `variance` is that of one count.
    """

    seen: BoolArray
    count: FloatArray
    mean: FloatArray
    middle: FloatArray
    spread: FloatArray
    slope: FloatArray
    variance: FloatArray

    @staticmethod
    def of(counts: FloatArray, stretch: IntArray, dispersion: FloatArray) -> _Line:
        seen = ~np.isnan(counts) & (stretch[:, None] > _AGE)
        count = seen.sum(axis=1).astype(np.float64)
        steps = np.maximum(count, 1.0)
        known = np.where(seen, counts, 0.0)
        mean = known.sum(axis=1) / steps
        middle = np.where(seen, _AGE, 0.0).sum(axis=1) / steps
        away = np.where(seen, middle[:, None] - _AGE, 0.0)
        spread = np.maximum((away**2).sum(axis=1), 1e-9)
        slope = (away * known).sum(axis=1) / spread
        # Of a count of zero the least variance is that of one arrival in the stretch.
        variance = dispersion * np.maximum(mean, 1.0 / steps)
        trended = (count >= _TREND_FEWEST) & (slope**2 * spread > _TREND_Z**2 * variance)
        return _Line(seen, count, mean, middle, spread, np.where(trended, slope, 0.0), variance)

    def of_rows(self, rows: BoolArray) -> _Line:
        """The lines of some workloads."""
        return _Line(*(getattr(self, one.name)[rows] for one in fields(self)))

    def level(self, counts: FloatArray) -> FloatArray:
        """The counts without the slope, (workloads, KEPT); 0 where a step does not count."""
        sloped = self.slope[:, None] * (self.middle[:, None] - _AGE)
        return np.where(self.seen, np.maximum(counts - sloped, 0.0), 0.0)


def _cut(counts: FloatArray, stretch: IntArray, dispersion: FloatArray) -> IntArray:
    """The stretches without an older part that disagrees with the newer one, cut where that is clearest.

    A step is also a poor line: what a cut explains better than the slope does is cut.
    """
    line = _Line.of(counts, stretch, dispersion)
    slope_z = np.abs(line.slope) * np.sqrt(line.spread / line.variance)
    z = _split_z(line, np.where(line.seen, counts, 0.0), dispersion)
    steady = (line.slope != 0.0) & (z.max(axis=1) <= slope_z)
    if steady.any():
        z[steady] = _split_z(line.of_rows(steady), line.level(counts)[steady], dispersion[steady])
    return np.where(z.max(axis=1) > CUT_Z, z.argmax(axis=1) + 1, stretch)


def _split_z(line: _Line, counts: FloatArray, dispersion: FloatArray) -> FloatArray:
    """Deviations between the newest 1, 2, ... steps and the older ones of a stretch, (workloads, KEPT)."""
    newest = counts[:, ::-1].cumsum(axis=1)
    newest_count = line.seen[:, ::-1].cumsum(axis=1).astype(np.float64)
    oldest, oldest_count = newest[:, -1:] - newest, line.count[:, None] - newest_count
    after, before = (
        np.sqrt(np.maximum(part, 0.0) / np.maximum(number, 1.0))
        for part, number in ((newest, newest_count), (oldest, oldest_count))
    )
    share = 1.0 / np.maximum(newest_count, 1.0) + 1.0 / np.maximum(oldest_count, 1.0)
    possible = (newest_count >= 1) & (oldest_count >= 1)
    return np.where(possible, 2.0 * np.abs(after - before) / np.sqrt(dispersion[:, None] * share), 0.0)


def _learned(counts: FloatArray, stretch: IntArray, dispersion: FloatArray) -> FloatArray:
    """The dispersion after another step: the larger of single steps' and of blocks', never below 1.

    Bounds for regular arrivals are those of Poisson ones, since regularity ends without a warning.
    """
    line = _Line.of(counts, stretch, dispersion)
    level = np.where(line.seen, line.level(counts), np.nan)
    blocks = level.reshape(len(counts), KEPT // _BLOCK, _BLOCK).sum(axis=2)
    return _moved(dispersion, np.fmax(_ratio(level), np.fmax(_ratio(blocks), 1.0)), line.count)


def _moved(dispersion: FloatArray, now: FloatArray | float, steps: FloatArray | IntArray) -> FloatArray:
    weight = np.where(steps >= _DISPERSION_FEWEST, 1.0 / _DISPERSION_MEMORY, 0.0)
    return np.asarray(dispersion + weight * (now - dispersion), dtype=np.float64)


def _ratio(counts: FloatArray) -> FloatArray:
    """Variance over mean of each row without its NaNs; NaN where too few are left."""
    seen = ~np.isnan(counts)
    number = seen.sum(axis=1)
    mean = np.where(seen, counts, 0.0).sum(axis=1) / np.maximum(number, 1)
    squares = (np.where(seen, counts - mean[:, None], 0.0) ** 2).sum(axis=1) / np.maximum(number - 1, 1)
    enough = (number >= _DISPERSION_FEWEST // _BLOCK) & (mean > 0.0)
    return np.where(enough, squares / np.where(mean > 0.0, mean, 1.0), np.nan)


PARTS = 96
"""Parts of a day. Of each the rates of the last `DAYS` days are kept, and the profile of a day is their lower
median: what came on one day alone is no profile of the next."""
DAYS = 3


@dataclass(frozen=True, slots=True)
class Days:
    """Rates in requests per second of the parts of the last days, (DAYS, workloads, PARTS), the newest first.

    NaN where a part was not seen. `part` is the number of the present part since the epoch, `requests` and
    `seconds` are those seen in it so far, (workloads,).
    """

    length_s: float
    rates: FloatArray
    part: int
    requests: FloatArray
    seconds: FloatArray

    @staticmethod
    def unknown(workloads: int, length_s: float, now_s: float) -> Days:
        """No day seen so far."""
        rates = np.full((DAYS, workloads, PARTS), np.nan)
        part = int(now_s // (length_s / PARTS))
        return Days(length_s, rates, part, np.zeros(workloads), np.zeros(workloads))

    def after(self, counts: FloatArray, at_s: float) -> Days:
        """With the requests (workloads,) of the second that ended at `at_s`; NaN where they were not seen."""
        part = int(at_s // (self.length_s / PARTS))
        days = self if part == self.part else self._ended(part)
        seen = ~np.isnan(counts)
        return replace(
            days, requests=days.requests + np.where(seen, counts, 0.0), seconds=days.seconds + seen
        )

    def _ended(self, part: int) -> Days:
        rates, column = self.rates.copy(), self.part % PARTS
        rates[1:, :, column] = self.rates[:-1, :, column]
        # Of a part of which half was not seen, nothing is known.
        enough = self.seconds >= self.length_s / PARTS / 2.0
        mean = np.round(self.requests / np.maximum(self.seconds, 1.0), 3)
        rates[0, :, column] = np.where(enough, mean, np.nan)
        nothing = np.zeros(len(self.requests))
        return replace(self, rates=rates, part=part, requests=nothing, seconds=nothing)

    def of_workloads(self, rows: Sequence[int | None]) -> Days:
        """Of these workloads, by their rows; None for one that was not seen so far."""
        anew = Days.unknown(len(rows), self.length_s, self.part * self.length_s / PARTS)
        new = [i for i, row in enumerate(rows) if row is not None]
        old = [row for row in rows if row is not None]
        anew.rates[:, new], anew.requests[new] = self.rates[:, old], self.requests[old]
        anew.seconds[new] = self.seconds[old]
        return replace(anew, part=self.part)

    def highest(self, now_s: float, ahead_s: float, rate: FloatArray) -> FloatArray:
        """The highest rates (workloads,) within `ahead_s`, from a rate now: never less than that.

        A rate grows as the profile does, by its factor or by its difference, whichever is less: a workload
        that was nearly idle yesterday does not grow a thousandfold today. From a part without requests there
        is no factor, and the difference is the profile ahead.
        """
        profile = self._profile()
        length_s = self.length_s / PARTS
        at = np.arange(now_s, now_s + ahead_s + length_s, length_s).clip(max=now_s + ahead_s)
        # A part's rate is that of its middle; between two middles it is interpolated.
        place = at / length_s - 0.5
        before, part = np.floor(place).astype(np.int64), place - np.floor(place)
        shape = (1.0 - part) * profile[:, before % PARTS] + part * profile[:, (before + 1) % PARTS]
        # What is interpolated from the next part has not begun while the present one is idle.
        idle = profile[:, int(now_s // length_s) % PARTS, None] == 0.0
        now, start = np.where(idle, 0.0, shape[:, :1]), np.where(np.isfinite(rate), rate, 0.0)[:, None]
        by_difference = start + shape - now
        by_factor = start * shape / np.where(now > 0.0, now, 1.0)
        grown = np.where(now > 0.0, np.minimum(by_factor, by_difference), by_difference)
        return np.maximum(rate, np.where(np.isfinite(grown), grown, start).max(axis=1, initial=0.0))

    def _profile(self) -> FloatArray:
        """The lower median of each part's days, (workloads, PARTS); NaN where none was seen."""
        days = (~np.isnan(self.rates)).sum(axis=0)
        middle = np.maximum(days - 1, 0) // 2
        ordered = np.sort(self.rates, axis=0)
        return np.asarray(np.take_along_axis(ordered, middle[None], axis=0)[0], dtype=np.float64)

"""The profile of a day: the rate of each part of it, once days were seen.

A day has `PARTS`. Of each part the rates of the last `DAYS` days are kept, and the profile is their lower
median: what came on one day alone is no profile of the next. A profile says how a rate goes on from now, not
how high it is: that is for today's counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.control.autoscaler.rates import FloatArray

PARTS = 96
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
        """With the present part among those of its day, and a new one begun."""
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

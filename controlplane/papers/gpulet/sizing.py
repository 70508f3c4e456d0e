"""Batches and shares of a single model: largest batch, p_eff, p_req, and the gpulets that a rate wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.papers.gpulet.gpulets import Demand
from controlplane.papers.gpulet.scheme import Reading, Scheme
from controlplane.papers.gpulet.times import Times

TimeOf = Callable[[int], float]
"""The time of a batch of this size."""
LEAST_GAIN = 1.05
"""A step to a larger size counts from this throughput ratio on."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A gpulet that a model wants: its share, and one resident's batch, rates and cycle."""

    percent: int
    batch: int
    rate: int
    duty_ms: float
    occupancy: float
    throughput: float


@dataclass(slots=True)
class Sizing:
    """Sizes for one scheme and one reading of it."""

    times: Times
    scheme: Scheme
    reading: Reading
    _saturated: dict[tuple[int, float, int], tuple[int, float]] = field(default_factory=dict)

    def saturated_batch(self, demand: Demand, time_of: TimeOf) -> int:
        """The largest batch of which two in a row keep the SLO; 0 where none does."""
        return self._largest(lambda b: 2.0 * time_of(b) <= demand.slo_ms)

    def residue_batch(self, demand: Demand, rate: int, time_of: TimeOf) -> tuple[int, int]:
        """The largest batch that is collected and executed within the SLO, and the rate that it is for.

        Where even one request at a time is collected too slowly, the batch is 1 and the rate that of a cycle
        which keeps the SLO. (0, rate) where that is too slow too.
        """
        batch = self._largest(lambda b: time_of(b) + MILLIS_PER_SECOND * b / rate <= demand.slo_ms)
        if batch:
            return batch, rate
        one_ms = time_of(1)
        if one_ms < MILLIS_PER_SECOND / rate and one_ms < demand.slo_ms:
            return 1, int(MILLIS_PER_SECOND / (demand.slo_ms - one_ms) * self.times.margin)
        return 0, rate

    def saturated(self, demand: Demand, percent: int) -> tuple[int, float]:
        """Batch and throughput of a gpulet of this size that runs batch after batch."""
        key = demand.model, demand.slo_ms, percent
        if key not in self._saturated:

            def time_of(batch: int) -> float:
                return self.times.alone(demand.model, percent, batch)

            batch = max(self.saturated_batch(demand, time_of), 1)
            self._saturated[key] = batch, MILLIS_PER_SECOND * batch / time_of(batch)
        return self._saturated[key]

    def efficient(self, demand: Demand) -> int:
        """p_eff: the size with the highest throughput per percent, or the authors' steepest step."""
        sizes = sorted(self.scheme.sizes)
        rates = [self.saturated(demand, p)[1] for p in sizes]
        if not self.reading.steepest_step or len(sizes) == 1:
            return max(zip(sizes, rates, strict=True), key=lambda at: at[1] / at[0])[0]
        best, steepest = sizes[0], 0.0
        for i in range(1, len(sizes) - 1):
            slope = (rates[i] - rates[i - 1]) / (sizes[i] - sizes[i - 1])
            if rates[i] >= LEAST_GAIN * rates[i - 1] and slope > steepest:
                best, steepest = sizes[i], slope
        return best

    def wanted(self, demand: Demand, rate: int) -> list[Wanted] | None:
        """The gpulets for a rate: saturated ones of p_eff and one for the rest; None where none can."""
        if self.scheme.greedy:
            return self._smallest(demand, rate)
        found: list[Wanted] = []
        percent = self.efficient(demand)
        batch, throughput = self.saturated(demand, percent)
        cycle = self.times.alone(demand.model, percent, batch)
        while rate > throughput:
            found.append(Wanted(percent, batch, rate, cycle, 1.0, throughput))
            rate = int(rate - throughput)
        if rate > self.reading.unserved_rps:
            rest = self._residue(demand, rate, percent)
            if rest is None:
                return None
            found.append(rest)
        return found

    def _residue(self, demand: Demand, rate: int, largest: int) -> Wanted | None:
        """p_req: the smallest size, at most `largest`, that holds the batch which the rate fills there."""

        def time_of(batch: int, percent: int = largest) -> float:
            return self.times.alone(demand.model, percent, batch)

        batch, rate = self.residue_batch(demand, rate, time_of)
        if not batch:
            return None
        percent, collecting = largest, MILLIS_PER_SECOND * batch / rate
        for size in sorted((s for s in self.scheme.sizes if s < largest), reverse=True):
            taken = time_of(batch, size)
            if collecting < taken or demand.slo_ms < taken + collecting:
                break
            percent = size
        taken = time_of(batch, percent)
        duty = max(collecting, taken)
        return Wanted(percent, batch, rate, duty, taken / duty, MILLIS_PER_SECOND * batch / duty)

    def _smallest(self, demand: Demand, rate: int) -> list[Wanted]:
        """Greedy best-fit: the smallest sizes whose saturated throughput carries the rate."""
        found = []
        while rate > 0:
            sizes = sorted(self.scheme.sizes)
            percent = next((p for p in sizes if self.saturated(demand, p)[1] > rate), sizes[-1])
            batch, throughput = self.saturated(demand, percent)
            duty = batch * MILLIS_PER_SECOND / rate
            taken = self.times.alone(demand.model, percent, batch)
            found.append(Wanted(percent, batch, rate, duty, taken / duty, throughput))
            rate -= int(throughput)
        return found

    def _largest(self, holds: Callable[[int], bool]) -> int:
        """The largest batch that holds, as far as larger ones hold no better; 0 where 1 does not."""
        largest = min(self.reading.largest_tried, len(self.times.host[0]))
        if not holds(1):
            return 0
        low, high = 1, largest + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

"""What a single model takes: times as the scheduler asks for them, batches, p_eff, p_req, and gpulets wanted.

`Scheme` says what the schedulers of the family differ in. Times are plain lists: the scheduler asks for
single numbers, some thousand of them for a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import Slots
from controlplane.papers.gpulet.latency import Gpulet

SIZES = (20, 40, 50, 60, 80, 100)
"""The shares in percent that a gpulet may have; with each its complement."""
MARGIN = 1.1
"""The authors' latency ratio: every time counts as a tenth longer."""

Runs = tuple[int, int, int]
"""A model, its share in percent and its batch."""
TimeOf = Callable[[int], float]
"""The time of a batch of this size."""
LEAST_GAIN = 1.05
"""A step to a larger size counts from this throughput ratio on."""
UNSERVED_RPS = 15
"""A rest of a rate up to this is dropped by the authors' code."""
CYCLES = 128
"""So many lengths of a cycle are told apart, up to the strictest SLO."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of one model: `rate` in inferences per second with the reserve, `slo_ms` of a request.

    `model` indexes the tables; `key` is its place among the workloads.
    """

    key: int
    model: int
    rate: int
    slo_ms: float
    memory_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Times:
    """`solo`, `own` and `theirs` by model, size and batch - 1, `host` by model and batch - 1; times in ms.

    `own` is what a model's (L2, DRAM) add to its interference factor, `theirs` to a neighbour's
    (`LinearFactor.parts`), `constant` is the rest of it, c5.
    """

    solo: list[list[list[float]]]
    host: list[list[float]]
    own: list[list[list[list[float]]]]
    theirs: list[list[list[list[float]]]]
    constant: float
    sizes: tuple[int, ...] = SIZES
    margin: float = MARGIN

    @staticmethod
    def of(model: Gpulet, largest_batch: int, margin: float = MARGIN) -> Times:
        """Tabulate what the model says, for batches of 1 to `largest_batch`."""
        shape = len(model.models), largest_batch, len(SIZES)
        slots = Slots.every(len(model.models), largest_batch, SIZES)
        solo, _, _ = model.base.tables.look_up(slots.model, slots.batch, slots.percent)
        factor = model.base.contention
        own, theirs = (a.reshape(*shape, 2).swapaxes(1, 2).tolist() for a in factor.parts(slots, solo))
        host = model.host_ms[:, :largest_batch].tolist()
        constant = float(factor.constants[4])
        return Times(solo.reshape(shape).swapaxes(1, 2).tolist(), host, own, theirs, constant, margin=margin)

    def alone(self, model: int, percent: int, batch: int) -> float:
        """Time of a batch without neighbours, with the margin."""
        solo = self.solo[model][self.sizes.index(percent)][batch - 1]
        return self.margin * (solo + self.host[model][batch - 1])

    def beside(self, own: Runs, others: Iterable[Runs]) -> float:
        """Time of a batch beside the neighbour that slows it most, with the margin."""
        model, percent, batch = own
        at = self.sizes.index(percent)
        solo = self.solo[model][at][batch - 1]
        slowest = max((self._factor(own, other) for other in others), default=1.0)
        return self.margin * (solo * slowest + self.host[model][batch - 1])

    def _factor(self, own: Runs, other: Runs) -> float:
        """Interference of one neighbour, at least 1."""
        (m1, p1, b1), (m2, p2, b2) = own, other
        i, j = self.sizes.index(p1), self.sizes.index(p2)
        l2_dram, theirs = self.own[m1][i][b1 - 1], self.theirs[m2][j][b2 - 1]
        return max((l2_dram[0] + theirs[0]) + (l2_dram[1] + theirs[1]) + self.constant, 1.0)


@dataclass(frozen=True, slots=True)
class Scheme:
    """One scheduler of the family.

    sizes: the shares that a gpulet may have. interference: neighbours slow a model. turns: models may take
    turns in a gpulet. greedy: each model gets the smallest share whose saturated
    throughput carries its rate (greedy best-fit). cuts: whole GPUs are cut in two.
    """

    name: str
    sizes: tuple[int, ...] = SIZES
    interference: bool = False
    turns: bool = True
    greedy: bool = False
    cuts: bool = True

    @property
    def partitions(self) -> bool:
        """Whether GPUs are partitioned at all."""
        return self.sizes != (100,)


GPULET = Scheme("gpulet")
IDEAL = Scheme("gpulet-ideal", interference=True, cuts=False)
"""On every fixed partitioning in turn. No upper bound: each is filled greedily."""
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("sbp", sizes=(100,)),
        Scheme("greedy-best-fit", turns=False, greedy=True),
        GPULET,
        Scheme("gpulet+int", interference=True),
        IDEAL,
    )
}


@dataclass(frozen=True, slots=True)
class WantedGpulet:
    """A gpulet that a model wants: its share, and one resident's batch, rates and cycle."""

    percent: int
    batch: int
    rate: int
    duty_ms: float
    occupancy: float
    throughput: float


@dataclass(slots=True)
class Sizing:
    """Sizes for one scheme, as the authors coded it, or by the paper's text.

    `as_printed`: models with several gpulets may take turns too.
    """

    times: Times
    scheme: Scheme
    as_coded: bool = False
    as_printed: bool = False
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
        """Batch and throughput of a gpulet of this size that runs batch after batch; 0 where none does."""
        key = demand.model, demand.slo_ms, percent
        if key not in self._saturated:

            def time_of(batch: int) -> float:
                return self.times.alone(demand.model, percent, batch)

            # The code counts a batch of one where even that misses the SLO.
            batch = self.saturated_batch(demand, time_of) or int(self.as_coded)
            self._saturated[key] = batch, MILLIS_PER_SECOND * batch / time_of(max(batch, 1))
        return self._saturated[key]

    def efficient(self, demand: Demand) -> int:
        """p_eff: the size with the highest throughput per percent, or the authors' steepest step."""
        sizes = sorted(self.scheme.sizes)
        rates = [self.saturated(demand, p)[1] for p in sizes]
        if not self.as_coded or len(sizes) == 1:
            return max(zip(sizes, rates, strict=True), key=lambda at: at[1] / at[0])[0]
        best, steepest = sizes[0], 0.0
        for i in range(1, len(sizes) - 1):
            slope = (rates[i] - rates[i - 1]) / (sizes[i] - sizes[i - 1])
            if rates[i] >= LEAST_GAIN * rates[i - 1] and slope > steepest:
                best, steepest = sizes[i], slope
        return best

    def ideal(self, demand: Demand, rate: float) -> int:
        """p_ideal: the smaller of p_eff and p_req, the smallest size that serves this rate within the SLO.

        Greedy best-fit has no p_eff.
        """
        sizes = sorted(self.scheme.sizes)
        most = sizes[-1] if self.scheme.greedy else self.efficient(demand)

        def serves(percent: int) -> bool:
            return self.cycle({demand: rate}, lambda d, b: self.times.alone(d.model, percent, b)) is not None

        return next((p for p in sizes if p < most and serves(p)), most)

    def cycle(
        self, wanted: Mapping[Demand, float], time_of: Callable[[Demand, int], float]
    ) -> tuple[float, list[int], float] | None:
        """The longest duty cycle in which these rates are collected and executed within every SLO.

        Its length, the batches and the time that they take; None where no cycle holds all.
        """
        strictest = min(demand.slo_ms for demand in wanted)

        def batches(duty_ms: float) -> list[int]:
            return [math.ceil(duty_ms * rate / MILLIS_PER_SECOND - 1e-9) for rate in wanted.values()]

        def busy_ms(sizes: Sequence[int]) -> float:
            if max(sizes) > len(self.times.host[0]):
                return math.inf
            return sum(time_of(demand, size) for demand, size in zip(wanted, sizes, strict=True))

        low, high = 0, CYCLES
        while high - low > 1:
            middle = (low + high) // 2
            duty = strictest * middle / CYCLES
            low, high = (middle, high) if duty + busy_ms(batches(duty)) <= strictest else (low, middle)
        if not low:
            return None
        found = batches(strictest * low / CYCLES)
        busy = busy_ms(found)
        filled = min(
            MILLIS_PER_SECOND * size / rate for size, rate in zip(found, wanted.values(), strict=True)
        )
        duty = min(filled, strictest - busy)
        return (duty, found, busy) if busy <= duty else None

    def wanted(self, demand: Demand, rate: int) -> list[WantedGpulet] | None:
        """The gpulets for a rate: saturated ones of p_eff and one for the rest; None where none can."""
        if self.scheme.greedy:
            return self._smallest(demand, rate)
        found: list[WantedGpulet] = []
        percent = self.efficient(demand)
        batch, throughput = self.saturated(demand, percent)
        cycle = self.times.alone(demand.model, percent, batch)
        while rate > throughput:
            found.append(WantedGpulet(percent, batch, rate, cycle, 1.0, throughput))
            rate = int(rate - throughput)
        if rate > UNSERVED_RPS:
            rest = self._residue(demand, rate, percent)
            if rest is None:
                return None
            found.append(rest)
        return found

    def _residue(self, demand: Demand, rate: int, largest: int) -> WantedGpulet | None:
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
        return WantedGpulet(percent, batch, rate, duty, taken / duty, MILLIS_PER_SECOND * batch / duty)

    def _smallest(self, demand: Demand, rate: int) -> list[WantedGpulet]:
        """Greedy best-fit: the smallest sizes whose saturated throughput carries the rate."""
        found = []
        while rate > 0:
            sizes = sorted(self.scheme.sizes)
            percent = next((p for p in sizes if self.saturated(demand, p)[1] > rate), sizes[-1])
            batch, throughput = self.saturated(demand, percent)
            duty = batch * MILLIS_PER_SECOND / rate
            taken = self.times.alone(demand.model, percent, batch)
            found.append(WantedGpulet(percent, batch, rate, duty, taken / duty, throughput))
            rate -= int(throughput)
        return found

    def _largest(self, holds: Callable[[int], bool]) -> int:
        """The largest batch that holds, as far as larger ones hold no better; 0 where 1 does not."""
        largest = len(self.times.host[0]) - self.as_coded
        if not holds(1):
            return 0
        low, high = 1, largest + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

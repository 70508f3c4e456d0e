"""The results of a simulation, their streaming quantiles, and the JSON of `ctl simulate`.

Latencies are counted in bins of equal relative width, so memory does not grow with the requests. A bin's
index is the exponent and the first 8 bits of the mantissa of a time's float64: 256 bins an octave, none
wider than 0.4 % of its value. A quantile is interpolated within its bin, so it is off by at most 0.4 % of
itself, and by half of that where the bin is evenly filled (DDSketch, VLDB 2019, gives such a guarantee for
any binning of equal relative width).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray

RELATIVE_ERROR = 1 / 256
"""No quantile is off by more than this share of its value, between 1 µs and four hours."""
SHIFT = 44
"""A float64's bits shifted right by this leave sign, exponent and 8 bits of the mantissa."""
FIRST = (1023 - 10) << 8
"""The bin of 2^-10 ms, which counts shorter times too."""
BINS = 34 << 8
"""Up to 2^24 ms, four and a half hours; the last bin counts longer times too."""


def edges_ms() -> FloatArray:
    """Return the lower edge of each bin and the upper edge of the last, shape (BINS + 1,)."""
    return ((np.arange(BINS + 1, dtype=np.int64) + FIRST) << SHIFT).view(np.float64)


def quantile_ms(counts: IntArray, q: float) -> float:
    """Return the q-quantile of the counts, NaN where all are 0. `counts` has shape (BINS,)."""
    below = np.cumsum(counts)
    if below[-1] == 0:
        return math.nan
    wanted = q * below[-1]
    index = int(np.searchsorted(below, wanted, side="left"))
    edges = edges_ms()
    before = below[index] - counts[index]
    part = (wanted - before) / counts[index]
    return float(edges[index] + part * (edges[index + 1] - edges[index]))


@dataclass(frozen=True, slots=True)
class WorkloadOutcome:
    """The results of one workload. A dropped request violates its SLO.

    p50_ms, p99_ms: of the answered requests, off by at most `RELATIVE_ERROR`; NaN without any.
    violations_percent: requests later than the SLO or dropped, of all; counted, not interpolated.
    throughput_rps, goodput_rps: inferences answered, and answered within the SLO, per second of arrivals.
    utilisation: the offered rate over the capacity with full batches and every neighbour busy.
    counts: answers per latency bin (`edges_ms`), for CDFs.
    """

    name: str
    slo_ms: float
    requests: int
    p50_ms: float
    p99_ms: float
    mean_ms: float
    max_ms: float
    violations_percent: float
    drops_percent: float
    throughput_rps: float
    goodput_rps: float
    utilisation: float
    counts: IntArray

    @property
    def holds(self) -> bool:
        """Whether 99 % of all requests were answered within the SLO."""
        return self.violations_percent <= 1.0


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """One model in the partition `id`: busy time and mean batch."""

    id: str
    model: str
    busy_percent: float
    mean_batch: float


@dataclass(frozen=True, slots=True)
class GpuOutcome:
    """One GPU: the share of time with any partition busy, the mean power (0 where the type has no model)."""

    id: str
    busy_percent: float
    power_w: float
    partitions: tuple[PartitionOutcome, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered request: its latency, batch and partition."""

    workload: str
    arrival_ms: float
    latency_ms: float
    batch: int
    partition: str


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Everything `ctl simulate` prints. `answers` holds the first `Settings.answers` of them."""

    seed: int
    seconds: float
    workloads: tuple[WorkloadOutcome, ...]
    gpus: tuple[GpuOutcome, ...]
    answers: tuple[Answer, ...] = ()

    @property
    def breaks(self) -> int:
        """The number of workloads that miss their SLO."""
        return sum(not w.holds for w in self.workloads)

    def document(self) -> dict[str, object]:
        """Return the JSON of `ctl simulate`; null where no request was measured."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "workloads": [
                {
                    "name": w.name,
                    "requests": w.requests,
                    "p50_ms": _finite(w.p50_ms),
                    "p99_ms": _finite(w.p99_ms),
                    "mean_ms": _finite(w.mean_ms),
                    "slo_ms": w.slo_ms,
                    "violations_percent": w.violations_percent,
                    "drops_percent": w.drops_percent,
                    "throughput_rps": w.throughput_rps,
                    "goodput_rps": w.goodput_rps,
                    "utilisation": w.utilisation,
                    "holds": w.holds,
                }
                for w in self.workloads
            ],
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "totals": {"holds": len(self.workloads) - self.breaks, "breaks": self.breaks},
        }


def _finite(value: float) -> float | None:
    return value if value == value else None

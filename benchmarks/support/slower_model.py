"""A real model that is slower than its plan says: the times it is planned with, and a fleet that serves it.

Its server has PERCENT of a core, its shadow EXTRA_PERCENT more. How long a request takes is in its input, so
the model is as much slower on every server.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guard_rig as rig
import numpy as np
from ctl_fleet import plan
from guard_rig import Guarded, Request

from controlplane.control.guard.baseline import p99_s
from controlplane.domain.observation import Event, ModelStatistics
from controlplane.triton.client import TritonClient
from controlplane.triton.statistics import difference

PERCENT, EXTRA_PERCENT = 40.0, 20.0
BATCH = 8
LOAD = 0.5
MEASURED_S = 20.0
WARM_S = 3.0
"""The first batches are slower."""


@dataclass(frozen=True)
class Planned:
    """The times of batches of 1, 2, ... requests as measured, the P99 at these, and the SLO."""

    batch_ms: tuple[float, ...]
    p99_ms: float
    slo_ms: float


@dataclass(frozen=True)
class Served:
    """A fleet's requests since the fault, and its events; times since the epoch."""

    fault_s: float
    requests: list[Request]
    events: list[Event]


@dataclass(frozen=True)
class Rates:
    """The requests of a cell, `factor` times slower than planned."""

    rate_rps: float
    factor: float

    @property
    def work_s(self) -> float:
        """The time of a core that a request is planned to take."""
        return LOAD * PERCENT / 100.0 / self.rate_rps

    def load(self, fleet: Guarded, factor: float) -> rig.Load:
        return rig.Load(fleet.grpc, "w", self.rate_rps, factor * self.work_s)


@contextlib.contextmanager
def fleet_of(docker: bool) -> Iterator[Guarded]:
    with (
        tempfile.TemporaryDirectory(prefix="trisect-slower-") as folder,
        rig.guarded(Path(folder), "docker" if docker else "process") as fleet,
    ):
        yield fleet


def document(rate_rps: float, planned: Planned | None) -> dict[str, Any]:
    """The plan; without times it has an SLO that nothing breaks."""
    slo_ms = 10_000.0 if planned is None else planned.slo_ms
    partition = rig.partition(
        "w", PERCENT, extra=EXTRA_PERCENT, rate_rps=rate_rps, slo_ms=slo_ms, batch=BATCH
    )
    if planned is not None:
        predicted = {"p99_ms": planned.p99_ms, "batch_ms": planned.batch_ms, "utilisation": LOAD}
        partition["workloads"][0]["predicted"] = predicted
        partition["shadow"]["covers"] = covers(rate_rps, planned)
    return plan(partition)


def covers(rate_rps: float, planned: Planned) -> float:
    """The error that the shadow covers as a plan computes it: the largest of 1 to 2 that keeps the P99."""
    on_shadow_s = [ms / 1000.0 * PERCENT / (PERCENT + EXTRA_PERCENT) for ms in planned.batch_ms]
    factors = np.arange(1.0, 2.0, 0.01)
    kept = [1000.0 * p99_s(rate_rps, [f * s for s in on_shadow_s]) <= planned.slo_ms for f in factors]
    return round(float(max(factors[kept], default=1.0)), 2)


def measured(rates: Rates, tight: float, *, docker: bool) -> tuple[Planned, float, float]:
    """Measure the planned times without a guard, then the part that is late of slower requests.

    Those go to the planned share first, then to the shadow's.
    """
    with fleet_of(docker) as fleet:
        fleet.apply(document(rates.rate_rps, None), "--no-controller")
        with rates.load(fleet, 1.0):
            time.sleep(WARM_S)
        (server,) = (s for s in fleet.launched() if s.name == fleet.active("w"))
        with TritonClient(server) as triton:
            before = triton.statistics("w")
            with rates.load(fleet, 1.0) as load:
                time.sleep(MEASURED_S)
            seen = difference(before, triton.statistics("w"))
        planned = _planned(rates, seen, load.requests, tight)
        parts = []
        for percent in (PERCENT, PERCENT + EXTRA_PERCENT):
            fleet.launcher().resize(server, percent)
            with rates.load(fleet, rates.factor) as load:
                time.sleep(MEASURED_S)
            parts.append(late(load.requests, planned.slo_ms) / len(load.requests))
    return planned, parts[0], parts[1]


def _planned(rates: Rates, seen: ModelStatistics, requests: list[Request], tight: float) -> Planned:
    """Batch times as the gateway sees them: Triton's, and the mean time that a request spends elsewhere."""
    sizes = sorted(size for size, batch in seen.batches.items() if batch.executions)
    counts = [seen.batches[size].executions for size in sizes]
    times_ms = [seen.batches[n].compute_infer_ns / 1e6 / seen.batches[n].executions for n in sizes]
    inside_ms = seen.success_ns / 1e6 / seen.successes
    elsewhere_ms = float(np.mean([r.latency_ms for r in requests])) - inside_ms
    slope, first = np.polyfit(sizes, times_ms, 1, w=np.sqrt(counts)) if len(sizes) > 1 else (times_ms[0], 0.0)
    batch_ms = tuple(float(slope * n + first + elsewhere_ms) for n in range(1, BATCH + 1))
    # Under a quota a server stands still for the rest of a period, which no queue model has.
    modelled_ms = 1000.0 * p99_s(rates.rate_rps, [ms / 1000.0 for ms in batch_ms])
    p99_ms = max(modelled_ms, float(np.quantile([r.latency_ms for r in requests], 0.99)))
    return Planned(batch_ms, p99_ms, p99_ms / tight)


def served(
    rates: Rates, planned: Planned, seconds: tuple[float, float], *, guard: bool, docker: bool
) -> Served:
    """Serve as planned, then slower requests; `seconds` of each."""
    with fleet_of(docker) as fleet:
        fleet.apply(document(rates.rate_rps, planned), *([] if guard else ["--no-controller"]))
        if guard:
            fleet.await_guarded()
        if seconds[0]:
            with rates.load(fleet, 1.0):
                time.sleep(seconds[0])
        fault_s = time.time()
        with rates.load(fleet, rates.factor) as load:
            time.sleep(seconds[1])
        events = [event for event in fleet.events() if event.at_s >= fault_s]
        return Served(fault_s, load.requests, events)


def late(requests: list[Request], slo_ms: float) -> int:
    """How many were above the SLO, or failed."""
    return sum(r.error is not None or r.latency_ms > slo_ms for r in requests)

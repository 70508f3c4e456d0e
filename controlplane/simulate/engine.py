"""Simulation of a plan: arrivals in windows, the compiled event loop, and the results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import Plan
from controlplane.domain.units import MILLIS_PER_SECOND, non_negative, positive
from controlplane.latency.adjusted import Adjusted, Change
from controlplane.latency.protocol import LatencyModel, Slots
from controlplane.simulate.arrivals import Arriving, Demand, Trace
from controlplane.simulate.network import Component, Conditions, components
from controlplane.simulate.result import (
    Answer,
    GpuOutcome,
    PartitionOutcome,
    SimulationResult,
    WorkloadOutcome,
    quantile_ms,
)
from controlplane.simulate.wiring import Loop

WINDOW = 65536
"""Arrivals that the event loop gets at once."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Duration, seed and demands of a simulation, and what it reports beside the totals.

    demands: by workload; absent ones follow the plan's rate and arrivals.
    answers: the number of single requests to report, the first of each component.
    """

    seconds: float = 100.0
    seed: int = 1
    demands: Mapping[str, Demand | Trace] | None = None
    answers: int = 0

    def __post_init__(self) -> None:
        positive(self.seconds, "seconds")
        non_negative(self.seed, "seed")
        non_negative(self.answers, "answers")


@dataclass(frozen=True, slots=True)
class Scaled(Adjusted):
    """A truth: another model with times multiplied by `factor`, 1.1 for a GPU 10 % slower than planned."""

    factor: float

    def __post_init__(self) -> None:
        positive(self.factor, "factor")

    @property
    def name(self) -> str:
        """The base's name and the factor."""
        return f"{self.base.name} x {self.factor:g}"

    def change(self, slots: Slots) -> Change:
        """Return the multiplication by the factor."""
        return lambda time_ms: time_ms * self.factor


def simulate(
    plan: Plan,
    truth: Mapping[str, LatencyModel],
    settings: Settings | None = None,
    conditions: Conditions | None = None,
) -> SimulationResult:
    """Simulate every workload of `plan` with the execution times of `truth`.

    truth: the latency model of each device type; it may differ from what the plan was made with.
    Requests arrive for `seconds`; those in flight then are still answered. Equal arguments give equal
    results. Raises InputError where the truth does not cover the plan.
    """
    asked = settings or Settings()
    given = conditions or Conditions()
    workloads: dict[str, WorkloadOutcome] = {}
    gpus: dict[int, GpuOutcome] = {}
    answers: list[Answer] = []
    for part in components(plan, truth, given):
        run = _Run(plan, part, asked, Loop(part, given, asked.seed, asked.answers))
        run.run()
        workloads.update((outcome.name, outcome) for outcome in run.workloads())
        gpus.update(run.gpus())
        answers.extend(run.answers())
    names = dict.fromkeys(placement.name for _, _, placement in plan.placements())
    return SimulationResult(
        seed=asked.seed,
        seconds=asked.seconds,
        workloads=tuple(workloads[name] for name in names),
        gpus=tuple(gpus[i] for i in sorted(gpus)),
        answers=tuple(answers),
    )


class _Run:
    """One component, from its first arrival to its last answer."""

    def __init__(self, plan: Plan, part: Component, settings: Settings, loop: Loop) -> None:
        self._plan = plan
        self._part = part
        self._settings = settings
        self._loop = loop
        self._arriving = Arriving(part, settings.demands or {}, settings.seed)

    def run(self) -> None:
        end = self._settings.seconds * MILLIS_PER_SECOND
        expected = sum(s.rate_rps for s in self._part.streams) * self._settings.seconds
        parts = math.ceil(max(expected, 1.0) / WINDOW)
        for i in range(1, parts + 1):
            until = end * i / parts
            self._loop.advance(*self._arriving.window(until), until)
        self._loop.close(end)

    def workloads(self) -> list[WorkloadOutcome]:
        seconds = self._settings.seconds
        utilisation = self._utilisation()
        outcomes = []
        for i, stream in enumerate(self._part.streams):
            tally = self._loop.state.tallies[i]
            requests, drops, late = (int(tally[name]) for name in ("requests", "drops", "late"))
            answered = requests - drops
            each = stream.placement.client_batch
            outcomes.append(
                WorkloadOutcome(
                    name=stream.name,
                    slo_ms=stream.slo_ms,
                    requests=requests,
                    p50_ms=quantile_ms(self._loop.state.counts[i], 0.5),
                    p99_ms=quantile_ms(self._loop.state.counts[i], 0.99),
                    mean_ms=float(tally["sum_ms"]) / answered if answered else math.nan,
                    max_ms=float(tally["max_ms"]),
                    violations_percent=100.0 * (late + drops) / requests if requests else 0.0,
                    drops_percent=100.0 * drops / requests if requests else 0.0,
                    throughput_rps=answered * each / seconds,
                    goodput_rps=(answered - late) * each / seconds,
                    utilisation=utilisation[i],
                    counts=self._loop.state.counts[i].copy(),
                )
            )
        return outcomes

    def _utilisation(self) -> dict[int, float]:
        """By stream: the rate that arrived at its servers, from all streams, over their capacity.

        Models that take turns share theirs.
        """
        routes, requests = self._part.routes, self._loop.state.tallies["requests"]
        load = np.zeros(len(self._part.servers))
        for route in routes:
            load[list(route.servers)] += requests[list(route.streams)].sum() / len(route.servers)
        capacity = np.array([s.capacity_rps for s in self._part.servers])
        used = load / capacity
        load = capacity * [used[list(own)].sum() for own in self._part.turns()]
        found = {}
        for route in routes:
            there = list(route.servers)
            share = float(load[there].sum() / capacity[there].sum()) / self._settings.seconds
            found.update(dict.fromkeys(route.streams, share))
        return found

    def gpus(self) -> dict[int, GpuOutcome]:
        whole, state, outcomes = self._settings.seconds * MILLIS_PER_SECOND, self._loop.state, {}
        mean_batch = state.servers["served"] / np.maximum(state.servers["batches"], 1)
        for g, index in enumerate(self._part.gpus):
            share = state.mask_time[g] / whole
            masks = np.arange(share.size)
            partitions = [
                PartitionOutcome(
                    id=server.partition,
                    model=server.model,
                    busy_percent=100.0 * float(share[(masks & server.field) == server.bit].sum()),
                    mean_batch=float(mean_batch[s]) * server.client_batch,
                )
                for s, server in enumerate(self._part.servers)
                if server.gpu == index
            ]
            outcomes[index] = GpuOutcome(
                id=self._plan.gpus[index].id,
                busy_percent=100.0 * float(1.0 - share[0]),
                power_w=float(share[: self._part.power_w[g].size] @ self._part.power_w[g]),
                partitions=tuple(partitions),
            )
        return outcomes

    def answers(self) -> list[Answer]:
        return [
            Answer(
                workload=self._part.streams[int(row[0])].name,
                arrival_ms=float(row[1]),
                latency_ms=float(row[2]),
                batch=int(row[3]) * self._part.servers[int(row[4])].client_batch,
                partition=self._part.servers[int(row[4])].partition,
            )
            for row in self._loop.state.log[: self._loop.logged]
        ]

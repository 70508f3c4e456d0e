"""The latency-aware scheduler as a strategy: tasks on fixed GPUs, by demand, then moved and swapped.

It plans with its own latency model for a mean time T within the SLO. The plan is judged by the latency model
and rule of the request like any other's; nothing in the paper looks at a P99.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from controlplane.domain.plan import Infeasible, PlannedGpu
from controlplane.domain.workload import Workload
from controlplane.papers.latency_aware import latency as model
from controlplane.papers.latency_aware.responses import Choice, Tables, Task, demand, settle
from controlplane.papers.per_type import PerGpuType, alone, own_model, split
from controlplane.planning.judge.estimates import LARGEST_BATCH
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import gpu_of, memory_with_shadow, refusal, too_large
from controlplane.planning.protocol import Device, PlanRequest

Placing = tuple[int, ...]
"""The GPU of each task."""
Score = tuple[int, float]
"""Tasks that miss their SLO, then the efficiency, negative: less is better."""


@dataclass(slots=True)
class Search:
    """Placements of tasks on so many GPUs of one type; each set of tasks is settled once."""

    tasks: Sequence[Task]
    tables: Tables
    gpus: int
    memory_mb: float = math.inf
    _settled: dict[tuple[int, ...], tuple[Choice, ...]] = field(default_factory=dict)

    def best(self) -> Placing | None:
        """Longest processing time first, then the best single move or swap until none helps."""
        placing = self._by_demand()
        if placing is None:
            return None
        score = self.score(placing)
        while True:
            moves = [(self.score(p), p) for p in self._moves(placing) if self._fits(p)]
            if not moves or min(moves)[0] >= score:
                return placing
            score, placing = min(moves)

    def score(self, placing: Placing) -> Score:
        """What a placement is worth."""
        settled = [self.settled(placing, gpu) for gpu in range(self.gpus)]
        missed = sum(not choice.holds for choices in settled for choice in choices)
        return missed, -round(sum(sum(c.efficiency for c in choices) for choices in settled), 9)

    def settled(self, placing: Placing, gpu: int) -> tuple[Choice, ...]:
        """The configurations on one GPU."""
        members = self.members(placing, gpu)
        if members not in self._settled:
            self._settled[members] = settle([self.tasks[i] for i in members], self.tables)
        return self._settled[members]

    def members(self, placing: Placing, gpu: int) -> tuple[int, ...]:
        """The tasks on one GPU."""
        return tuple(i for i, g in enumerate(placing) if g == gpu)

    def _by_demand(self) -> Placing | None:
        """The largest demand first, to the GPU with the least; None where memory does not suffice."""
        load, used = [0.0] * self.gpus, [0.0] * self.gpus
        placing = [0] * len(self.tasks)
        demands = [demand(task, self.tables) for task in self.tasks]
        for i in sorted(range(len(self.tasks)), key=lambda i: (-demands[i], i)):
            needed = self.tasks[i].memory_mb
            room = [g for g in range(self.gpus) if used[g] + needed <= self.memory_mb]
            if not room:
                return None
            gpu = min(room, key=lambda g: (load[g], g))
            placing[i], load[gpu], used[gpu] = gpu, load[gpu] + demands[i], used[gpu] + needed
        return tuple(placing)

    def _moves(self, placing: Placing) -> Iterator[Placing]:
        for i, own in enumerate(placing):
            for gpu in range(self.gpus):
                if gpu != own:
                    yield (*placing[:i], gpu, *placing[i + 1 :])
            for j in range(i + 1, len(placing)):
                if placing[j] != own:
                    swapped = list(placing)
                    swapped[i], swapped[j] = placing[j], own
                    yield tuple(swapped)

    def _fits(self, placing: Placing) -> bool:
        used = [0.0] * self.gpus
        for task, gpu in zip(self.tasks, placing, strict=True):
            used[gpu] += task.memory_mb
        return max(used) <= self.memory_mb


def strategy() -> PerGpuType:
    """The latency-aware scheduler; on uncounted GPUs the fewest on which all tasks keep their SLO."""
    return PerGpuType("latency-aware", model.NAME, _draft_on)


def _draft_on(device: Device, request: PlanRequest) -> Draft:
    left, refused = split(request.workloads, lambda w: refusal(w, device) or too_large(w, device))
    own = own_model(device, model.LatencyAware, model.fit)
    largest = min(LARGEST_BATCH, *(p.largest_batch for p in device.profiles.values()))
    tables = Tables.of(own, device.pool.device.grid.percents(), largest)
    while left:
        tasks = [
            Task(own.models.index(w.model), w.rate_rps, w.slo_ms, memory_with_shadow(w, device)) for w in left
        ]
        search, placing = _placed(tasks, tables, device)
        missing = _missing(search, placing)
        if not missing:
            assert placing is not None
            return Draft(_gpus(search, placing, left, device), tuple(refused))
        name = left.pop(max(missing, key=lambda i: demand(tasks[i], tables))).name
        reason = f"no batch and share of {device.pool.device.name} keep its SLO and its load here"
        refused.append(Infeasible(name, reason))
    return Draft((), tuple(refused))


def _placed(tasks: Sequence[Task], tables: Tables, device: Device) -> tuple[Search, Placing | None]:
    """A search on the GPUs that there are, and its placement."""
    memory_mb = device.pool.device.memory_mb or math.inf
    most = device.pool.count or len(tasks)
    count = device.pool.count or 1
    while True:
        search = Search(tasks, tables, count, memory_mb)
        placing = search.best()
        if count >= most or (placing is not None and search.score(placing)[0] == 0):
            return search, placing
        count += 1


def _missing(search: Search, placing: Placing | None) -> list[int]:
    """The tasks that miss their SLO; all where memory does not suffice."""
    if placing is None:
        return list(range(len(search.tasks)))
    return [
        i
        for gpu in range(search.gpus)
        for i, choice in zip(search.members(placing, gpu), search.settled(placing, gpu), strict=True)
        if not choice.holds
    ]


def _gpus(
    search: Search, placing: Placing, workloads: Sequence[Workload], device: Device
) -> tuple[PlannedGpu, ...]:
    percents = search.tables.percent[0]
    gpus: list[PlannedGpu] = []
    for gpu in range(search.gpus):
        members = search.members(placing, gpu)
        choices = search.settled(placing, gpu)
        partitions = [
            alone(workloads[i], float(percents[c.share]), c.batch + 1, device)
            for i, c in zip(members, choices, strict=True)
        ]
        if partitions:
            gpus.append(gpu_of(len(gpus), device, partitions))
    return tuple(gpus)

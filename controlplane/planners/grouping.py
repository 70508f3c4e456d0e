"""Which workloads share a queue.

Two workloads of one model in one partition need less than two partitions: their batches fill each other, and
what each partition costs by itself is paid once. All of a group are held to its strictest SLO, so groups are
runs of workloads ordered by SLO, and the cheapest cut into runs is a dynamic program.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.domain.workload import Arrivals, Workload
from controlplane.latency.protocol import FloatArray, Slots
from controlplane.planners.board import ask
from controlplane.planners.menu import Alone, Asked, tolerated
from controlplane.planners.protocol import Device

Group = tuple[Workload, ...]
"""Workloads that share a queue, strictest SLO first."""

MOST_TOGETHER = 16
"""Of one group: whoever sends more than was told slows all of it."""
MORE_SERVERS = 3
"""Pools of so many servers more than throughput alone asks for are looked at."""
PARTS = 8
"""The smallest share looked at is this part of a GPU."""
USUAL_BATCH = 8
"""Of the neighbours that a part is measured beside."""


def by_slo(workload: Workload) -> tuple[float, float, str]:
    """The order of a group. Names decide only between equals, the order of the spec nothing."""
    return workload.slo_ms, workload.rate_rps, workload.name


def company(workload: Workload, rule: Rule) -> Hashable:
    """Workloads may share a queue where this is equal.

    One server serves them: model, client batch, memory and shadow are the same. Poisson streams together are
    one; constant streams together are neither constant nor Poisson, and no queue here is theirs.
    """
    alone = workload.isolated or (rule is Rule.P99 and workload.arrivals is Arrivals.CONSTANT)
    shadow = workload.shadow
    told = workload.arrivals, workload.client_batch, workload.memory_mb, shadow.policy, shadow.place
    return workload.model, *told, workload.name if alone else None


def families(workloads: Sequence[Workload], rule: Rule) -> list[Group]:
    """All workloads by what may share a queue: each in one, in `by_slo` order."""
    found: dict[Hashable, list[Workload]] = {}
    for w in sorted(workloads, key=lambda w: (w.model, *by_slo(w))):
        found.setdefault(company(w, rule), []).append(w)
    return [tuple(family) for family in found.values()]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Every workload in one group; `servers[n]` is how many serve group n, None where the search decides."""

    groups: tuple[Group, ...]
    servers: tuple[int | None, ...]

    @staticmethod
    def apart(workloads: Sequence[Workload]) -> Grouping:
        """Every workload by itself."""
        return Grouping(tuple((w,) for w in workloads), (None,) * len(workloads))


SPARE = 1.02
"""Every partition must tolerate this much more: a pool that the exact queue refuses takes a server more."""
HARDSHIPS = (4.0, 2.0, 1.0)
"""How many times neighbours' effect on a full batch a partition is taken to feel: small batches feel more."""


def groupings(
    workloads: Sequence[Workload], price: Mapping[str, float], devices: Mapping[str, Device],
    alone: Mapping[str, Alone], rule: Rule, quantile: float | None,
    hardships: Sequence[float] = HARDSHIPS,
) -> Iterator[Grouping]:  # fmt: skip
    """The best cut for each hardship, without repetition; nothing where no two workloads may meet.

    `price` is of a GPU of each type.
    """
    kin = families(workloads, rule)
    if all(len(family) == 1 for family in kin):
        return
    runs = {
        n: {name: _Runs.of(family, device, alone[name], rule, quantile) for name, device in devices.items()}
        for n, family in enumerate(kin)
        if len(family) > 1
    }
    told = set()
    for hardship in hardships:
        groups: list[Group] = []
        servers: list[int | None] = []
        for n, family in enumerate(kin):
            if n not in runs:
                groups.append(family)
                servers.append(None)
                continue
            costs = [(price[name] * c, s) for name, run in runs[n].items() for c, s in [run.costs(hardship)]]
            for group, count in _cheapest_cut(family, costs):
                groups.append(group)
                servers.append(count)
        found = Grouping(tuple(groups), tuple(servers))
        if found not in told:
            told.add(found)
            yield found


@dataclass(frozen=True, slots=True)
class _Runs:
    """Every run of a family on one GPU type: run (i, l) is the l + 1 workloads from the i-th on.

    `least`: servers that throughput asks for (runs begin, length). `tolerance` (begin, length, servers beyond
    the least, parts): by how much each of the servers may be slowed where `PARTS` of them share a GPU.
    `slowdown` (parts,) is what a full batch's neighbours do.
    """

    least: FloatArray
    execution: FloatArray
    cycle: FloatArray
    percents: FloatArray
    slowdown: FloatArray

    @staticmethod
    def of(family: Group, device: Device, alone: Alone, rule: Rule, quantile: float | None) -> _Runs:
        grid = np.array(device.pool.device.grid.percents())
        parts = np.arange(1, PARTS + 1)
        column = np.searchsorted(grid, 100.0 / parts + 1e-9, side="right") - 1
        column = np.unique(column[column >= 0])[::-1]
        length = min(MOST_TOGETHER, len(family))
        shape = (len(family), length, MORE_SERVERS + 1, column.size)
        missing = np.full(shape[:2], np.inf)
        if family[0].model not in device.profiles:
            return _Runs(missing, np.zeros(shape), np.zeros(shape), grid[column], np.ones(column.size))
        model = device.latency.models.index(family[0].model)
        sums = np.append(0.0, np.cumsum([w.rate_rps for w in family]))
        begin = np.arange(len(family))[:, None]
        end = begin + np.arange(1, length + 1)
        rate = np.where(end <= len(family), sums[np.minimum(end, len(family))] - sums[begin], np.inf)
        batches = np.arange(1, alone.cycle.shape[1] + 1)
        most = float(np.max(1000.0 * batches / alone.cycle[model, :, -1]))
        least = np.where(np.isfinite(rate), np.maximum(np.ceil(rate / most), 1.0), np.inf)
        servers = least[..., None] + np.arange(MORE_SERVERS + 1)
        ask_about = servers <= MOST_SERVERS
        at = np.nonzero(ask_about)
        count = servers[at]
        asked = Asked.runs(
            device, model, rate[at[:2]] / count, np.array([w.slo_ms for w in family])[at[0]],
            count.astype(np.int64),
        )  # fmt: skip
        execution, cycle = np.zeros(shape), np.zeros(shape)
        _, execution[at], cycle[at] = tolerated(
            Alone(alone.execution[:, :, column], alone.cycle[:, :, column]), asked, rule
        )
        return _Runs(least, execution, cycle, grid[column], _slowdowns(device, model, grid[column], quantile))

    def costs(self, hardship: float) -> tuple[FloatArray, FloatArray]:
        """GPUs that each run takes (begin, length), infinite where none hold it; with how many servers."""
        needed = SPARE * (1.0 + (self.slowdown - 1.0) * hardship)
        holds = (self.execution >= needed) & (self.cycle >= needed)
        charge = np.where(holds, 1.0 / np.floor(100.0 / self.percents + 1e-9), np.inf).min(axis=3)
        servers = self.least[..., None] + np.arange(MORE_SERVERS + 1)
        total = np.where(servers <= MOST_SERVERS, servers * charge, np.inf)
        best = total.argmin(axis=2)
        cost = np.take_along_axis(total, best[..., None], axis=2)[..., 0]
        return cost, self.least + best


def _slowdowns(device: Device, model: int, percents: FloatArray, quantile: float | None) -> FloatArray:
    """How much a full batch is slowed by as many equal parts as fit; the mean over neighbours' models."""
    found = np.ones(percents.size)
    for n, percent in enumerate(percents.tolist()):
        beside = int(100.0 / percent + 1e-9) - 1
        if not beside:
            continue
        others = np.arange(len(device.latency.models))
        row = np.column_stack([np.full(others.size, model), np.repeat(others[:, None], beside, axis=1)])
        largest = np.array([device.profiles[m].largest_batch for m in device.latency.models])
        batch = np.minimum(USUAL_BATCH, largest)[row].astype(np.float64)
        together = Slots.of(row, batch, np.full(row.shape, percent))
        alone = Slots.alone(np.array([model]), batch[:1, :1].ravel(), np.array([percent]))
        slow, _ = ask(device.latency, together, quantile)
        base, _ = ask(device.latency, alone, quantile)
        found[n] = max(1.0, float(np.mean(slow[:, 0] / base[0, 0])))
    return found


def _cheapest_cut(
    family: Group, costs: Sequence[tuple[FloatArray, FloatArray]]
) -> list[tuple[Group, int | None]]:
    """The family in runs of least cost; `costs` with servers, per GPU type. What nobody holds is alone."""
    cost, servers = costs[0]
    for other, count in costs[1:]:
        cheaper = other < cost
        cost, servers = np.where(cheaper, other, cost), np.where(cheaper, count, servers)
    told, counts = cost.tolist(), servers.tolist()
    size = len(family)
    best, begin = [0.0] + [np.inf] * size, [0] * (size + 1)
    for end in range(1, size + 1):
        for i in range(max(0, end - MOST_TOGETHER), end):
            run = told[i][end - i - 1]
            if run == np.inf and end - i == 1:
                run = float(MOST_SERVERS)
            # Fewer together at equal cost.
            if best[i] + run <= best[end] - 1e-9 or (i == end - 1 and best[i] + run < best[end] + 1e-9):
                best[end], begin[end] = best[i] + run, i
    found: list[tuple[Group, int | None]] = []
    end = size
    while end:
        i = begin[end]
        known = told[i][end - i - 1] < np.inf
        found.append((family[i:end], int(counts[i][end - i - 1]) if known else None))
        end = i
    return found[::-1]

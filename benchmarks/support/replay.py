"""Requests through plans that change, simulated: late ones, while servers start and drain.

A plan's queues carry over from part to part. In the last seconds before the next plan its new servers execute
full batches on their GPUs (warm-up); after it, the servers that end drain what they hold. Both slow down
those that serve beside them, by the latency model, as any neighbour does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.plan import MOST_BUSY_BITS, Partition, Plan, busy_bits
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import LatencyModel
from controlplane.planning.replan.differences import Change, changes
from controlplane.simulate.arrivals import Demand, Gaps, Trace
from controlplane.simulate.closed_loop.run import START_S
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.result import Answer

Counts = NDArray[np.int64]
"""Requests by second and workload."""
WINDOW_S, PART_S = 20, 200
Busy = list[tuple[str, Partition, Demand | Trace]]
"""GPUs, partitions that start or end on them, and what these execute."""


@dataclass
class Seen:
    """Requests and late ones; by window what is late of the worst workload, in percent."""

    requests: int = 0
    late: int = 0
    windows: list[float] = field(default_factory=list)


def anew(before: Plan, after: Plan) -> set[str]:
    """Partitions that need another server than before."""
    return {c.partition for c in changes(before, after) if c.change is not Change.STOPPED}


def starting(before: Plan, after: Plan) -> Busy:
    """The next plan's new servers, as busy as they can be."""
    new = anew(before, after)
    return [
        (gpu.id, p, Demand(sum(w.predicted.capacity_rps or w.rate_rps for w in p.workloads), Gaps.CONSTANT))
        for gpu, p in after.partitions()
        if p.id in new
    ]


def draining(before: Plan, after: Plan, held: Mapping[str, int]) -> Busy:
    """The servers that end, each with its part of what its workload had under way."""
    kept = {p.id for _, p in after.partitions()} - anew(before, after)
    servers = [w.name for _, p in before.partitions() for w in p.workloads]
    return [
        (
            gpu.id,
            p,
            Trace((0.0,) * sum(-(-held.get(w.name, 0) // servers.count(w.name)) for w in p.workloads)),
        )
        for gpu, p in before.partitions()
        if p.id not in kept
    ]


def beside(plan: Plan, busy: Busy) -> tuple[Plan, dict[str, Demand | Trace]]:
    """The plan with these on its GPUs, as many as the simulator can tell apart, and their demands."""
    demands: dict[str, Demand | Trace] = {}
    gpus = []
    for gpu in plan.gpus:
        partitions = list(gpu.partitions)
        for n, (where, p, demand) in enumerate(busy):
            name = f"beside-{n}"
            own = tuple(m for m in p.models if m.model == p.workloads[0].model)
            placed = replace(p.workloads[0], name=name, endpoint=name)
            one = replace(p, id=name, workloads=(placed,), models=own, shadow=None)
            if where == gpu.id and busy_bits([*partitions, one]) <= MOST_BUSY_BITS:
                partitions.append(one)
                demands[name] = demand
        gpus.append(replace(gpu, partitions=tuple(partitions)))
    return replace(plan, gpus=tuple(gpus)), demands


def parts(plans: Sequence[Plan]) -> Iterator[tuple[int, int]]:
    """The seconds that are simulated at once: of one plan, with the same servers beside it."""
    seconds = len(plans)
    switches = [t for t in range(1, seconds) if plans[t] is not plans[t - 1]]
    cuts = {0, seconds, *switches, *(max(0, t - int(START_S)) for t in switches), *range(0, seconds, PART_S)}
    yield from pairwise(sorted(cuts))


def replay(
    counts: Counts, plans: Sequence[Plan], workloads: Sequence[Workload], truth: Mapping[str, LatencyModel]
) -> Seen:
    """Run the requests of each second through the plan of that second."""
    random = np.random.default_rng(7)
    slo = {w.name: w.slo_ms for w in workloads}
    column = {w.name: i for i, w in enumerate(workloads)}
    late, sent = np.zeros((2, len(counts) // WINDOW_S + 1, len(workloads)))
    waiting: dict[str, list[float]] = {name: [] for name in slo}  # arrivals before the part
    drained: Busy = []
    for begin_s, end_s in parts(plans):
        plan, following = plans[begin_s], plans[min(end_s + int(START_S), len(plans)) - 1]
        arrived = {}
        for name, i in column.items():
            own = counts[begin_s:end_s, i]
            times = np.repeat(np.arange(begin_s, end_s), own) + random.random(int(own.sum()))
            arrived[name] = [*waiting[name], *np.sort(times).tolist()]
        # In the seconds before a switch the next plan's servers start.
        near = end_s - begin_s <= START_S and following is not plan
        whole, extra = beside(plan, [*drained, *(starting(plan, following) if near else ())])
        demands = {n: Trace(tuple(max(0.0, t - begin_s) for t in times)) for n, times in arrived.items()}
        settings = Settings(float(end_s - begin_s), seed=1, demands=demands | extra, answers=1_000_000)
        held = _held(plan, plans[min(end_s, len(plans) - 1)])
        waiting = {name: [] for name in slo}
        left = dict.fromkeys(slo, 0)
        for name, arrival_s, done_s in _answered(simulate(whole, truth, settings).answers, arrived, begin_s):
            if done_s > end_s < len(plans) and name in held:
                waiting[name].append(arrival_s)
                continue
            left[name] += done_s > end_s
            at, took_ms = (int(arrival_s) // WINDOW_S, column[name]), 1000.0 * (done_s - arrival_s)
            sent[at] += 1
            late[at] += took_ms > slo[name]
        drained = draining(plan, plans[end_s], left) if end_s < len(plans) else []
    shares = 100.0 * late / np.maximum(sent, 1)
    windows = len(counts) // WINDOW_S
    return Seen(
        int(sent.sum()),
        int(late.sum()),
        shares.max(axis=1)[:windows].tolist(),
    )


def _held(before: Plan, after: Plan) -> set[str]:
    """Workloads whose servers stay: what they hold they hold on."""
    new = anew(before, after)
    gone = {p.id for _, p in before.partitions()} - {p.id for _, p in after.partitions()}
    moved = {
        w.name
        for plan in (before, after)
        for _, p in plan.partitions()
        if p.id in new | gone
        for w in p.workloads
    }
    return {w.name for _, _, w in before.placements()} - moved


def _answered(
    answers: Iterable[Answer], arrived: Mapping[str, Sequence[float]], begin_s: int
) -> Iterator[tuple[str, float, float]]:
    """Workload, arrival and end of the answers to these requests."""
    number = dict.fromkeys(arrived, 0)
    for answer in sorted(answers, key=lambda one: one.arrival_ms):
        if answer.workload in number:
            arrival_s = arrived[answer.workload][number[answer.workload]]
            number[answer.workload] += 1
            yield answer.workload, arrival_s, begin_s + (answer.arrival_ms + answer.latency_ms) / 1000.0

"""The cheapest plan by trying everything: slow, simple, and nothing in common with the strategies' search.

Every group of workloads in one queue, every number of servers, every batch, every way to part all
partitions into GPUs, every GPU type; shares are raised step by step from the least until all hold or none is
left. Left out is only what the shares alone make dearer than a plan already found. Under half-SLO, where a
promise is plain arithmetic.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import planning

from controlplane.domain.device import GpuPool
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import Estimate, FloatArray, IntArray, Slots
from controlplane.planning.protocol import Device
from controlplane.simulate.engine import Scaled

MOST_SERVERS = 4
"""Of a queue."""
SLACK = 1.0 + 1e-9
AT_ONCE = 4096

Member = tuple[Workload, int]
"""What a queue holds, as one workload, and of how many servers this is one."""


def throughput_rps(answer: Estimate, slots: Slots) -> FloatArray:
    """Inferences per second at saturation, 0 in empty slots."""
    safe = np.where(answer.cycle_ms > 0, answer.cycle_ms, 1.0)
    return np.where(slots.mask, 1000.0 * slots.batch / safe, 0.0)


def mixed(latency: str = "igniter") -> dict[str, Device]:
    """A V100 at 3.06 and two made-up types: half as fast at 0.526, 0.55 as fast at 0.55 of the price."""
    v100 = planning.v100(latency)
    made_up = (("synthetic-half", 0.5, 0.526), ("synthetic-055", 0.55, 0.55 * 3.06))
    devices = {"v100": v100}
    for name, speed, price in made_up:
        kind = replace(v100.pool.device, name=name)
        devices[name] = Device(GpuPool(kind, None, price), Scaled(v100.latency, 1.0 / speed), v100.profiles)
    return devices


def small_case(seed: int) -> tuple[Workload, ...]:
    """Three or four random workloads, of a tenth to half of a V100; some too fast for the slow types.

    Each has its own queue: `cheapest` tries no other way.
    """
    chance = np.random.default_rng(seed)
    v100 = planning.v100()
    made = []
    for i in range(int(chance.integers(3, 5))):
        m = int(chance.integers(len(planning.MODELS)))
        name = planning.MODELS[m]
        batch = np.array([1, 32])
        slots = Slots.alone(np.full(2, v100.latency.models.index(name)), batch, np.full(2, 100.0))
        first_ms = float(v100.latency.estimate(slots, 0.5).execution_ms[0, 0])
        most_rps = float(throughput_rps(v100.latency.estimate(slots, 0.5), slots)[1, 0])
        slo_ms = round(2.0 * first_ms * chance.uniform(1.3, 6.0), 1)
        made.append(planning.workload(f"w{i}", name, slo_ms, round(most_rps * chance.uniform(0.1, 0.5))))
    return tuple(made)


def cheapest(
    workloads: Sequence[Workload], devices: Mapping[str, Device], most_servers: int = MOST_SERVERS
) -> float:
    """The least cost of a plan that keeps half-SLO for all; infinite where none does."""

    @cache
    def fits(device: str, members: tuple[Member, ...]) -> bool:
        """Fewer partitions are never slower: what does not fit without one of them does not fit with it."""
        without = all(fits(device, members[:i] + members[i + 1 :]) for i in range(len(members) - 1))
        return without and _fits(devices[device], members)

    @cache
    def price(members: tuple[Member, ...]) -> float:
        """Of the cheapest GPU that holds these partitions together."""
        return min((d.pool.price_per_hour for n, d in devices.items() if fits(n, members)), default=math.inf)

    def parted(queues: Sequence[Workload], servers: tuple[int, ...]) -> float:
        """The cheapest way to part so many servers of each queue into GPUs."""

        @cache
        def best(left: tuple[int, ...]) -> float:
            if not any(left):
                return 0.0
            first = next(q for q, count in enumerate(left) if count)
            costs = [math.inf]
            for taken in itertools.product(*(range(q == first, count + 1) for q, count in enumerate(left))):
                own = price(
                    tuple((queues[q], servers[q]) for q, count in enumerate(taken) for _ in range(count))
                )
                if math.isfinite(own):
                    costs.append(own + best(tuple(a - b for a, b in zip(left, taken, strict=True))))
            return min(costs)

        return best(servers)

    @cache
    def floor(workload: Workload, servers: int) -> float:
        """The part of a GPU's price that these servers' shares take; beside neighbours they take no less."""
        parts = [
            d.pool.price_per_hour * d.pool.device.grid.percents()[min(shares.values())] / 100.0
            for d in devices.values()
            if (shares := _alone(d, (workload, servers)))
        ]
        return servers * min(parts, default=math.inf)

    cases = [
        (sum(map(floor, queues, servers)), queues, servers)
        for queues in _queues(workloads)
        for servers in itertools.product(range(1, most_servers + 1), repeat=len(queues))
    ]
    least = math.inf
    for dearer_than, queues, servers in sorted(cases, key=lambda case: case[0]):
        if dearer_than >= least:
            break
        least = min(least, parted(queues, servers))
    return least


def _queues(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """Every way to let workloads of one model share queues, each told as one workload."""
    if not workloads:
        return [[]]
    first, *rest = workloads
    found = []
    for taken in itertools.chain.from_iterable(itertools.combinations(rest, n) for n in range(len(rest) + 1)):
        if any(w.model != first.model for w in taken):
            continue
        rate, slo = sum(w.rate_rps for w in (first, *taken)), min(w.slo_ms for w in (first, *taken))
        queue = replace(first, rate_rps=rate, slo_ms=slo)
        found += [[queue, *others] for others in _queues([w for w in rest if w not in taken])]
    return found


def _fits(device: Device, members: Sequence[tuple[Workload, int]]) -> bool:
    """Whether some batches and shares hold all of these on one GPU."""
    percents = np.array(device.pool.device.grid.percents())
    names = device.latency.models
    model = np.array([names.index(w.model) for w, _ in members])
    rate = np.array([w.rate_rps / servers for w, servers in members])
    half = np.array([w.slo_ms / 2.0 for w, _ in members])
    alone = [_alone(device, member) for member in members]
    least = [percents[min(a.values(), default=percents.size - 1)] for a in alone]
    if not all(alone) or sum(least) > 100.0:
        return False
    batch, share = np.empty((1, 0), dtype=np.int64), np.empty((1, 0), dtype=np.int64)
    for i, one in enumerate(alone):
        # Every batch beside every combination so far, where the least shares alone leave room for the rest.
        more, shares = (np.array(list(x)) for x in (one.keys(), one.values()))
        batch = np.column_stack([np.repeat(batch, more.size, axis=0), np.tile(more, batch.shape[0])])
        share = np.column_stack([np.repeat(share, shares.size, axis=0), np.tile(shares, share.shape[0])])
        room = percents[share].sum(axis=1) + sum(least[i + 1 :]) <= 100.0
        if i and members[i] == members[i - 1]:
            # Two alike: which of them has the larger batch does not matter.
            room &= batch[:, i] >= batch[:, i - 1]
        batch, share = batch[room], share[room]
    order = np.argsort(percents[share].sum(axis=1), kind="stable")
    return any(
        _some_hold(device, model, rate, half, batch[some], share[some])
        for some in np.array_split(order, max(1, order.size // AT_ONCE))
    )


def _alone(device: Device, member: Member) -> dict[int, int]:
    """Each batch that holds a partition alone on a GPU, and the number of its smallest share."""
    workload, servers = member
    percents = np.array(device.pool.device.grid.percents())
    batch, share = np.meshgrid(
        np.arange(1, min(32, device.profiles[workload.model].largest_batch) + 1),
        np.arange(percents.size),
        indexing="ij",
    )
    model = np.full(batch.size, device.latency.models.index(workload.model))
    slots = Slots.alone(model, batch.ravel(), percents[share.ravel()])
    answer = device.latency.estimate(slots, 0.5)
    holds = answer.execution_ms[:, 0] <= workload.slo_ms / 2.0 * SLACK
    holds &= throughput_rps(answer, slots)[:, 0] * SLACK >= workload.rate_rps / servers
    return {b + 1: int(row.argmax()) for b, row in enumerate(holds.reshape(batch.shape)) if row.any()}


def _some_hold(
    device: Device, model: IntArray, rate: FloatArray, half: FloatArray, batch: IntArray, share: IntArray
) -> bool:
    """Raise shares step by step where a promise is broken; whether one combination comes to hold."""
    percents = np.array(device.pool.device.grid.percents())
    while batch.size:
        slots = Slots.of(np.broadcast_to(model, batch.shape), batch, percents[share])
        answer = device.latency.estimate(slots, 0.5)
        holds = (answer.execution_ms <= half * SLACK) & (throughput_rps(answer, slots) * SLACK >= rate)
        if holds.all(axis=1).any():
            return True
        share = np.where(holds, share, share + 1)
        left = (share < percents.size).all(axis=1)
        left &= percents[np.minimum(share, percents.size - 1)].sum(axis=1) <= 100.0
        batch, share = batch[left], share[left]
    return False

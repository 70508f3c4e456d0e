"""The network of queues that a plan describes: servers, routes, and slowdowns by neighbours.

A plan falls into components that share nothing: GPUs belong together where a pool spans them. Each component
is simulated by itself, so memory follows the largest one.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import gammainc, gammaincinv

from controlplane.domain.errors import InputError
from controlplane.domain.plan import (
    MOST_BUSY_BITS,
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    ServedModel,
    busy_bits,
)
from controlplane.domain.profile import Profile
from controlplane.domain.serving import Order
from controlplane.domain.units import MICROS_PER_MILLI, non_negative
from controlplane.latency.protocol import FloatArray, IntArray, LatencyModel, Slots

JITTER_ENTRIES = 4096
"""Length of a jitter table; its entries are equally likely."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Latency that no latency model predicts.

    jitter: the coefficient of variation of a batch's service time.
    frontend_ms: what a request spends outside queue and execution.
    """

    jitter: float = 0.0
    frontend_ms: float = 0.0

    def __post_init__(self) -> None:
        non_negative(self.jitter, "jitter")
        non_negative(self.frontend_ms, "frontend_ms")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Properties of models and servers that are not in a plan.

    noise: by (device type, model); absent: none.
    waiting: the longest queue of a server; further requests are dropped.
    max_batch: a model's max_batch_size: the largest batch of a batcher whose delay is exceeded, or whose
        batch is no multiple of the client batch. By default the planned batch.
    order: the endpoints that wait at the gateway; the models of the others take turns as in Triton.
    """

    noise: Mapping[tuple[str, str], Noise] = field(default_factory=dict)
    waiting: int = 65536
    max_batch: Mapping[str, int] = field(default_factory=dict)
    order: Order = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.waiting < 1:
            raise InputError(f"must be at least 1, not {self.waiting}", field="waiting")


def noise_of(profiles: Mapping[str, Mapping[str, Profile]]) -> dict[tuple[str, str], Noise]:
    """Return the noise in profiles, by device type and model; 0 where it was not measured."""
    return {
        (device, model): Noise(profile.jitter or 0.0, profile.frontend_ms or 0.0)
        for device, models in profiles.items()
        for model, profile in models.items()
    }


@dataclass(frozen=True, slots=True)
class Server:
    """One model in one partition: a queue and its instances.

    All sizes count requests, each of `client_batch` inferences. batch: the largest batch of a greedy batcher;
    preferred: as in the configuration, not always a whole number; largest: the largest batch of a batcher
    that is not greedy.
    bit, field: the server is busy in the masks whose bits of `field` are `bit`; one model of a partition is.
    work_ms[n-1]: how long n requests occupy an executor, solo; extra_ms[n-1]: the rest of their latency.
    pace[mask]: ms of time for a ms of work beside the servers of the GPU in `mask`. busiest: of the masks
    with one server of each partition, the one in which this server is slowest. after_ms: what the
    order adds to the arrival of its requests; None where the models of its partition take turns without one.
    drop_ms: a request that has waited so long when a batch starts is dropped.
    """

    gpu: int
    bit: int
    field: int
    partition: str
    model: str
    client_batch: int
    batch: int
    preferred: float
    instances: int
    delay_ms: float
    largest: int
    jitter: float
    work_ms: FloatArray
    extra_ms: FloatArray
    pace: FloatArray
    busiest: int
    after_ms: float | None = None
    drop_ms: float = math.inf

    @property
    def greedy(self) -> bool:
        """Whether an instance that becomes free takes all waiting requests, up to `batch`."""
        return self.delay_ms == 0.0 and (self.preferred == self.batch or self.preferred < 1.0)

    @property
    def capacity_rps(self) -> float:
        """Requests per second with full batches, every neighbour busy and no turn of another model."""
        full_ms = float(self.work_ms[self.batch - 1] * self.pace[self.busiest])
        return 1000.0 * self.instances * self.batch / full_ms


@dataclass(frozen=True, slots=True)
class Stream:
    """One workload: its name, planned rate in requests, and SLO."""

    name: str
    rate_rps: float
    slo_ms: float
    placement: Placement


@dataclass(frozen=True, slots=True)
class Route:
    """Workloads with the same servers, as indices into the component's streams and servers.

    A request goes to the server with the fewest of this route's requests in flight.
    """

    streams: tuple[int, ...]
    servers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Component:
    """GPUs, by their index in the plan, that are simulated together. power_w[g][mask] is the power of GPU g.

    Servers are in the order of their GPUs and partitions. At most one route leads to a server alone; any
    number may lead to it and others.
    """

    gpus: tuple[int, ...]
    servers: tuple[Server, ...]
    streams: tuple[Stream, ...]
    routes: tuple[Route, ...]
    power_w: tuple[FloatArray, ...]

    def turns(self) -> tuple[range, ...]:
        """For each server the servers of its partition, of which one runs at a time."""
        partitions = [(s.gpu, s.partition) for s in self.servers]
        last = {partition: n for n, partition in enumerate(partitions)}
        first = {partition: n for n, partition in reversed(list(enumerate(partitions)))}
        return tuple(range(first[partition], last[partition] + 1) for partition in partitions)


def components(
    plan: Plan, truth: Mapping[str, LatencyModel], conditions: Conditions
) -> tuple[Component, ...]:
    """Return every component of the plan, in its order. `truth` maps a device type to its latency model.

    Raises InputError for a device type or model that the truth does not cover, for a workload whose
    partition does not serve its model, for workloads of one queue that send different client batches, for a
    partition with several models that are not greedy servers of one instance, and for more models on a GPU
    than `MOST_BUSY_BITS` tell apart.
    """
    gpus = [gpu_servers(i, gpu, truth, conditions) for i, gpu in enumerate(plan.gpus)]
    streams, homes = _streams(plan, gpus)
    first = np.arange(len(plan.gpus))  # of each GPU's component, the first GPU
    for places in homes.values():
        joined = np.unique(first[[gpu for gpu, _, _ in places]])
        first[np.isin(first, joined)] = joined[0]
    members = (np.flatnonzero(first == one).tolist() for one in np.unique(first))
    return tuple(_component(own, gpus, streams, homes) for own in members)


def whole(
    plan: Plan, gpus: Sequence[PlannedGpu], truth: Mapping[str, LatencyModel], conditions: Conditions
) -> Component:
    """Return all of a plan as one component; `gpus` are the plan's with further partitions.

    Raises InputError as `components` does.
    """
    servers = [gpu_servers(i, gpu, truth, conditions) for i, gpu in enumerate(gpus)]
    return _component(list(range(len(gpus))), servers, *_streams(plan, servers))


def _streams(
    plan: Plan, gpus: Sequence[tuple[list[Server], FloatArray]]
) -> tuple[dict[str, Stream], dict[str, list[tuple[int, str, str]]]]:
    """Return each workload, and the servers that it is placed in by GPU, partition and model."""
    by_place = {(s.gpu, s.partition, s.model) for servers, _ in gpus for s in servers}
    homes: dict[str, list[tuple[int, str, str]]] = {}
    streams: dict[str, Stream] = {}
    index = {id(gpu): i for i, gpu in enumerate(plan.gpus)}
    for gpu, partition, placement in plan.placements():
        place = (index[id(gpu)], partition.id, placement.model)
        if place not in by_place:
            raise InputError(
                f"partition {partition.id} serves {placement.name} but not its model {placement.model}",
                field="models",
            )
        homes.setdefault(placement.name, []).append(place)
        known = streams.get(placement.name)
        rate = placement.rate_rps / placement.client_batch + (known.rate_rps if known else 0.0)
        streams[placement.name] = Stream(placement.name, rate, placement.slo_ms, placement)
    return streams, homes


def _component(
    members: list[int],
    gpus: list[tuple[list[Server], FloatArray]],
    streams: Mapping[str, Stream],
    homes: Mapping[str, list[tuple[int, str, str]]],
) -> Component:
    servers = [s for i in members for s in gpus[i][0]]
    number = {(s.gpu, s.partition, s.model): n for n, s in enumerate(servers)}
    names = [name for name in streams if homes[name][0][0] in members]
    routes: dict[tuple[int, ...], list[int]] = {}
    for n, name in enumerate(names):
        routes.setdefault(tuple(sorted(number[place] for place in homes[name])), []).append(n)
    return Component(
        gpus=tuple(members),
        servers=tuple(servers),
        streams=tuple(streams[name] for name in names),
        routes=tuple(Route(tuple(through), there) for there, through in routes.items()),
        power_w=tuple(gpus[i][1] for i in members),
    )


def gpu_servers(
    index: int, gpu: PlannedGpu, truth: Mapping[str, LatencyModel], conditions: Conditions
) -> tuple[list[Server], FloatArray]:
    """Return the servers of one GPU, and its power with each set of them busy."""
    latency = truth.get(gpu.type)
    if latency is None:
        known = ", ".join(truth) or "none"
        raise InputError(f"no latency model for {gpu.type} (there are: {known})", field="truth")
    served = [(partition, model) for partition in gpu.partitions for model in partition.models]
    if busy_bits(gpu.partitions) > MOST_BUSY_BITS:
        raise InputError(f"{gpu.id} has {len(served)} models, too many to be simulated", field="gpus")
    for _, model in served:
        if model.model not in latency.models:
            raise InputError(
                f"{latency.name} for {gpu.type} has no profile of {model.model}; profile it on {gpu.type}",
                field="truth",
            )
    bits, fields = _codes(gpu.partitions)
    pace, power, fullest = _slowdowns(served, bits, fields, latency)
    servers = []
    for i, (partition, model) in enumerate(served):
        full = fullest[(fullest & fields[i]) == bits[i]]
        busiest = int(full[np.argmax(pace[i, full])])
        own = int(bits[i]), int(fields[i]), pace[i], busiest
        servers.append(_server(index, gpu.type, partition, model, latency, conditions, *own))
    for (partition, model), server in zip(served, servers, strict=True):
        if server.drop_ms < math.inf and not server.greedy:
            raise InputError(
                f"drop_after_ms of {model.model} in {partition.id} is simulated without a queue delay, in "
                "batches of whole requests",
                field="drop_after_ms",
            )
        if partition.turns and not (server.greedy and server.instances == 1):
            raise InputError(
                f"the models of partition {partition.id} execute one at a time, which is simulated for one "
                f"instance of each, without a queue delay, in batches of whole requests: see {model.model}",
                field="models",
            )
    return servers, power


def _server(
    gpu: int,
    device: str,
    partition: Partition,
    model: ServedModel,
    latency: LatencyModel,
    conditions: Conditions,
    bit: int,
    field: int,
    pace: FloatArray,
    busiest: int,
) -> Server:
    noise = conditions.noise.get((device, model.model), Noise())
    client_batch = _client_batch(partition, model)
    batch, uneven = max(model.batch // client_batch, 1), model.batch % client_batch > 0
    beyond = conditions.max_batch.get(model.model, 1) if model.max_queue_delay_us or uneven else 1
    largest = max(batch, beyond // client_batch)
    inferences = client_batch * np.arange(1, largest + 1)
    slots = Slots.alone(latency.models.index(model.model), inferences, partition.percent)
    alone = latency.estimate(replace(slots, requests=slots.batch / client_batch), 0.5)
    return Server(
        gpu=gpu,
        bit=bit,
        field=field,
        partition=partition.id,
        model=model.model,
        client_batch=client_batch,
        batch=batch,
        preferred=model.batch / client_batch,
        instances=model.instances,
        delay_ms=model.max_queue_delay_us / MICROS_PER_MILLI,
        largest=largest,
        jitter=noise.jitter,
        work_ms=np.array(alone.cycle_ms[:, 0]),
        extra_ms=alone.execution_ms[:, 0] - alone.cycle_ms[:, 0] + noise.frontend_ms,
        pace=pace,
        busiest=busiest,
        after_ms=_after_ms(partition, model, conditions.order),
        drop_ms=partition.drop_after_ms(model.model) or math.inf,
    )


def _after_ms(partition: Partition, model: ServedModel, order: Order) -> float | None:
    """Return the order's delay of a model; None where a workload of the partition has no place in it."""
    known = {w.endpoint: order[w.endpoint].after_ms for w in partition.workloads if w.endpoint in order}
    if len(known) < len(partition.workloads):
        return None
    return min((known[w.endpoint] for w in partition.workloads if w.model == model.model), default=None)


def _client_batch(partition: Partition, model: ServedModel) -> int:
    """Return the inferences per request in a server's queue."""
    sizes = sorted({w.client_batch for w in partition.workloads if w.model == model.model})
    if len(sizes) > 1:
        raise InputError(
            f"partition {partition.id} has requests of {' and '.join(map(str, sizes))} inferences in one "
            "queue, which cannot be simulated; give their workloads partitions of their own",
            field="client_batch",
        )
    return sizes[0] if sizes else 1


def _codes(partitions: Sequence[Partition]) -> tuple[IntArray, IntArray]:
    """Return each server's bit and field: a partition's field holds the number of its model that executes."""
    bits, fields, begin = [], [], 0
    for partition in partitions:
        width, models = busy_bits([partition]), len(partition.models)
        bits += [(n + 1) << begin for n in range(models)]
        fields += [((1 << width) - 1) << begin] * models
        begin += width
    return np.array(bits, dtype=np.int64), np.array(fields, dtype=np.int64)


def _slowdowns(
    served: list[tuple[Partition, ServedModel]], bits: IntArray, fields: IntArray, latency: LatencyModel
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return pace[i, mask], with server i in mask, and power[mask], for every set of busy servers.

    With them, the masks that hold one server of each partition.
    """
    partitions = list(dict.fromkeys(p for p, _ in served))
    masks = np.arange(1 << busy_bits(partitions))
    busy = (masks[:, None] & fields) == bits
    pace, power = np.ones((len(served), masks.size)), np.zeros(masks.size)
    if not served:
        return pace, power, masks
    model = np.array([latency.models.index(m.model) for _, m in served])
    batch = np.array([float(max(m.batch, _client_batch(p, m))) for p, m in served])
    percent = np.array([p.percent for p, _ in served])
    for rows in np.array_split(masks, max(1, masks.size // 4096)):
        estimate = latency.estimate(Slots.of(model, batch, percent, busy[rows]), 0.5)
        power[rows] = estimate.power_w
        pace[:, rows] = np.where(busy[rows], estimate.cycle_ms, 1.0).T
    alone = pace[np.arange(len(served)), bits]
    return np.where(busy.T, pace / alone[:, None], 1.0), power, masks[busy.sum(axis=1) == len(partitions)]


def jitter_table(cv: float) -> FloatArray:
    """Return equally likely factors of mean 1: the means of a gamma distribution's equally likely slices.

    With cv 1 it is exponential. Rounded, so that libraries that differ in the last bit agree.
    """
    if cv == 0.0:
        return np.ones(JITTER_ENTRIES)
    shape = 1.0 / cv**2
    edges = gammaincinv(shape, np.arange(JITTER_ENTRIES + 1) / JITTER_ENTRIES)
    # E[X; X <= x] of a gamma distribution is its mean times the distribution function with shape + 1.
    return np.asarray(np.round(np.diff(gammainc(shape + 1.0, edges)) * JITTER_ENTRIES, 9))


def seed_of(seed: int, name: str) -> np.random.SeedSequence:
    """Return a seed for each name: adding a workload does not change the others' arrivals."""
    return np.random.SeedSequence([seed, zlib.crc32(name.encode())])

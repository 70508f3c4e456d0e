"""The GPUs and partitions of a plan: how they are built, what they take, what a GPU cannot serve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from controlplane.domain.plan import MOST_BUSY_BITS, Partition, Placement, PlannedGpu, ServedModel
from controlplane.domain.profile import Profile
from controlplane.domain.workload import LOADED, ShadowPlace, ShadowPolicy, Workload
from controlplane.planning.judge.estimates import LARGEST_BATCH
from controlplane.planning.protocol import Device

PROCESS = "process_mb"
"""The device's coefficient for the memory of a process without models."""

MOST_MODELS = 8
"""Models in one partition: a request may have to wait for a batch of each other one."""
_MOST_CHOICES = 2048
"""Choices of one model from each partition of a GPU: each has a time of its own."""


def tells_apart(models: Sequence[int]) -> bool:
    """Return whether a plan may put so many models into the partitions of one GPU, whatever their rates."""
    few = all(count <= MOST_MODELS for count in models) and math.prod(models) <= _MOST_CHOICES
    return few and sum(count.bit_length() for count in models) <= MOST_BUSY_BITS


def placement_of(workload: Workload, rate_rps: float) -> Placement:
    """A workload, or the part of it with this rate, as a plan places it."""
    return Placement(
        workload.name,
        workload.endpoint or workload.name,
        workload.model,
        rate_rps,
        workload.slo_ms,
        arrivals=workload.arrivals,
        client_batch=workload.client_batch,
        isolated=workload.isolated,
        dispersion=workload.dispersion,
        longest_ms=workload.longest_ms,
        drop_after_ms=workload.drop_after_ms,
    )


def partition_of(
    name: str,
    workloads: Sequence[Workload],
    percent: float,
    batch: int,
    memory_mb: float | None,
    part: float = 1.0,
) -> Partition:
    """A partition that serves this part of these workloads' rates, with one model."""
    placements = tuple(placement_of(w, w.rate_rps * part) for w in workloads)
    return Partition(
        name, percent, (ServedModel(workloads[0].model, batch),), placements, memory_mb=memory_mb
    )


def gpu_of(number: int, device: Device, partitions: Sequence[Partition]) -> PlannedGpu:
    """The `number`-th GPU of a type, as a plan names it."""
    kind, price = device.pool.device, device.pool.price_per_hour
    name = f"{kind.name}-{number}"
    return PlannedGpu(name, kind.name, tuple(partitions), price_per_hour=price, memory_mb=kind.memory_mb)


def numbered(gpus: Sequence[PlannedGpu], devices: Mapping[str, Device]) -> tuple[PlannedGpu, ...]:
    """The same GPUs, those of each type numbered from 0."""
    number = Counter[str]()
    found = []
    for gpu in gpus:
        found.append(gpu_of(number[gpu.type], devices[gpu.type], gpu.partitions))
        number[gpu.type] += 1
    return tuple(found)


def devices_left(devices: Mapping[str, Device], used: Sequence[PlannedGpu]) -> dict[str, Device]:
    """The devices of which there are more than these GPUs, with what is left of each."""
    left = {}
    for name, device in devices.items():
        count = device.pool.count
        if count is None:
            left[name] = device
        elif (rest := count - sum(g.type == name for g in used)) > 0:
            left[name] = replace(device, pool=replace(device.pool, count=rest))
    return left


def with_partitions(
    gpus: Iterable[PlannedGpu], change: Callable[[Partition], Partition]
) -> tuple[PlannedGpu, ...]:
    """The same GPUs with every partition changed."""
    return tuple(replace(gpu, partitions=tuple(map(change, gpu.partitions))) for gpu in gpus)


def largest_batch(device: Device, model: str, client_batch: int = 1) -> int:
    """The largest batch of a model, in inferences, that holds whole requests; 0 where not even one fits."""
    largest = min(LARGEST_BATCH, device.profiles[model].largest_batch)
    return largest // client_batch * client_batch


def refusal(workload: Workload, device: Device) -> str | None:
    """Why no partition of a device can serve any request of a workload; None where one may."""
    name = device.pool.device.name
    if workload.model not in device.profiles:
        return f"{workload.model} has no profile on {name}"
    if workload.client_batch == 1 or largest_batch(device, workload.model, workload.client_batch) > 0:
        return None
    return (
        f"its clients send {workload.client_batch} inferences in a request, and the largest batch of "
        f"{workload.model} on {name} is {largest_batch(device, workload.model)}"
    )


def clients_of(partition: Partition, device: Device) -> int:
    """Return how many clients of MPS a server is: Triton, and what executes its models and their steps.

    Where a profile does not say, a model of the Python backend is as many as its instances.
    """
    stubs: dict[str, int] = {}
    for served in partition.models:
        profile = device.profiles.get(served.model)
        if profile is not None and profile.stubs is not None:
            stubs |= profile.stubs
        elif profile is not None and profile.environment.backend == "python":
            stubs[served.model] = served.instances
    return 1 + sum(stubs.values())


def most_clients(device: Device) -> float:
    """Return how many clients of MPS a GPU takes; infinity where that is not known."""
    most = device.pool.device.most_clients
    return math.inf if most is None else most


def memory_law(workload: Workload, device: Device) -> tuple[float, float] | None:
    """See `Profile.memory_law`; what is specified counts for every batch."""
    if workload.memory_mb is not None:
        return workload.memory_mb, 0.0
    return device.profiles[workload.model].memory_law


def memory_of(workload: Workload, device: Device, batch: int | None = None) -> float | None:
    """MB of a workload's partition with this batch, by default the model's largest; None where unknown."""
    law = memory_law(workload, device)
    if law is None:
        return None
    return law[0] + law[1] * (device.profiles[workload.model].largest_batch if batch is None else batch)


def memory_together(
    workloads: Sequence[Workload], models: Iterable[ServedModel], device: Device
) -> float | None:
    """Memory in MB of one server for these models, each a workload's; None where one is unknown.

    What a process takes without a model counts once, where the device says how much that is.
    """
    batch = {served.model: served.batch for served in models}
    each = _by_model(workloads, [memory_of(w, device, batch[w.model]) for w in workloads])
    if each is None:
        return None
    return sum(each.values()) - device.pool.device.hardware.get(PROCESS, 0.0) * (len(each) - 1)


def limit_together(workloads: Sequence[Workload]) -> float | None:
    """The memory limit in MB of a server for these workloads; None unless one is specified for each model.

    What was measured is no limit: waiting requests take memory too, and a queue has no bound.
    """
    each = _by_model(workloads, [w.memory_mb for w in workloads])
    return None if each is None else sum(each.values())


def _by_model(workloads: Sequence[Workload], memory_mb: Sequence[float | None]) -> dict[str, float] | None:
    """The most memory of each model; None where one is unknown."""
    each: dict[str, float] = {}
    for workload, taken_mb in zip(workloads, memory_mb, strict=True):
        if taken_mb is None:
            return None
        each[workload.model] = max(each.get(workload.model, 0.0), taken_mb)
    return each


def load_s_of(models: Iterable[str], device: Device) -> float | None:
    """How long these models take to load, one after the other; None where one is unknown."""
    each = [device.profiles[model].load_s for model in models]
    known = [seconds for seconds in each if seconds is not None]
    return sum(known) if len(known) == len(each) else None


def common_step(partitions: Iterable[Partition], profiles: Mapping[str, Profile]) -> str | None:
    """A model that these execute with several batches, though a server has it once; None without one.

    Models that execute others give them their own batch, up to the largest that each takes; a model that is
    served under its own name has its own.
    """
    served = [(one, partition) for partition in partitions for one in partition.models]
    callers = [profiles[one.model] for one, _ in served if one.model in profiles]
    limits = {name: limit for caller in callers for name, limit in caller.executes.items()}
    found: dict[str, int] = {}
    for one, partition in served:
        names = list(profiles[one.model].executes if one.model in profiles else ())
        if one.model in limits and any(w.endpoint == one.model for w in partition.workloads):
            names.append(one.model)
        for name in names:
            batch = min(one.batch, limits[name])
            if found.setdefault(name, batch) != batch:
                return name
    return None


def memory_with_shadow(workload: Workload, device: Device, batch: int | None = None) -> float:
    """As `memory_of`, with what must stand by; 0 where unknown."""
    server_mb = memory_of(workload, device, batch)
    if server_mb is None:
        return 0.0
    return server_mb * servers_loaded(workload, device) - shared_mb(workload, device)


def shared_mb(workload: Workload, device: Device) -> float:
    """What a shared shadow saves of its memory: a process is there once, for two partitions at least."""
    shares = workload.shadow.policy is ShadowPolicy.SHARED
    return device.pool.device.hardware.get(PROCESS, 0.0) / 2.0 if shares else 0.0


def servers_loaded(workload: Workload, device: Device) -> int:
    """How many servers of a partition hold its model on its GPU: two where a loaded shadow stands beside."""
    wish = workload.shadow
    loaded = wish.policy_for(load_s_of([workload.model], device)) in LOADED
    return 2 if loaded and wish.place is ShadowPlace.SAME_GPU else 1


def largest_batch_in_memory(workload: Workload, device: Device) -> float:
    """The largest batch, 1 or more, with which an empty GPU has the memory for what stands there."""
    there, law = device.pool.device.memory_mb, memory_law(workload, device)
    if there is None or law is None or law[1] == 0.0:
        return math.inf
    return max((there / servers_loaded(workload, device) - law[0]) // law[1], 1.0)


def too_large(workload: Workload, device: Device) -> str | None:
    """The reason why a server of a workload exceeds a GPU's memory, and the way out; None if it fits."""
    there, needed = device.pool.device.memory_mb, memory_with_shadow(workload, device, 1)
    if there is None or needed <= there:
        return None
    alone = memory_of(workload, device, 1) or 0.0
    takes = f"it takes {alone:g} MB"
    if needed > alone:
        takes += " and as much for its shadow"
        way = (
            " (`shadow: {policy: auto}` loads that when it is needed, `{place: other-gpu}` puts it elsewhere)"
        )
        takes += way if alone <= there else ""
    return f"{takes}, and a {device.pool.device.name} has {there:g} MB"

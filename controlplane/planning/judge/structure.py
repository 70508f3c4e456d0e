"""What a plan must be before anything can be expected of it: ids, shares, batches, pools, shadows, memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

from controlplane.domain.device import Device as DeviceType
from controlplane.domain.device import noun
from controlplane.domain.plan import (
    MOST_SERVERS,
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Rule,
    ServedModel,
    Shadow,
    Violation,
    memory_used_mb,
)
from controlplane.domain.profile import Profile
from controlplane.domain.workload import ShadowPolicy, Workload
from controlplane.planning.judge.estimates import LARGEST_BATCH
from controlplane.planning.judge.evaluate import SLACK
from controlplane.planning.judge.placements import clients_of, common_step, most_clients
from controlplane.planning.protocol import Device

_NOT_FINITE = "is no finite number"


def has_standby(shadow: Shadow | None) -> TypeGuard[Shadow]:
    """Whether there is a shadow that could be made active."""
    return shadow is not None and shadow.policy is not ShadowPolicy.NONE


def evaluable(plan: Plan, devices: Mapping[str, Device]) -> bool:
    """Whether latency models and queues can be asked about a plan."""
    numbers = (n for _, _, w in plan.placements() for n in (w.rate_rps, w.slo_ms))
    return all(map(math.isfinite, numbers)) and all(
        gpu.type in devices
        and all(
            _has_distinct_models(p)
            and p.workloads
            and 0 < p.percent <= 100
            and all(_fits_batches(m, p, devices[gpu.type].profiles) for m in p.models)
            for p in gpu.partitions
        )
        for gpu in plan.gpus
    )


def _has_distinct_models(partition: Partition) -> bool:
    models = len({m.model for m in partition.models})
    return 0 < models == len(partition.models)


def _fits_batches(served: ServedModel, partition: Partition, profiles: Mapping[str, Profile]) -> bool:
    requests = (served.batch % w.client_batch for w in partition.workloads if w.model == served.model)
    return served.model in profiles and served.batch >= 1 and not any(requests)


def structure(plan: Plan, devices: Mapping[str, Device]) -> Iterator[Violation]:
    """What is wrong with a plan whatever its promises."""
    for what, ids in (
        (noun(g.type for g in plan.gpus), [g.id for g in plan.gpus]),
        ("partition", [p.id for _, p in plan.partitions()]),
    ):
        for name, count in Counter(ids).items():
            if count > 1:
                yield Violation(name, f"{count} {what}s have this id")
    for name, count in Counter(g.type for g in plan.gpus).items():
        if name not in devices:
            yield Violation(name, "nothing is known about this type of device")
        elif (limit := devices[name].pool.count) is not None and count > limit:
            yield Violation(name, f"{count} {noun([name])}s are used and there are {limit}")
    yield from _placements(plan)
    by_id = {g.id: g for g in plan.gpus}
    for gpu in plan.gpus:
        if gpu.type in devices:
            device = devices[gpu.type]
            yield from _shares(gpu, device.pool.device)
            if gpu.shared is not None:
                yield from _steps(gpu.shared.id, gpu.sharers, device.profiles)
            for partition in gpu.partitions:
                yield from _steps(partition.id, (partition,), device.profiles)
                yield from _partition(partition, device.profiles)
                yield from _shadow(gpu, partition, by_id)
    yield from _clients(plan, devices)
    yield from _memory(plan, devices)


def _shares(gpu: PlannedGpu, device: DeviceType) -> Iterator[Violation]:
    grid = device.grid
    for p in gpu.partitions:
        if not math.isfinite(p.percent):
            yield Violation(p.id, f"{_NOT_FINITE}: percent")
            return
        steps = (p.percent - grid.minimum_percent) / grid.step_percent
        on_grid = p.percent == 100.0 or (abs(steps - round(steps)) < SLACK and p.percent < 100.0)
        if p.percent < grid.minimum_percent - SLACK or not on_grid:
            shares = f"{grid.minimum_percent:g} to 100 in steps of {grid.step_percent:g}"
            yield Violation(p.id, f"{p.percent:g} % is no share of {device.name}: {shares}")
    if gpu.percent > 100.0 + SLACK:
        yield Violation(gpu.id, f"its shares add up to {gpu.percent:g} %")


def _steps(
    server: str, partitions: Sequence[Partition], profiles: Mapping[str, Profile]
) -> Iterator[Violation]:
    if (name := common_step(partitions, profiles)) is not None:
        way_out = "`isolated: true`" if len(partitions) == 1 else "`shadow: {policy: hot}`"
        yield Violation(
            server,
            f"its models execute {name} with several batches, and a server has one of it: write {way_out} at "
            "one of its workloads in the spec, and plan again",
        )


def _partition(partition: Partition, profiles: Mapping[str, Profile]) -> Iterator[Violation]:
    if not _has_distinct_models(partition):
        serves = "serves a model twice" if partition.models else "serves no model"
        yield Violation(partition.id, serves)
        return
    if not partition.workloads:
        yield Violation(partition.id, "serves no workload")
    called = {w.model for w in partition.workloads}
    for served in partition.models:
        yield from _served(partition, served, profiles)
        if called and served.model not in called:
            yield Violation(partition.id, f"serves {served.model}, and none of its workloads needs it")
    if partition.ordered:
        yield from _order(partition)
    names = [m.model for m in partition.models]
    for w in partition.workloads:
        if w.model not in names:
            yield Violation(w.name, f"needs {w.model} and its partition serves {', '.join(names)}")
    for queue in partition.queues().values():
        if len(queue) > 1:
            for w in queue:
                if w.isolated:
                    yield Violation(w.name, f"is to have its own queue and shares that of {partition.id}")
            if len({w.client_batch for w in queue}) > 1:
                yield Violation(partition.id, "its workloads send different batches and share a queue")


def _order(partition: Partition) -> Iterator[Violation]:
    """What keeps a partition's requests from leaving the gateway one by one in the order of its ranks."""
    if not partition.turns:
        yield Violation(partition.id, "has a rank for its only model: nothing waits for its turn")
    for served in partition.models:
        if served.rank is None:
            yield Violation(partition.id, f"{served.model} has no rank and other models have one")
        one = min((w.client_batch for w in partition.workloads if w.model == served.model), default=1)
        if served.batch != one:
            yield Violation(
                partition.id,
                f"{served.model} has a rank and batch {served.batch}: requests, of {one}, leave the gateway "
                "one by one",
            )


def _served(
    partition: Partition, served: ServedModel, profiles: Mapping[str, Profile]
) -> Iterator[Violation]:
    if served.model not in profiles:
        yield Violation(partition.id, f"{served.model} has no profile on this type of device")
        return
    only = profiles[served.model].only_percent
    if only is not None and partition.percent < only - SLACK:
        yield Violation(
            partition.id,
            f"{served.model} was measured at {only:g} % only, and its share is {partition.percent:g} %: "
            f"`ctl profile {served.model}` measures smaller ones",
        )
    largest = min(LARGEST_BATCH, profiles[served.model].largest_batch)
    if not 1 <= served.batch <= largest:
        yield Violation(partition.id, f"batch {served.batch} is outside 1 to {largest}")
    for client_batch in sorted({w.client_batch for w in partition.workloads if w.model == served.model}):
        if served.batch % client_batch:
            yield Violation(
                partition.id,
                f"batch {served.batch} is no multiple of the {client_batch} inferences in a request: Triton "
                "never splits one, and how many it takes together then depends on how they arrive",
            )
    if served.instances != 1:
        yield Violation(partition.id, f"{served.instances} instances: no model says how they share")
    if served.max_queue_delay_us != 0:
        yield Violation(partition.id, "a queue delay is not modelled")


def _placements(plan: Plan) -> Iterator[Violation]:
    pools: dict[str, list[Placement]] = {}
    queues: dict[str, set[frozenset[str]]] = {}
    in_turns: set[str] = set()
    for _, partition, w in plan.placements():
        if partition.turns:
            in_turns.add(w.name)
        specified = {"rate_rps": w.rate_rps, "slo_ms": w.slo_ms}
        for field, value in {**specified, **_predicted(w)}.items():
            if not math.isfinite(value):
                yield Violation(w.name, f"{_NOT_FINITE}: {field}")
            elif field in specified and value <= 0:
                yield Violation(w.name, f"{field} is {value:g}")
        if sum(other.name == w.name for other in partition.workloads) > 1:
            yield Violation(w.name, f"is twice in partition {partition.id}")
        pools.setdefault(w.name, []).append(w)
        queues.setdefault(w.name, set()).add(frozenset(x.name for x in partition.workloads))
    endpoints: dict[str, str] = {}
    for name, parts in pools.items():
        if len({_settings(p) for p in parts}) > 1:
            yield Violation(name, "its partitions disagree on endpoint, model, SLO, arrivals or client batch")
        if len(queues[name]) > 1:
            yield Violation(name, "its partitions serve different workloads: they are no servers of one pool")
        if len(parts) > 1 and name in in_turns and plan.rule is Rule.P99:
            yield Violation(name, "is a pool whose servers serve other models too: no model says its P99")
        if len(parts) > MOST_SERVERS:
            yield Violation(name, f"has {len(parts)} servers; the gateway has room for {MOST_SERVERS}")
        owner = endpoints.setdefault(parts[0].endpoint, name)
        if owner != name:
            yield Violation(name, f"shares the endpoint {parts[0].endpoint} with {owner}")


def _predicted(w: Placement) -> dict[str, float]:
    fields = ("execution_ms", "mean_ms", "p99_ms", "capacity_rps", "utilisation")
    return {f: v for f in fields if (v := getattr(w.predicted, f)) is not None}


def _settings(w: Placement | Workload) -> tuple[object, ...]:
    own = w.arrivals, w.dispersion, w.client_batch, w.isolated, w.longest_ms, w.drop_after_ms
    return w.endpoint, w.model, w.slo_ms, *own


def specified(plan: Plan, workloads: Sequence[Workload]) -> Iterator[Violation]:
    """Where a plan differs from the workloads it was made for: all in full, or called infeasible."""
    given: dict[str, list[Placement]] = {}
    for _, _, w in plan.placements():
        given.setdefault(w.name, []).append(w)
    infeasible = {i.workload for i in plan.infeasible}
    for asked in workloads:
        parts = given.pop(asked.name, [])
        if not parts:
            if asked.name not in infeasible:
                yield Violation(asked.name, "is lost: neither placed nor infeasible")
            continue
        if asked.name in infeasible:
            yield Violation(asked.name, "is placed and called infeasible")
        rate = sum(p.rate_rps for p in parts)
        if abs(rate - asked.rate_rps) > 1e-6 * asked.rate_rps:
            yield Violation(asked.name, f"its parts add up to {rate:g}/s, not {asked.rate_rps:g}/s")
        if any(_settings(p) != _settings(asked) for p in parts):
            other = "was asked for with another model, SLO, endpoint, arrivals or isolation"
            yield Violation(asked.name, other)
    for name in given:
        yield Violation(name, "was not asked for")


def _shadow(gpu: PlannedGpu, partition: Partition, by_id: Mapping[str, PlannedGpu]) -> Iterator[Violation]:
    shadow = partition.shadow
    if not has_standby(shadow):
        return
    host = by_id.get(shadow.gpu)
    if host is None:
        yield Violation(partition.id, f"its shadow stands on {shadow.gpu}, which is not in the plan")
        return
    if not (math.isfinite(shadow.percent) and math.isfinite(shadow.extra_percent)):
        yield Violation(partition.id, f"{_NOT_FINITE}: shadow.percent")
        return
    if shadow.policy is ShadowPolicy.SHARED and (gpu.shared is None or shadow.percent != gpu.shared.percent):
        yield Violation(partition.id, f"its shadow is shared, and {gpu.id} has none of its share")
    if abs(shadow.percent - partition.percent - shadow.extra_percent) > 1e-6:
        yield Violation(partition.id, "its shadow's percent is not its own and the extra")
    if shadow.extra_percent < -1e-6:
        yield Violation(partition.id, f"its shadow's extra is {shadow.extra_percent:g} %")
    active = host.percent - (partition.percent if host.id == gpu.id else 0.0) + shadow.percent
    if active > 100.0 + SLACK:
        yield Violation(partition.id, f"with its shadow active {host.id} carries {active:g} %")


def _clients(plan: Plan, devices: Mapping[str, Device]) -> Iterator[Violation]:
    running = Counter(gpu.id for gpu in plan.gpus if gpu.shared is not None)
    for gpu, partition in plan.partitions():
        count = clients_of(partition, devices[gpu.type]) if gpu.type in devices else 1
        running[gpu.id] += count
        if has_standby(shadow := partition.shadow):
            running[shadow.gpu] += count - (shadow.policy is ShadowPolicy.SHARED)
    for gpu in plan.gpus:
        count, most = running[gpu.id], most_clients(devices[gpu.type]) if gpu.type in devices else math.inf
        if count > most:
            reason = f"has {count} clients of MPS, those standing by included; it takes {most:g}"
            yield Violation(gpu.id, reason)


def _memory(plan: Plan, devices: Mapping[str, Device]) -> Iterator[Violation]:
    """Judge by the plan's own figure of a GPU's memory, else by the type's."""
    used = memory_used_mb(plan.gpus)
    for gpu in plan.gpus:
        has_mb = gpu.memory_mb
        if has_mb is None and gpu.type in devices:
            has_mb = devices[gpu.type].pool.device.memory_mb
        needed = sum(used[gpu.id].values())
        if has_mb is not None and needed > has_mb:
            by_whom = ", ".join(f"{name} {mb:g}" for name, mb in used[gpu.id].items())
            yield Violation(gpu.id, f"needs {needed:g} MB and has {has_mb:g} MB: {by_whom}")

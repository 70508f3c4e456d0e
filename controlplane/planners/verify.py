"""The only judge of a plan.

Every strategy asks it before it returns, `ctl apply` before it touches anything. It reads a plan as a file
would hold it and takes nothing from the strategy that made it. What cannot be known (memory that nobody
measured) is not judged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from controlplane.domain.device import Device as DeviceType
from controlplane.domain.device import noun
from controlplane.domain.plan import MOST_SERVERS, Partition, Placement, Plan, PlannedGpu, Rule, Violation
from controlplane.domain.profile import Profile
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import BoolArray, IntArray
from controlplane.planners.board import Board, Loads, Pool, Queues, Times, loads
from controlplane.planners.protocol import Device
from controlplane.planners.standby import SLACK, active_here, held, stands_by, turned_loads

LARGEST_BATCH = 32
"""Engines are built for batches up to this."""
EXTRA_PERCENT = 10.0
"""What a shadow gets on top, where its GPU has it (iGniter, Sec. 4.2)."""


def verify(
    plan: Plan, devices: Mapping[str, Device], workloads: Sequence[Workload] | None = None,
    queues: Queues | None = None,
) -> tuple[Violation, ...]:  # fmt: skip
    """What the plan promises and does not keep, by its own rule and quantile; empty for a good plan.

    `devices` maps each GPU type to the latency model and profiles it is judged by. With `workloads`, those
    asked for: each must be there in full or be called infeasible. `queues`: those solved already.
    """
    found = list(_structure(plan, devices))
    if workloads is not None:
        found.extend(_asked_for(plan, workloads))
    if not any(_stops(v, plan) for v in found) and _computable(plan, devices):
        found.extend(_promises(plan, devices, queues or Queues()))
    return tuple(dict.fromkeys(found))


def _stops(violation: Violation, plan: Plan) -> bool:
    return violation.reason.startswith("is no finite number")


def _computable(plan: Plan, devices: Mapping[str, Device]) -> bool:
    """Whether the latency models can be asked at all."""
    return all(
        gpu.type in devices
        and all(
            len(p.models) == 1
            and p.workloads
            and p.models[0].model in devices[gpu.type].profiles
            and p.models[0].batch >= 1
            and all(p.models[0].batch % w.client_batch == 0 for w in p.workloads)
            and 0 < p.percent <= 100
            for p in gpu.partitions
        )
        for gpu in plan.gpus
    )


# -- structure ---------------------------------------------------------------------------------------------


def _structure(plan: Plan, devices: Mapping[str, Device]) -> Iterator[Violation]:
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
            for partition in gpu.partitions:
                yield from _partition(partition, device.profiles)
                yield from _shadow(gpu, partition, by_id)
    yield from _servers(plan, devices)
    yield from _memory(plan)


def _shares(gpu: PlannedGpu, device: DeviceType) -> Iterator[Violation]:
    grid = device.grid
    for p in gpu.partitions:
        if not math.isfinite(p.percent):
            yield Violation(p.id, "is no finite number: percent")
            return
        steps = (p.percent - grid.minimum_percent) / grid.step_percent
        on_grid = p.percent == 100.0 or (abs(steps - round(steps)) < SLACK and p.percent < 100.0)
        if p.percent < grid.minimum_percent - SLACK or not on_grid:
            yield Violation(
                p.id,
                f"{p.percent:g} % is no share of {device.name}: {grid.minimum_percent:g} to 100 in steps of "
                f"{grid.step_percent:g}",
            )
    if gpu.percent > 100.0 + SLACK:
        yield Violation(gpu.id, f"its shares add up to {gpu.percent:g} %")


def _partition(partition: Partition, profiles: Mapping[str, Profile]) -> Iterator[Violation]:
    if len(partition.models) != 1:
        yield Violation(partition.id, f"serves {len(partition.models)} models; no model says what they take")
        return
    if not partition.workloads:
        yield Violation(partition.id, "serves no workload")
    served = partition.models[0]
    if served.model not in profiles:
        yield Violation(partition.id, f"{served.model} has no profile on this type of device")
        return
    largest = min(LARGEST_BATCH, profiles[served.model].largest_batch)
    if not 1 <= served.batch <= largest:
        yield Violation(partition.id, f"batch {served.batch} is outside 1 to {largest}")
    for client_batch in sorted({w.client_batch for w in partition.workloads}):
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
    for w in partition.workloads:
        if w.model != served.model:
            yield Violation(w.name, f"asks for {w.model} and its partition serves {served.model}")
    if len(partition.workloads) > 1:
        for w in partition.workloads:
            if w.isolated:
                yield Violation(w.name, f"is to have its own queue and shares that of {partition.id}")
        if len({w.client_batch for w in partition.workloads}) > 1:
            yield Violation(partition.id, "its workloads send different batches and share a queue")


def _placements(plan: Plan) -> Iterator[Violation]:
    pools: dict[str, list[Placement]] = {}
    queues: dict[str, set[frozenset[str]]] = {}
    for _, partition, w in plan.placements():
        numbers = {"rate_rps": w.rate_rps, "slo_ms": w.slo_ms}
        numbers |= {
            f: v for f in ("execution_ms", "mean_ms", "p99_ms", "capacity_rps", "utilisation")
            if (v := getattr(w.predicted, f)) is not None
        }  # fmt: skip
        for field, value in numbers.items():
            if not math.isfinite(value):
                yield Violation(w.name, f"is no finite number: {field}")
            elif field in ("rate_rps", "slo_ms") and value <= 0:
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
        if len(parts) > MOST_SERVERS:
            yield Violation(name, f"has {len(parts)} servers; the gateway has room for {MOST_SERVERS}")
        owner = endpoints.setdefault(parts[0].endpoint, name)
        if owner != name:
            yield Violation(name, f"shares the endpoint {parts[0].endpoint} with {owner}")


def _settings(w: Placement | Workload) -> tuple[object, ...]:
    return w.endpoint, w.model, w.slo_ms, w.arrivals, w.client_batch, w.isolated


def _asked_for(plan: Plan, workloads: Sequence[Workload]) -> Iterator[Violation]:
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
            yield Violation(
                asked.name, "was asked for with another model, SLO, endpoint, arrivals or isolation"
            )
    for name in given:
        yield Violation(name, "was not asked for")


def _shadow(gpu: PlannedGpu, partition: Partition, by_id: Mapping[str, PlannedGpu]) -> Iterator[Violation]:
    shadow = partition.shadow
    if not stands_by(shadow):
        return
    host = by_id.get(shadow.gpu)
    if host is None:
        yield Violation(partition.id, f"its shadow stands on {shadow.gpu}, which is not in the plan")
        return
    if not (math.isfinite(shadow.percent) and math.isfinite(shadow.extra_percent)):
        yield Violation(partition.id, "is no finite number: shadow.percent")
        return
    if abs(shadow.percent - partition.percent - shadow.extra_percent) > 1e-6:
        yield Violation(partition.id, "its shadow's percent is not its own and the extra")
    if not -1e-6 <= shadow.extra_percent <= EXTRA_PERCENT + 1e-6:
        yield Violation(partition.id, f"its shadow's extra is {shadow.extra_percent:g} %")
    active = host.percent - (partition.percent if host.id == gpu.id else 0.0)
    if active + shadow.percent > 100.0 + SLACK:
        yield Violation(
            partition.id, f"with its shadow active {host.id} carries {active + shadow.percent:g} %"
        )


def _servers(plan: Plan, devices: Mapping[str, Device]) -> Iterator[Violation]:
    running = Counter(gpu.id for gpu, _ in plan.partitions())
    running.update(p.shadow.gpu for _, p in plan.partitions() if stands_by(p.shadow))
    for gpu in plan.gpus:
        most = devices[gpu.type].pool.device.most_servers if gpu.type in devices else None
        if most is not None and running[gpu.id] > most:
            yield Violation(
                gpu.id, f"runs {running[gpu.id]} servers, those standing by included; it takes {most}"
            )


def _memory(plan: Plan) -> Iterator[Violation]:
    needed: Counter[str] = Counter()
    for gpu, partition in plan.partitions():
        needed[gpu.id] += int(partition.memory_mb or 0)
        if partition.shadow is not None:
            needed[partition.shadow.gpu] += int(partition.shadow.memory_mb or 0)
    for gpu in plan.gpus:
        if gpu.memory_mb is not None and needed[gpu.id] > gpu.memory_mb:
            yield Violation(
                gpu.id, f"needs {needed[gpu.id]} MB with all shadows and has {gpu.memory_mb:g} MB"
            )


# -- promises ----------------------------------------------------------------------------------------------


def _promises(plan: Plan, devices: Mapping[str, Device], queues: Queues) -> Iterator[Violation]:
    quantile = plan.quantile if plan.rule is Rule.P99 else None
    boards = {
        name: Board.of([g for g in plan.gpus if g.type == name], devices[name])
        for name in {g.type: None for g in plan.gpus}
    }
    found = loads(boards, devices, plan.rule, quantile, queues)
    for name, board in boards.items():
        yield from _broken(board, found[name], held(board, found[name], plan.rule), plan.rule)
    for name, board in boards.items():
        yield from _active_here(board, found[name], devices[name], plan.rule, quantile, queues)
    yield from _active_elsewhere(plan, boards, found, devices, quantile, queues)


def _broken(
    board: Board, found: Loads, kept: BoolArray, rule: Rule, when: str = "", subject: str | None = None
) -> Iterator[Violation]:
    for i, j in np.argwhere(~kept).tolist():
        partition = board.gpus[i].partitions[j]
        names = "+".join(w.name for w in partition.workloads)
        rate, capacity = board.rate[i, j], found.times.capacity_rps[i, j]
        slo, execution, p99 = board.slo_ms[i, j], found.times.execution_ms[i, j], found.p99_ms[i, j]
        if rate > capacity * (1.0 + SLACK):
            reason = f"{rate:.5g}/s arrive and {capacity:.5g}/s can be served"
        elif rule is Rule.P99:
            reason = (
                f"its queue does not settle at {rate:.5g}/s"
                if not math.isfinite(p99)
                else f"its P99 is {p99:.4g} ms and its SLO {slo:g} ms"
            )
        else:
            reason = f"a batch takes {execution:.4g} ms and half its SLO is {slo / 2:g} ms"
        yield Violation(subject or names, reason + (f" ({names}{when})" if when else ""))


def _active_here(
    board: Board, base: Loads, device: Device, rule: Rule, quantile: float | None, queues: Queues
) -> Iterator[Violation]:
    """Each shadow on its own GPU made active in turn: the partition has the shadow's share then."""
    active = [
        (i, j, p.shadow.percent)
        for i, gpu in enumerate(board.gpus)
        for j, p in enumerate(gpu.partitions)
        if stands_by(p.shadow) and p.shadow.gpu == gpu.id and p.shadow.percent > p.percent
    ]
    if not active:
        return
    rows, columns = np.array([i for i, _, _ in active]), np.array([j for _, j, _ in active])
    turned = active_here(board, rows, columns, np.array([p for _, _, p in active]))
    before = held(board, base, rule)
    yield from _turned(turned, rows, columns, base, before, device, rule, quantile, queues)


def _turned(
    turned: Board, rows: IntArray, columns: IntArray, base: Loads, before: BoolArray, device: Device,
    rule: Rule, quantile: float | None, queues: Queues, guest: Pool | None = None,
) -> Iterator[Violation]:  # fmt: skip
    """Judge GPUs with one partition changed: row n is row `rows[n]` of the plan, changed at `columns[n]`.

    `before`: which promises of the plan's rows are kept unchanged. `guest`: see `turned_loads`.
    """
    changed = turned_loads(turned, rows, base, device, rule, quantile, queues, guest)
    kept = held(turned, changed, rule)
    # What is broken without the shadow has been said.
    width = min(before.shape[1], kept.shape[1])
    kept[:, :width] |= ~before[rows][:, :width]
    for n in np.flatnonzero(~kept.all(axis=1)).tolist():
        one = Loads(
            Times(changed.times.execution_ms[[n]], changed.times.capacity_rps[[n]]),
            changed.mean_ms[[n]], changed.p99_ms[[n]], {},
        )  # fmt: skip
        shadowed = turned.gpus[n].partitions[int(columns[n])].id
        gpu = turned.take(np.array([n]))
        yield from _broken(gpu, one, kept[[n]], rule, " beside the active shadow", shadowed)


def _active_elsewhere(
    plan: Plan,
    boards: Mapping[str, Board],
    found: Mapping[str, Loads],
    devices: Mapping[str, Device],
    quantile: float | None,
    queues: Queues,
) -> Iterator[Violation]:
    """Each shadow on another GPU made active in turn: that GPU has one partition more then."""
    by_id = {g.id: g for g in plan.gpus}
    pools = {
        p.id: found[name].pools.get((i, j))
        for name, board in boards.items()
        for i, g in enumerate(board.gpus)
        for j, p in enumerate(g.partitions)
    }
    for gpu, partition in plan.partitions():
        shadow = partition.shadow
        if not stands_by(shadow) or shadow.gpu == gpu.id or shadow.gpu not in by_id:
            continue
        host = by_id[shadow.gpu]
        device = devices[host.type]
        if partition.models[0].model not in device.profiles:
            yield Violation(
                partition.id, f"its shadow's device type has no profile of {partition.models[0].model}"
            )
            continue
        more = replace(
            host, partitions=(*host.partitions, replace(partition, percent=min(shadow.percent, 100.0)))
        )
        row = next(i for i, g in enumerate(boards[host.type].gpus) if g.id == host.id)
        turned = Board.of([more], device)
        yield from _turned(
            turned, np.array([row]), np.array([len(host.partitions)]), found[host.type],
            held(boards[host.type], found[host.type], plan.rule), device, plan.rule, quantile, queues,
            pools[partition.id],
        )  # fmt: skip

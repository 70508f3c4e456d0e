"""What stands by for each partition.

A shadow's share is the active one and an extra of min(10 %, what its GPU has left) (iGniter, Sec. 4.2). Where
that extra, once active, would break a neighbour's promise, it is the largest smaller one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from controlplane.domain.plan import Partition, PlannedGpu, Rule, Shadow
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, ShadowWish
from controlplane.planners.board import Board, Loads, Queues
from controlplane.planners.protocol import Device
from controlplane.planners.standby import active_here, held, turned_loads

EXTRA_PERCENT = 10.0
_RANK = {ShadowPolicy.HOT: 2, ShadowPolicy.WARM: 1, ShadowPolicy.NONE: 0}


def wish_of(partition: Partition, wishes: Mapping[str, ShadowWish]) -> ShadowWish:
    """The most careful wish of a partition's workloads."""
    asked = [wishes[w.name] for w in partition.workloads]
    policy = max((a.policy for a in asked), key=_RANK.__getitem__)
    elsewhere = any(a.place is ShadowPlace.OTHER_GPU and a.policy is not ShadowPolicy.NONE for a in asked)
    return ShadowWish(policy, ShadowPlace.OTHER_GPU if elsewhere else ShadowPlace.SAME_GPU)


def with_shadows(
    gpus: Sequence[PlannedGpu],
    wishes: Mapping[str, ShadowWish],
    boards: Mapping[str, Board],
    base: Mapping[str, Loads],
    devices: Mapping[str, Device],
    rule: Rule,
    quantile: float | None,
    queues: Queues | None,
) -> tuple[PlannedGpu, ...]:
    """The GPUs with the shadows asked for; more GPUs of a type where none has room for one elsewhere.

    A shadow that no GPU has room for is left out. `boards` and `base` are the GPUs as arrays and what is
    expected of them.
    """
    extras = {
        name: _extras_here(board, base[name], devices[name], wishes, rule, quantile, queues)
        for name, board in boards.items()
    }
    made = []
    for gpu in gpus:
        partitions: list[Partition] = []
        for partition in gpu.partitions:
            wish = wish_of(partition, wishes)
            here = wish.policy is not ShadowPolicy.NONE and wish.place is ShadowPlace.SAME_GPU
            if here and len(gpu.partitions) + len(partitions) < _most_servers(devices[gpu.type]):
                extra = extras[gpu.type].get(partition.id, 0.0)
                partition = replace(partition, shadow=_shadow(partition, wish.policy, gpu.id, extra))
            partitions.append(partition)
        made.append(replace(gpu, partitions=tuple(partitions)))
    elsewhere = [
        (i, j)
        for i, gpu in enumerate(gpus)
        for j, p in enumerate(gpu.partitions)
        if wish_of(p, wishes).place is ShadowPlace.OTHER_GPU
    ]
    for i, j in elsewhere:
        _elsewhere(made, i, j, wishes, boards, base, devices, rule, quantile, queues)
    return tuple(made)


def _shadow(partition: Partition, policy: ShadowPolicy, gpu: str, extra: float) -> Shadow:
    # An unloaded model takes no memory of its own that anybody measured.
    memory = partition.memory_mb if policy is ShadowPolicy.HOT else None
    return Shadow(policy, gpu, extra, partition.percent + extra, memory)


def _extras_here(
    board: Board,
    base: Loads,
    device: Device,
    wishes: Mapping[str, ShadowWish],
    rule: Rule,
    quantile: float | None,
    queues: Queues | None,
) -> dict[str, float]:
    step = device.pool.device.grid.step_percent
    free = 100.0 - np.where(board.slots.mask, board.slots.percent, 0.0).sum(axis=1)
    asked = [
        (i, j)
        for i, gpu in enumerate(board.gpus)
        for j, p in enumerate(gpu.partitions)
        if wish_of(p, wishes) == ShadowWish(wish_of(p, wishes).policy, ShadowPlace.SAME_GPU)
    ]
    found: dict[str, float] = {}
    if not asked:
        return found
    rows, columns = np.array([i for i, _ in asked]), np.array([j for _, j in asked])
    extra = np.maximum(np.floor(np.minimum(EXTRA_PERCENT, free[rows]) / step + 1e-9) * step, 0.0)
    open_ = extra > 0
    while open_.any():
        now = np.flatnonzero(open_)
        percents = board.slots.percent[rows[now], columns[now]] + extra[now]
        turned = active_here(board, rows[now], columns[now], percents)
        kept = held(turned, turned_loads(turned, rows[now], base, device, rule, quantile, queues), rule)
        # A neighbour that breaks its promise anyhow is not the shadow's doing.
        kept = np.asarray(kept | ~held(board, base, rule)[rows[now]])
        broken = now[~kept.all(axis=1)]
        extra[broken] -= step
        open_[:] = False
        open_[broken] = extra[broken] > 1e-9
    extra = np.maximum(extra, 0.0)
    for (i, j), value in zip(asked, extra.tolist(), strict=True):
        found[board.gpus[i].partitions[j].id] = value
    return found


def _elsewhere(
    made: list[PlannedGpu],
    i: int,
    j: int,
    wishes: Mapping[str, ShadowWish],
    boards: Mapping[str, Board],
    base: Mapping[str, Loads],
    devices: Mapping[str, Device],
    rule: Rule,
    quantile: float | None,
    queues: Queues | None,
) -> None:
    """Find another GPU of the same type for the shadow of partition j of GPU i, or open one."""
    gpu, partition = made[i], made[i].partitions[j]
    device = devices[gpu.type]
    policy = wish_of(partition, wishes).policy
    hosts = [h for h in made if h.type == gpu.type and h.id != gpu.id]
    hosts.sort(key=lambda h: h.percent)
    row_of = {g.id: r for r, g in enumerate(boards[gpu.type].gpus)}
    pool = base[gpu.type].pools.get((row_of[gpu.id], j))
    step = device.pool.device.grid.step_percent
    for host in hosts:
        room = 100.0 - host.percent - partition.percent
        if room < -1e-9 or not _takes(made, host, device, partition.memory_mb, policy):
            continue
        extra = max(np.floor(min(EXTRA_PERCENT, room) / step + 1e-9) * step, 0.0)
        shadow = _shadow(partition, policy, host.id, float(extra))
        more = replace(host, partitions=(*host.partitions, replace(partition, percent=shadow.percent)))
        turned = Board.of([more], device)
        rows = np.array([row_of.get(host.id, -1)])
        beside = turned_loads(turned, rows, base[gpu.type], device, rule, quantile, queues, pool)
        if held(turned, beside, rule).all():
            break
    else:
        used = sum(g.type == gpu.type for g in made)
        if device.pool.count is not None and used >= device.pool.count:
            return
        host = PlannedGpu(
            f"{gpu.type}-{used}", gpu.type, (), device.pool.price_per_hour, device.pool.device.memory_mb
        )
        made.append(host)
        extra = min(EXTRA_PERCENT, 100.0 - partition.percent)
        shadow = _shadow(partition, policy, host.id, float(np.floor(extra / step + 1e-9) * step))
    partitions = list(gpu.partitions)
    partitions[j] = replace(partition, shadow=shadow)
    made[i] = replace(gpu, partitions=tuple(partitions))


def _most_servers(device: Device) -> float:
    most = device.pool.device.most_servers
    return math.inf if most is None else most


def _takes(
    made: Sequence[PlannedGpu],
    host: PlannedGpu,
    device: Device,
    memory_mb: float | None,
    policy: ShadowPolicy,
) -> bool:
    """Whether a GPU takes one more server, of this memory."""
    shadows = [p.shadow for g in made for p in g.partitions if p.shadow and p.shadow.gpu == host.id]
    if len(host.partitions) + len(shadows) >= _most_servers(device):
        return False
    if host.memory_mb is None or memory_mb is None or policy is not ShadowPolicy.HOT:
        return True
    used = sum(p.memory_mb or 0.0 for p in host.partitions) + sum(s.memory_mb or 0.0 for s in shadows)
    return used + memory_mb <= host.memory_mb

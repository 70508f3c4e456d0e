"""What stands by for each partition.

A shadow's share is the active one and an extra: on its own GPU what covers most, on another one 10 % where
that has it. Where an extra, once active, would break a neighbour's promise, it is the largest smaller one
that does not.

A shared shadow takes one context where each hot one takes its own, and has one share whichever partition it
serves. So it holds only partitions of like shares: at least the largest one's, and no more than the smallest
one leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import Partition, Plan, PlannedGpu, Shadow, SharedShadow, memory_used_mb
from controlplane.domain.workload import LOADED, ShadowPlace, ShadowPolicy, ShadowWish
from controlplane.planning.judge.evaluate import Evaluation, Terms, evaluate_changed, with_guest
from controlplane.planning.judge.extras import covering_extras, harmless
from controlplane.planning.judge.placements import (
    PROCESS,
    clients_of,
    common_step,
    gpu_of,
    load_s_of,
    most_clients,
)
from controlplane.planning.protocol import Device

EXTRA_PERCENT = 10.0
"""What a shadow gets on top, where its GPU has it (iGniter, Sec. 4.2)."""

_RANK = {
    policy: rank
    for rank, policy in enumerate(
        (ShadowPolicy.NONE, ShadowPolicy.WARM, ShadowPolicy.AUTO, ShadowPolicy.SHARED, ShadowPolicy.HOT)
    )
}
_ROUNDING = 1e-9
_FARNESS = {place: rank for rank, place in enumerate(ShadowPlace)}


def with_shadows(
    gpus: Sequence[PlannedGpu],
    wishes: Mapping[str, ShadowWish],
    found: Mapping[str, Evaluation],
    devices: Mapping[str, Device],
    terms: Terms,
    most_extra: float | None = None,
) -> tuple[PlannedGpu, ...]:
    """The GPUs with the shadows asked for; more GPUs of a type where none has room for one elsewhere.

    A shadow that no GPU has room for is left out. `found` is what is expected of the GPUs without shadows, in
    the order of `gpus`. `most_extra`: what each shadow gets at most on top of its partition's share, None for
    what covers most.
    """
    extras = _extras_here(wishes, found, devices, terms, most_extra)
    made = []
    for gpu in gpus:
        partitions: list[Partition] = []
        device = devices[gpu.type]
        policies, shared = _policies_here(gpu, wishes, device, found[gpu.type], terms)
        clients = sum(clients_of(p, device) for p in gpu.partitions)
        for partition in gpu.partitions:
            policy, more = policies.get(partition.id), clients_of(partition, device)
            if policy is not None and clients + more <= most_clients(device):
                clients += more
                wish = replace(wish_of(partition, wishes), policy=policy)
                extra = extras.get(partition.id, 0.0)
                if shared is not None and policy is ShadowPolicy.SHARED:
                    extra = shared.percent - partition.percent
                shadow = _shadow(partition, wish, gpu.id, extra, device)
                partition = replace(partition, shadow=shadow)
            partitions.append(partition)
        made.append(replace(gpu, partitions=tuple(partitions), shared=shared))
    placing = _Elsewhere(made, wishes, found, devices, terms)
    for i, gpu in enumerate(gpus):
        for j, partition in enumerate(gpu.partitions):
            if wish_of(partition, wishes).place is not ShadowPlace.SAME_GPU:
                placing.place(i, j)
    return tuple(made)


def wish_of(partition: Partition, wishes: Mapping[str, ShadowWish]) -> ShadowWish:
    """The most careful wish of a partition's workloads."""
    asked = [wishes[w.name] for w in partition.workloads]
    policy = max((a.policy for a in asked), key=_RANK.__getitem__)
    places = [a.place for a in asked if a.policy is not ShadowPolicy.NONE]
    place = max(places, key=_FARNESS.__getitem__, default=ShadowPlace.SAME_GPU)
    covers = max((a.covers for a in asked if a.covers is not None), default=None)
    return ShadowWish(policy, place, covers, min((s for a in asked if (s := a.within_s)), default=None))


def _policies_here(
    gpu: PlannedGpu, wishes: Mapping[str, ShadowWish], device: Device, base: Evaluation, terms: Terms
) -> tuple[dict[str, ShadowPolicy], SharedShadow | None]:
    """The policy of each shadow that stands on this GPU, by the partition's id, and the shared one.

    Where the memory is not enough for all to be hot, as many as possible are of those that would answer later
    than is demanded, then of those later than they should. They share one where so more of them are loaded.
    """
    standing = [p for p in gpu.partitions if stands_here(wish_of(p, wishes))]
    policies = {p.id: wish_of(p, wishes).policy for p in standing}
    left = math.inf
    if gpu.memory_mb is not None:
        left = gpu.memory_mb - sum(p.memory_mb or 0.0 for p in gpu.partitions)
        left -= sum(p.memory_mb or 0.0 for p in standing if policies[p.id] is ShadowPolicy.HOT)
    sharing = [p for p in standing if policies[p.id] is ShadowPolicy.SHARED]
    late = {p.id: _lateness(wish_of(p, wishes), _load_s(p, device)) for p in standing}
    open_ = [p for p in standing if policies[p.id] is ShadowPolicy.AUTO]
    open_.sort(key=lambda p: (-late[p.id], p.memory_mb or 0.0))

    def with_shared(members: Sequence[Partition]) -> _Loaded | None:
        found = shared_shadow(gpu, members, base, device, terms)
        if found is None or (not sharing and (found[0].memory_mb or 0.0) > left):
            return None
        ids = {p.id for p in found[1]}
        rest = [p for p in open_ if p.id not in ids]
        return _Loaded(found[0], ids, _hot(rest, left - (found[0].memory_mb or 0.0)))

    best = _Loaded(None, set(), _hot(open_, left))
    if sharing:
        best = with_shared(sharing) or best
    elif any(late[p.id] and p.id not in best.hot for p in open_):
        for least in (1, 2):
            one = with_shared([p for p in open_ if late[p.id] >= least])
            best = best if one is None else max(best, one, key=lambda ways: ways.worth(late))
    # One that no other partition can share is a hot one.
    policies |= {p.id: ShadowPolicy.HOT for p in sharing}
    policies |= {p.id: ShadowPolicy.HOT if p.id in best.hot else ShadowPolicy.WARM for p in open_}
    return policies | dict.fromkeys(best.members, ShadowPolicy.SHARED), best.shared


def _lateness(wish: ShadowWish, load_s: float | None) -> int:
    """0 where a redirect to a shadow that must load is in time, 2 where it is later than demanded, else 1."""
    return 0 if wish.in_time(load_s) else 1 if wish.within_s is None else 2


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The shadows of a GPU that are loaded: a shared one with its members, and hot ones; by partition."""

    shared: SharedShadow | None
    members: set[str]
    hot: set[str]

    def worth(self, late: Mapping[str, int]) -> tuple[int, int]:
        """How many are loaded that would answer later than demanded, and later than they should."""
        lateness = [n for name, n in late.items() if name in self.members | self.hot]
        return sum(n == 2 for n in lateness), sum(n > 0 for n in lateness)


def _hot(partitions: Sequence[Partition], left_mb: float) -> set[str]:
    """Those of these partitions whose shadows the memory that is left suffices for, one after the other."""
    hot = set()
    for p in partitions:
        if (p.memory_mb or 0.0) <= left_mb:
            hot.add(p.id)
            left_mb -= p.memory_mb or 0.0
    return hot


def _load_s(partition: Partition, device: Device) -> float | None:
    return load_s_of((m.model for m in partition.models), device)


def shared_shadow(
    gpu: PlannedGpu, wishing: Sequence[Partition], base: Evaluation, device: Device, terms: Terms
) -> tuple[SharedShadow, tuple[Partition, ...]] | None:
    """Return the shadow that most of these partitions can share, and them; None where no two can.

    `base` is what is expected of all GPUs of this type with no shadow active.
    """
    members = _alike(_in_one_server(wishing, device), 100.0 - gpu.percent)
    if len(members) < 2:
        return None
    step = device.pool.device.grid.step_percent
    room = 100.0 - gpu.percent + members[0].percent
    most = 100.0 if room >= 100.0 else math.floor(room / step + _ROUNDING) * step
    asked = {p.id: max(most - p.percent, 0.0) for p in members}
    extras = harmless(base, asked, device, terms)
    percent = min(p.percent + extras[p.id] for p in members)
    if percent < members[-1].percent - _ROUNDING:
        return None
    known = [p.memory_mb for p in members if p.memory_mb is not None]
    # What a process takes without a model is there once.
    again_mb = device.pool.device.hardware.get(PROCESS, 0.0) * (len(members) - 1)
    memory_mb = sum(known) - again_mb if len(known) == len(members) else None
    return SharedShadow(f"{gpu.id}.shared", percent, memory_mb), members


def _alike(partitions: Sequence[Partition], room: float) -> tuple[Partition, ...]:
    """Return the most partitions whose shares differ by no more than `room`, the smallest first."""
    ordered = sorted(partitions, key=lambda p: p.percent)
    windows = (
        tuple(p for p in ordered[i:] if p.percent <= first.percent + room + _ROUNDING)
        for i, first in enumerate(ordered)
    )
    return max(windows, key=len, default=())


def _in_one_server(partitions: Sequence[Partition], device: Device) -> list[Partition]:
    """Return one partition of each pool, without those that execute a model with another batch.

    A server has an endpoint and a model once.
    """
    kept: list[Partition] = []
    for one in {frozenset(w.endpoint for w in p.workloads): p for p in partitions}.values():
        if common_step((*kept, one), device.profiles) is None:
            kept.append(one)
    return kept


def has_room_for_shadows(gpu: PlannedGpu, wishes: Mapping[str, ShadowWish], device: Device) -> bool:
    """Whether a GPU takes its servers and those that stand by beside them, by their number and memory."""
    clients, needed_mb = taken_with_shadows(gpu, wishes, device)
    return clients <= most_clients(device) and (gpu.memory_mb is None or needed_mb <= gpu.memory_mb)


def taken_with_shadows(
    gpu: PlannedGpu, wishes: Mapping[str, ShadowWish], device: Device
) -> tuple[int, float]:
    """How many clients of MPS a GPU has, and their MB, with its partitions' shadows that stand beside."""
    clients, needed_mb = 0, 0.0
    for partition in gpu.partitions:
        wish = wish_of(partition, wishes)
        here = stands_here(wish)
        loaded = wish.policy_for(_load_s(partition, device)) in LOADED
        clients += (2 if here else 1) * clients_of(partition, device)
        needed_mb += (partition.memory_mb or 0.0) * (2.0 if here and loaded else 1.0)
    return clients, needed_mb


def _shadow(partition: Partition, wish: ShadowWish, gpu: str, extra: float, device: Device) -> Shadow:
    # An unloaded model takes no memory of its own that was measured; what is shared has it once for all.
    memory = partition.memory_mb if wish.policy is ShadowPolicy.HOT else None
    load_s = _load_s(partition, device) if wish.policy is ShadowPolicy.WARM else None
    # Which GPUs share a node is known where the plan is applied.
    other_node = wish.place is ShadowPlace.OTHER_NODE
    percent = partition.percent + extra
    return Shadow(wish.policy, gpu, extra, percent, memory, other_node, load_s=load_s)


def _extras_here(
    wishes: Mapping[str, ShadowWish],
    found: Mapping[str, Evaluation],
    devices: Mapping[str, Device],
    terms: Terms,
    most_extra: float | None,
) -> dict[str, float]:
    """The extra percent of each partition whose shadow stands on its own GPU, by partition id."""
    gpus = [gpu for base in found.values() for gpu in base.layout.gpus]
    here = {g.id: [j for j, p in enumerate(g.partitions) if stands_here(wish_of(p, wishes))] for g in gpus}
    if most_extra is None:
        extras = covering_extras(here, found, devices, terms)
    else:
        extras = {
            g.partitions[j].id: _extra(devices[g.type], 100.0 - g.percent, most_extra)
            for g in gpus
            for j in here[g.id]
        }
    own = [harmless(base, extras, devices[name], terms) for name, base in found.items()]
    return {name: min(one[name] for one in own) for name in extras}


def short_of_cover(plan: Plan, wishes: Mapping[str, ShadowWish]) -> dict[str, float]:
    """What is demanded of a shadow over what it covers, by partition, where that is more than 1."""
    asked = {p.id: (wish_of(p, wishes).covers, p.shadow) for _, p in plan.partitions()}
    return {
        name: least / shadow.covers
        for name, (least, shadow) in asked.items()
        if least is not None and shadow is not None and shadow.covers is not None and shadow.covers < least
    }


def stands_here(wish: ShadowWish) -> bool:
    """Whether a shadow stands on the GPU of its partition."""
    return wish.policy is not ShadowPolicy.NONE and wish.place is ShadowPlace.SAME_GPU


def _extra(device: Device, room: float, most: float = EXTRA_PERCENT) -> float:
    step = device.pool.device.grid.step_percent
    return max(math.floor(min(most, room) / step + 1e-9) * step, 0.0)


@dataclass(slots=True)
class _Elsewhere:
    """Shadows on other GPUs, placed one after the other; `made` are the GPUs so far."""

    made: list[PlannedGpu]
    wishes: Mapping[str, ShadowWish]
    found: Mapping[str, Evaluation]
    devices: Mapping[str, Device]
    terms: Terms

    def place(self, i: int, j: int) -> None:
        """Find another GPU of the same type for the shadow of partition j of GPU i, or open one."""
        gpu, partition = self.made[i], self.made[i].partitions[j]
        device, wish = self.devices[gpu.type], wish_of(partition, self.wishes)
        policy = wish.policy_for(_load_s(partition, device))
        auto = policy is ShadowPolicy.AUTO
        policy = ShadowPolicy.HOT if auto else policy
        host = self._host(gpu, j, policy)
        if host is None and auto and (host := self._host(gpu, j, ShadowPolicy.WARM)) is not None:
            policy = ShadowPolicy.WARM
        if host is None:
            used = sum(g.type == gpu.type for g in self.made)
            if device.pool.count is not None and used >= device.pool.count:
                return
            self.made.append(gpu_of(used, device, ()))
            host = self.made[-1], _extra(device, 100.0 - partition.percent)
        shadow = _shadow(partition, replace(wish, policy=policy), host[0].id, host[1], device)
        partitions = list(gpu.partitions)
        partitions[j] = replace(partition, shadow=shadow)
        self.made[i] = replace(gpu, partitions=tuple(partitions))

    def _host(self, gpu: PlannedGpu, j: int, policy: ShadowPolicy) -> tuple[PlannedGpu, float] | None:
        """The emptiest GPU that holds the shadow of a GPU's partition, and the extra percent it has there."""
        partition, device = gpu.partitions[j], self.devices[gpu.type]
        base = self.found[gpu.type]
        row_of = {g.id: r for r, g in enumerate(base.layout.gpus)}
        guest = base.pools_of(row_of[gpu.id], base.layout.gpus[row_of[gpu.id]].partitions[j])
        hosts = [h for h in self.made if h.type == gpu.type and h.id != gpu.id]
        for host in sorted(hosts, key=lambda h: h.percent):
            room = 100.0 - host.percent - partition.percent
            if room < -1e-9 or not self._takes_server(host, device, partition, policy):
                continue
            extra = _extra(device, room)
            changed = with_guest(host, partition, partition.percent + extra, device)
            rows = np.array([row_of.get(host.id, -1)])
            if evaluate_changed(changed, rows, base, device, self.terms, guest).meets_slo.all():
                return host, extra
        return None

    def _takes_server(self, host: PlannedGpu, device: Device, guest: Partition, policy: ShadowPolicy) -> bool:
        """Whether a GPU takes a server for one more partition."""
        shadowed = [p for g in self.made for p in g.partitions if p.shadow and p.shadow.gpu == host.id]
        if sum(clients_of(p, device) for p in (*host.partitions, *shadowed, guest)) > most_clients(device):
            return False
        memory_mb = guest.memory_mb
        if host.memory_mb is None or memory_mb is None or policy is not ShadowPolicy.HOT:
            return True
        return sum(memory_used_mb(self.made)[host.id].values()) + memory_mb <= host.memory_mb

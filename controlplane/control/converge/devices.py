"""Which device of a host or a cluster each GPU of a plan is. Pure."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.domain.device import CPU_DEVICE, HeldDevice
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, PlannedGpu

Available = Mapping[str, Sequence[HeldDevice]]
"""The devices of each type, in the order in which plans count them."""
NOTHING_KNOWN: Mapping[str, str] = {}


def map_devices(plan: Plan, available: Available, known: Mapping[str, str] = NOTHING_KNOWN) -> dict[str, str]:
    """Map a plan's GPU ids to devices: `v100-3` is the fourth v100. `cpu-1` is core 1 of a host.

    In a cluster `cpu-1` is the second of all cores; a `node_selector` leaves those of other nodes out. A GPU
    stays on the device in `known`, an earlier mapping, while that is available, so that a node that is away
    moves no other. A partition and its `other_node` shadow get devices of two nodes. Raises InputError naming
    what is missing.
    """
    wanted = {gpu.id: _Wanted.of(gpu, available, known) for gpu in plan.gpus}
    partners = _partners(plan)
    reserved = {one.known for one in wanted.values() if one.known is not None}
    found: dict[str, HeldDevice] = {}
    for name in _neighbours_next_to_each_other(wanted, partners):
        taken = {device.name for device in found.values()}
        avoided = {found[other].node for other in partners[name] if other in found}
        free = [d for d in wanted[name].preferred(reserved) if d.name not in taken]
        chosen = next((d for d in free if d.node not in avoided), None)
        if chosen is None:
            raise InputError(_refusal(partners[name], wanted[name].devices), field=name)
        found[name] = chosen
    return {gpu.id: found[gpu.id].name for gpu in plan.gpus}


def missing_gpus(plan: Plan, available: Available) -> tuple[PlannedGpu, ...]:
    """Return the GPUs of a plan beyond the devices of their type, on nodes with their labels."""
    left = Counter[tuple[str, tuple[tuple[str, str], ...]]]()
    missing = []
    for gpu in plan.gpus:
        kind = (gpu.type, tuple(gpu.node_selector.items()))
        left[kind] += 1
        if left[kind] > sum(device.has(gpu.node_selector) for device in available.get(gpu.type, ())):
            missing.append(gpu)
    return tuple(missing)


def packed_devices(plan: Plan, available: Available, known: Mapping[str, str]) -> dict[str, str]:
    """Map as `map_devices`, and leave nodes without a server whose GPUs the other ones in use hold too.

    The emptiest node is tried first. Nothing moves to a node that is not in use: that may empty none.
    """
    found = map_devices(plan, available, known)
    node_of = {device.name: device.node for devices in available.values() for device in devices}
    used = Counter(node_of[name] for name in found.values())
    available = {kind: [d for d in devices if d.node in used] for kind, devices in available.items()}
    for node, _ in sorted(used.items(), key=lambda one: (one[1], one[0])):
        rest = {kind: [d for d in devices if d.node != node] for kind, devices in available.items()}
        with contextlib.suppress(InputError):
            found, available = map_devices(plan, rest, found), rest
    return found


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The devices that one GPU of a plan may be. `index` is its own among them, `known` the earlier one."""

    devices: tuple[HeldDevice, ...]
    index: int
    known: str | None

    @classmethod
    def of(cls, gpu: PlannedGpu, available: Available, known: Mapping[str, str]) -> _Wanted:
        devices = _selected(gpu, available)
        names = [device.name for device in devices]
        number = gpu.id.removeprefix(f"{gpu.type}-")
        if gpu.type == CPU_DEVICE and names[0].startswith(f"{CPU_DEVICE}-"):
            # A host's core, by its own name.
            if gpu.id in names:
                return cls((devices[names.index(gpu.id)],), 0, None)
        elif number.isdigit() and (int(number) < len(names) or devices[0].node):
            # In a cluster nodes come and go, so a number is only where a search for a device begins.
            return cls(devices, int(number), known[gpu.id] if known.get(gpu.id) in names else None)
        raise InputError(f"there are {len(names)}: {', '.join(names)}", field=gpu.id)

    def preferred(self, reserved: set[str]) -> list[HeldDevice]:
        """The devices, best first: the earlier one, those that no other GPU had, the one of its number."""
        own = self.devices[self.index : self.index + 1]
        others = (*own, *(device for device in self.devices if device not in own))
        return sorted(others, key=lambda one: (one.name != self.known, one.name in reserved))


def _selected(gpu: PlannedGpu, available: Available) -> tuple[HeldDevice, ...]:
    """Return the devices of a GPU's type on nodes with its labels. Raises InputError where there is none."""
    devices = available.get(gpu.type, ())
    if not devices:
        known = ", ".join(sorted(t for t, found in available.items() if found)) or "none"
        raise InputError(f"there is no device of type {gpu.type!r}; there are: {known}", field=gpu.id)
    if not gpu.node_selector:
        return tuple(devices)
    if not any(device.node for device in devices):
        raise InputError("node_selector is for --launcher kubernetes: this host has no nodes", field=gpu.id)
    selected = tuple(device for device in devices if device.has(gpu.node_selector))
    if not selected:
        labels = ", ".join(f"{key}={value}" for key, value in gpu.node_selector.items())
        problem = f"no node with a {gpu.type!r} that takes pods has the labels {labels}"
        raise InputError(f"{problem}: `kubectl label node`, or change node_selector and plan", field=gpu.id)
    return selected


def _partners(plan: Plan) -> dict[str, set[str]]:
    """Return for each GPU those that must be on another node."""
    partners: dict[str, set[str]] = {gpu.id: set() for gpu in plan.gpus}
    for gpu, partition in plan.partitions():
        shadow = partition.shadow
        if shadow is not None and shadow.other_node:
            partners[gpu.id].add(shadow.gpu)
            partners[shadow.gpu].add(gpu.id)
    return partners


def _neighbours_next_to_each_other(
    wanted: Mapping[str, _Wanted], partners: Mapping[str, set[str]]
) -> Iterator[str]:
    """Yield the GPUs, those with most partners first, and after each its partners, and theirs in turn.

    So two nodes are enough wherever they can be: each GPU comes after one that decides its node.
    """
    seen: dict[str, None] = {}
    # A GPU that stays where it is comes before one that may be anywhere.
    ranks = {
        name: (-len(partners[name]), one.known is None, position)
        for position, (name, one) in enumerate(wanted.items())
    }
    for first in sorted(wanted, key=ranks.__getitem__):
        queue = [first]
        while queue:
            name = queue.pop(0)
            if name not in seen:
                seen[name] = None
                yield name
                queue += sorted(partners[name] - seen.keys(), key=ranks.__getitem__)


def _refusal(partners: set[str], devices: Sequence[HeldDevice]) -> str:
    nodes = sorted({device.node for device in devices})
    if not any(nodes):
        return "its shadow must be on another node, and this host is one: --launcher kubernetes, or other-gpu"
    if not partners:
        return f"all of its kind are taken: {', '.join(device.name for device in devices)}"
    return (
        f"no device of its kind is left on another node than those of {', '.join(sorted(partners))} "
        f"(nodes: {', '.join(nodes)}): add a node, or let their shadows stand anywhere (place: other-gpu)"
    )

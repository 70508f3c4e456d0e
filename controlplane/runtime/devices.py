"""Device types with their profiles, and the devices of this host."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from controlplane.domain.device import CPU_DEVICE, CPU_GRID, MPS_GRID, Device, HeldDevice, ShareKind
from controlplane.domain.profile import Profile
from controlplane.files import catalogue
from controlplane.files.measurements.profiles import read_device, read_profiles
from controlplane.ports import Launcher

_MAKERS = {"nvidia", "tesla", "geforce", "quadro", ""}
_BOARDS = {"pcie", "nvl"}
"""Boards with fewer units or a lower power limit than the one with the chip's plain name (SXM)."""
_PARTS = {"sxm2", "sxm3", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6"}
_SAME_MEMORY = 0.1
"""The part by which a product's rounded memory may differ from the catalogue's."""


def known_device(name: str, profiles: Path | None = None) -> Device:
    """Return a device type from the catalogue, else as measured, else one with the defaults of its kind.

    `profiles` is the directory with the device files. Raises InputError for one that is broken.
    """
    found = catalogue.device(name)
    if found is None and profiles is not None and name != CPU_DEVICE:
        found = read_device(profiles, name)
    if found is not None:
        return found
    if name == CPU_DEVICE:
        return Device(CPU_DEVICE, ShareKind.CPU_QUOTA, CPU_GRID)
    return Device(name, ShareKind.MPS_PERCENT, MPS_GRID)


def known_profiles(device: str, directory: Path) -> dict[str, Profile]:
    """Return the profiles of a device type by model: the built-in ones, overridden by the user's own."""
    return {**catalogue.profiles(device), **read_profiles(directory, device)}


def host_devices() -> dict[str, tuple[str, ...]]:
    """Return this host's devices by type, in the order in which plans count them: cores, and GPUs' UUIDs."""
    cores = sorted(os.sched_getaffinity(0))
    return {CPU_DEVICE: tuple(f"{CPU_DEVICE}-{core}" for core in cores), **by_type(_gpus())}


def devices_of(launcher: Launcher, *, lost: bool = False) -> dict[str, tuple[HeldDevice, ...]]:
    """Return the devices that a launcher can use now by type: this host's, or those of its cluster.

    With `lost`, also those of nodes that are not ready.
    """
    held = launcher.inventory()
    if held is None:
        found = host_devices().items()
        return {kind: tuple(HeldDevice(kind, name) for name in names) for kind, names in found}
    by_kind: dict[str, list[HeldDevice]] = {}
    for device in (one for one in held if lost or not one.lost):
        by_kind.setdefault(gpu_type(device.product), []).append(device)
    return {kind: tuple(devices) for kind, devices in by_kind.items()}


def by_type(gpus: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Group (product name, UUID) pairs: UUIDs by device type, in the given order."""
    found: dict[str, tuple[str, ...]] = {}
    for name, uuid in gpus:
        kind = gpu_type(name)
        found[kind] = (*found.get(kind, ()), uuid)
    return found


def gpu_type(name: str) -> str:
    """Return the device type of a product: `v100` for `Tesla V100-SXM2-16GB`, `rtx3090` for `RTX 3090`.

    Products of one chip are other types by their board and their memory (`h100-pcie-80gb`, `v100-32gb`). The
    catalogue's type of that name is the one with the catalogue's memory.
    """
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w not in _MAKERS]
    models = [w for w in words if re.fullmatch(r"[a-z]+\d+[a-z]*", w) and w not in _PARTS]
    if not models:
        return "".join(words)
    board = [w for w in words if w in _BOARDS]
    memory = [w for w in words if re.fullmatch(r"\d+gb", w)]
    known = catalogue.device(models[0])
    if known is not None and known.memory_mb is not None:
        memory = [w for w in memory if abs(int(w[:-2]) * 1024 / known.memory_mb - 1) > _SAME_MEMORY]
    return "-".join((models[0], *board, *memory))


def _gpus() -> list[tuple[str, str]]:
    """Return product name and UUID of every GPU that answers, by index; none without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):  # it has fallen off the bus
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append((pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)))
        return found
    finally:
        pynvml.nvmlShutdown()

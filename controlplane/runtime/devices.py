"""Devices: what is known about a type, and which ones this host has."""

from __future__ import annotations

import os
from pathlib import Path

from controlplane.domain.device import CPU_DEVICE, CPU_GRID, MPS_GRID, Device, ShareKind
from controlplane.domain.profile import Profile
from controlplane.files import catalogue
from controlplane.files.profiles import read_profiles


def known_device(name: str) -> Device:
    """What is known about a device type: from the catalogue, or what its kind implies."""
    found = catalogue.device(name)
    if found is not None:
        return found
    if name == CPU_DEVICE:
        return Device(CPU_DEVICE, ShareKind.CPU_QUOTA, CPU_GRID)
    return Device(name, ShareKind.MPS_PERCENT, MPS_GRID)


def known_profiles(device: str, directory: Path) -> dict[str, Profile]:
    """Model -> profile for a device type: the built-in catalogue, overridden by the user's own."""
    return {**catalogue.profiles(device), **read_profiles(directory, device)}


def host_devices() -> dict[str, tuple[str, ...]]:
    """Device type -> this host's devices of it, in the order plans count them."""
    cores = sorted(os.sched_getaffinity(0))
    return {CPU_DEVICE: tuple(f"{CPU_DEVICE}-{core}" for core in cores)}

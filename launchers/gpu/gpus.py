"""The host's NVIDIA GPUs, from NVML, and the sum of the shares of one GPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.domain.device import DeviceLimits, DeviceReading
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role, ServerSpec
from launchers.host import process_table

_PREFIX = "GPU-"
_MODES = ("DEFAULT", "EXCLUSIVE_PROCESS", "PROHIBITED")
_OLDEST = (7, 0)
"""Volta's compute capability: before it, MPS takes no percentages."""
_DEVICES = Path("/dev")
FIXED = "on a GPU the share is fixed when the CUDA context is made: start a server with the other share"
"""The reason why a running server's share of a GPU cannot change."""


@dataclass(frozen=True, slots=True)
class HostGpu:
    """One GPU.

    `memory_mb` is None where the driver does not say, as for a GPU that has the host's memory. `mig`: it is
    split into instances, to which MPS percentages do not apply. `mode`: its compute mode.
    """

    index: int
    uuid: str
    name: str
    memory_mb: float | None
    mig: bool
    mode: str = "DEFAULT"
    capability: tuple[int, int] | None = None
    driver: str | None = None

    @property
    def unshared(self) -> tuple[str, str] | None:
        """Why MPS gives no shares of it, and the way out; None where it does."""
        if self.mig:
            return (
                "split into MIG instances: percentages are of a whole GPU",
                f"nvidia-smi -i {self.index} -mig 0",
            )
        if self.mode == "PROHIBITED":
            return "PROHIBITED: no program may use it", f"nvidia-smi -i {self.index} -c DEFAULT"
        if self.capability is not None and self.capability < _OLDEST:
            return "older than Volta: MPS takes no percentages there", "use a GPU of capability 7.0 or newer"
        return None


def is_gpu(device: str) -> bool:
    """Return whether a device's name is a GPU's UUID."""
    return device.startswith(_PREFIX)


def inventory() -> tuple[HostGpu, ...]:
    """Return every GPU that answers, by index; none without a driver."""
    return _looked_at()[0]


def trouble() -> str | None:
    """Return what NVML says where it does not open, or a GPU does not answer; None without a driver."""
    return _looked_at()[1]


def _looked_at() -> tuple[tuple[HostGpu, ...], str | None]:
    import pynvml

    found, said = [], None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return (), None
    except pynvml.NVMLError as error:  # as for a library newer than the loaded driver
        return (), str(error)
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found.append(_gpu(pynvml, index, pynvml.nvmlDeviceGetHandleByIndex(index)))
        except pynvml.NVMLError as error:  # fallen off the bus, or not this container's
            said = f"GPU {index}: {error}"
    pynvml.nvmlShutdown()
    return tuple(found), said


def device_file_away() -> str | None:
    """Return the driver's file that CUDA programs need and this one cannot open, and why; None without one.

    NVML does not need it, and nvidia-modprobe makes it at the first CUDA call where that may run. A
    container's rules for devices (EPERM) forbid it as its mode does (EACCES).
    """
    file = _DEVICES / "nvidia-uvm"
    if not (_DEVICES / "nvidiactl").exists():  # another kind of driver, or none
        return None
    try:
        os.close(os.open(file, os.O_RDWR))
    except OSError as error:
        return f"{file}: {error.strerror}"
    return None


def whole(uuid: str) -> HostGpu:
    """Return the GPU of that UUID. Raises InputError where it is missing, or MPS gives no shares of it."""
    found, said = _looked_at()
    for gpu in found:
        if gpu.uuid == uuid:
            if gpu.unshared:
                raise InputError(f"{uuid} is {': '.join(gpu.unshared)}", field="device")
            return gpu
    known = ", ".join(g.uuid for g in found) or said or "none"
    raise InputError(f"this host has no GPU {uuid}; it has: {known}", field="device")


def check_shares(spec: ServerSpec, running: Iterable[ServerSpec]) -> None:
    """Raise InputError where `spec` and the active servers that stay on its GPU exceed 100 %."""
    total = spec.percent + sum(other.percent for other in running if _stays(other, spec))
    if spec.labels.role is Role.ACTIVE and total > 100:
        raise InputError(
            f"{spec.name}: the active shares of {spec.device} would add up to {total:g} %: plan again, or "
            "destroy the other fleet that uses this GPU",
            field="percent",
        )


def reading(device: str) -> DeviceReading:
    """Return a GPU's product, driver, present power and clock; empty for a core or without a driver."""
    with _on(device) as (nvml, handle):
        if handle is None:
            return DeviceReading()
        power = _or_none(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        clock = _or_none(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        return DeviceReading(
            nvml.nvmlDeviceGetName(handle),
            nvml.nvmlSystemGetDriverVersion(),
            None if power is None else power / 1000,
            None if clock is None else float(clock),
        )


def limits(device: str) -> DeviceLimits | None:
    """Return what a GPU's driver says of it; None for a core or without a driver.

    The PCIe link is the widest and fastest that GPU and host support: an idle one is slowed down.
    """
    with _on(device) as (nvml, handle):
        if handle is None:
            return None
        milliwatts = _or_none(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        idle_milliwatts = _or_none(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        return DeviceLimits(
            product=nvml.nvmlDeviceGetName(handle),
            driver=nvml.nvmlSystemGetDriverVersion(),
            memory_mb=_memory_total_mb(nvml, handle),
            power_limit_w=None if milliwatts is None else milliwatts / 1000,
            max_clock_mhz=_or_none(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            idle_power_w=None if idle_milliwatts is None else idle_milliwatts / 1000,
            idle_clock_mhz=_or_none(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            pcie_generation=_or_none(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            pcie_lanes=_or_none(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        )


def processes(uuid: str) -> dict[int, float | None] | None:
    """Return the processes on a GPU with their MB (None: not available), as its driver lists them.

    From both of NVML's lists: the clients of MPS are in one or the other, by the driver's release. None where
    neither is to be had, or where they have pids of another namespace, as many drivers' do in a container.
    """
    found: dict[int, float | None] = {}
    with _on(uuid) as (nvml, handle):
        if handle is None:
            return None
        asks = nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses
        lists = [_or_none(nvml, ask, handle) for ask in asks]
        for one in (one for listed in lists for one in listed or ()):
            held = None if one.usedGpuMemory is None else one.usedGpuMemory / 2**20
            found[one.pid] = held if held is not None else found.get(one.pid)
    comparable = lists != [None, None] and all(map(process_table.is_there, found))
    return found if comparable else None


def memory_mb(uuid: str, pids: Collection[int]) -> float | None:
    """Return the GPU memory of these processes; None where NVML does not say it of each one that it lists."""
    held = [megabytes for pid, megabytes in (processes(uuid) or {}).items() if pid in pids]
    known = [megabytes for megabytes in held if megabytes is not None]
    return sum(known) if known and len(known) == len(held) else None


def used_mb(uuid: str) -> float | None:
    """Return the memory in use of a GPU, by all its processes; None where the driver does not say."""
    with _on(uuid) as (nvml, handle):
        memory = None if handle is None else _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        return None if memory is None else float(memory.used) / 2**20


class XidEvents:
    """The driver's Xid events, without waiting; none where the driver is missing or reports none."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._nvml = self._open.enter_context(_nvml())
        self._listening: set[str] = set()
        self._set: Any = None
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._set = self._nvml.nvmlEventSetCreate()
                self._open.callback(self._nvml.nvmlEventSetFree, self._set)

    def take(self, uuids: Iterable[str]) -> tuple[tuple[str, int], ...]:
        """Return (UUID, Xid) of new events of these GPUs, since the first call with them."""
        if self._set is None:
            return ()
        nvml = self._nvml
        for uuid in set(uuids) - self._listening:
            self._listening.add(uuid)
            # NotSupported on GPUs that report none.
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
        found: list[tuple[str, int]] = []
        while True:
            try:
                told = nvml.nvmlEventSetWait_v2(self._set, 0)
            except nvml.NVMLError:  # a timeout: nothing more
                return tuple(found)
            found.append((nvml.nvmlDeviceGetUUID(told.device), int(told.eventData)))

    def close(self) -> None:
        """Close NVML."""
        self._open.close()


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Open NVML; None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


@contextlib.contextmanager
def _on(device: str) -> Iterator[tuple[Any, Any]]:
    """Open NVML for a GPU; no handle for a core, without a driver, or of one that has fallen off the bus."""
    if not is_gpu(device):
        yield None, None
        return
    with _nvml() as nvml:
        handle = None
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(device)
        yield nvml, handle


def _gpu(nvml: Any, index: int, handle: Any) -> HostGpu:
    mig = _or_none(nvml, nvml.nvmlDeviceGetMigMode, handle)
    mode = _or_none(nvml, nvml.nvmlDeviceGetComputeMode, handle)
    capability = _or_none(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return HostGpu(
        index,
        nvml.nvmlDeviceGetUUID(handle),
        nvml.nvmlDeviceGetName(handle),
        _memory_total_mb(nvml, handle),
        mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        next((one for one in _MODES if getattr(nvml, f"NVML_COMPUTEMODE_{one}") == mode), "DEFAULT"),
        None if capability is None else (capability[0], capability[1]),
        nvml.nvmlSystemGetDriverVersion(),
    )


def _memory_total_mb(nvml: Any, handle: Any) -> float | None:
    memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else memory.total / 2**20


def _or_none(nvml: Any, ask: Any, *what: Any) -> Any:
    """Return NVML's answer; None where this GPU, driver or user has none.

    Releases of the driver lack functions that nvidia-ml-py calls (535.98 the lists of processes).
    """
    try:
        return ask(*what)
    except nvml.NVMLError:
        return None


def _stays(other: ServerSpec, wanted: ServerSpec) -> bool:
    """Return whether a server's share adds to the new one's permanently.

    A shadow standing by owns nothing. What an earlier plan of the fleet started is being drained or will be:
    while plans change, the sum rightly exceeds 100.
    """
    theirs, ours = other.labels, wanted.labels
    ending = theirs.fleet == ours.fleet and (
        theirs.plan_hash != ours.plan_hash or theirs.partition == ours.partition
    )
    return other.device == wanted.device and theirs.role is Role.ACTIVE and not ending

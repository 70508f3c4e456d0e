"""A FAKE of pynvml, for tests of our logic on hosts without a GPU: the few calls we make, as documented."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace


class NVMLError(Exception):
    """As in pynvml."""


class NVMLError_NotSupported(NVMLError):
    """As in pynvml."""


class NVMLError_Timeout(NVMLError):
    """As in pynvml."""


class NVMLError_LibraryNotFound(NVMLError):
    """As in pynvml."""


class NVMLError_DriverNotLoaded(NVMLError):
    """As in pynvml."""


class NVMLError_FunctionNotFound(NVMLError):
    """As in pynvml, for a function that this release of the driver lacks."""


class NVMLError_GpuIsLost(NVMLError):
    """As in pynvml, for a GPU that has fallen off the bus."""

    def __str__(self) -> str:
        return "GPU is lost"


@dataclass
class FakeGpu:
    """One GPU that is not there.

    `compute` and `mps` are the two lists of processes with their MB (None: not available): drivers differ in
    which of them has the clients of MPS, and releases lack both. `fake_cuda` writes into `folder`. `memory`
    None: NotSupported.
    """

    uuid: str
    name: str = "Tesla V100-SXM2-16GB"
    memory: int | None = 16160 * 2**20
    mig: int | None = None
    power_mw: int = 250_000
    clock_mhz: int = 1530
    power_limit_mw: int | None = 300_000
    max_clock_mhz: int = 1530
    pcie: tuple[int, int] = (3, 16)
    capability: tuple[int, int] = (7, 0)
    mode: str = "DEFAULT"
    lost: bool = False
    compute: Mapping[int, int | None] | None = field(default_factory=dict)
    mps: Mapping[int, int | None] | None = field(default_factory=dict)
    folder: Path | None = None
    used: int = 2**30


class FakeNvml:
    """The module."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_Timeout = NVMLError_Timeout
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
    NVML_CLOCK_SM = 1
    nvmlEventTypeXidCriticalError = 8
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_COMPUTEMODE_DEFAULT = 0
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3

    def __init__(self, *gpus: FakeGpu, fails: NVMLError | None = None) -> None:
        self.gpus = gpus
        self.fails = fails
        self.xids: list[tuple[FakeGpu, int]] = []
        self.listening: list[str] = []

    def nvmlInit(self) -> None:
        if self.fails is not None:
            raise self.fails

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self.gpus[index].lost:
            raise NVMLError_GpuIsLost
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        if gpu.memory is None:
            raise NVMLError_NotSupported
        return SimpleNamespace(total=gpu.memory, used=gpu.used)

    def nvmlDeviceGetComputeMode(self, gpu: FakeGpu) -> int:
        exclusive = gpu.folder is not None and (gpu.folder / "exclusive").exists()
        mode: int = getattr(self, f"NVML_COMPUTEMODE_{'EXCLUSIVE_PROCESS' if exclusive else gpu.mode}")
        return mode

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return gpu.capability

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        if gpu.mig is None:
            raise NVMLError_NotSupported
        return gpu.mig, gpu.mig

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return gpu.power_mw

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        return gpu.clock_mhz

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu) -> int:
        if gpu.power_limit_mw is None:
            raise NVMLError_NotSupported
        return gpu.power_limit_mw

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        return gpu.max_clock_mhz

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: FakeGpu) -> int:
        return gpu.pcie[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu) -> int:
        return gpu.pcie[1]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        if gpu.compute is None:
            raise NVMLError_FunctionNotFound
        plain = [] if gpu.folder is None else [int(one.name) for one in (gpu.folder / "plain").iterdir()]
        alive = [pid for pid in plain if Path(f"/proc/{pid}").exists()]
        return _processes({**gpu.compute, **dict.fromkeys(alive, 300)})

    def nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        if gpu.mps is None:
            raise NVMLError_NotSupported
        return _processes(gpu.mps)

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        self.listening.clear()

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, events: str) -> None:
        assert kinds == self.nvmlEventTypeXidCriticalError
        self.listening.append(gpu.uuid)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> SimpleNamespace:
        heard = [x for x in self.xids if x[0].uuid in self.listening]
        if not heard:
            raise NVMLError_Timeout
        self.xids.remove(heard[0])
        return SimpleNamespace(device=heard[0][0], eventType=8, eventData=heard[0][1])


def _processes(listed: Mapping[int, int | None]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(pid=pid, usedGpuMemory=None if mb is None else mb * 2**20)
        for pid, mb in listed.items()
    ]

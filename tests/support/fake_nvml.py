"""A FAKE of pynvml, for tests of our logic on hosts without a GPU: the few calls we make, as documented."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace


class NVMLError(Exception):
    """As in pynvml."""


class NVMLError_NotSupported(NVMLError):
    """As in pynvml."""


class NVMLError_Timeout(NVMLError):
    """As in pynvml."""


@dataclass
class FakeGpu:
    """One GPU that is not there."""

    uuid: str
    name: str = "Tesla V100-SXM2-16GB"
    memory: int = 16160 * 2**20
    mig: int | None = None
    power_mw: int = 250_000
    clock_mhz: int = 1530
    power_limit_mw: int | None = 300_000
    max_clock_mhz: int = 1530
    pcie: tuple[int, int] = (3, 16)


class FakeNvml:
    """The module."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_Timeout = NVMLError_Timeout
    NVML_CLOCK_SM = 1
    nvmlEventTypeXidCriticalError = 8
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = gpus
        self.xids: list[tuple[FakeGpu, int]] = []
        self.listening: list[str] = []

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        return next(g for g in self.gpus if g.uuid == uuid)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.memory, used=2**30)

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
        return [SimpleNamespace(pid=pid, usedGpuMemory=used * 2**30) for pid, used in ((100, 1), (101, 2))]

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

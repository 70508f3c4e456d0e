"""Device types, their grids of shares, and the number of devices that a plan may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controlplane.domain.errors import InputError
from controlplane.domain.units import Checked, Count, Name, NonNegative, Percent, Positive

CPU_DEVICE = "cpu"
"""The device type of a host without a GPU: `cpu-i` is host core i."""
MAX_MPS_CLIENTS = 48
"""The limit of one device, since Volta; each Triton is a client."""


def noun(types: Iterable[str]) -> str:
    """Return the noun for devices of these types: `core`, `GPU`, or `device` where there are both."""
    found = {"core" if kind == CPU_DEVICE else "GPU" for kind in types}
    return found.pop() if len(found) == 1 else "device" if found else "GPU"


def noun_of(device: str) -> str:
    """Return the noun for one device by its id, like `cpu-0` or `v100-3`."""
    return noun([CPU_DEVICE if device.startswith(f"{CPU_DEVICE}-") else ""])


class ShareKind(StrEnum):
    """The way to enforce a share."""

    MPS_PERCENT = "mps-percent"
    """CUDA_MPS_ACTIVE_THREAD_PERCENTAGE."""
    MIG_SLICE = "mig-slice"
    """Compute slices of a MIG instance, in sevenths of the GPU: profiles exist, but no launcher uses them."""
    CPU_QUOTA = "cpu-quota"
    """Percent of one pinned core, by a bandwidth quota."""


@dataclass(frozen=True, slots=True)
class ShareGrid(Checked):
    """The possible shares of a partition: `minimum`, `minimum + step`, ... 100 percent."""

    minimum_percent: Percent
    step_percent: Percent

    def percents(self) -> tuple[float, ...]:
        """Return every share of the grid, ascending; 100 is always one of them."""
        count = round((100.0 - self.minimum_percent) / self.step_percent)
        inner = (self.minimum_percent + i * self.step_percent for i in range(count + 1))
        return (*(p for p in inner if p < 100.0), 100.0)

    def check(self, percent: float, field: str) -> None:
        """Raise InputError, naming the field, for a share that is not on the grid."""
        if not any(abs(percent - p) < 1e-9 for p in self.percents()):
            problem = f"{percent:g} is not on this device's grid: {self.minimum_percent:g} to 100 in steps of"
            raise InputError(f"{problem} {self.step_percent:g}", field=field)

    def floor(self, percent: float) -> float | None:
        """Return the largest share up to `percent`; None where there is none."""
        return max((p for p in self.percents() if p <= percent + 1e-9), default=None)


MPS_GRID = ShareGrid(minimum_percent=2.5, step_percent=2.5)
"""2.5 % is about two SMs of a V100 (iGniter, Theorem 1)."""
CPU_GRID = ShareGrid(minimum_percent=20.0, step_percent=5.0)
"""Below 20 % a quota's period dominates the latency."""


@dataclass(frozen=True, slots=True)
class Device(Checked):
    """A device type and its measured properties.

    `hardware` holds the coefficients of the type itself by their names in the paper's table
    (P, F, p_idle, B_pcie, alpha_f, alpha_sch, beta_sch for iGniter); absent ones count as no effect. f_idle
    is the clock of an idle device, for people.
    """

    name: Name
    share_kind: ShareKind
    grid: ShareGrid
    memory_mb: Positive | None = None
    price_per_hour: float | None = None
    hardware: Mapping[str, float] = field(default_factory=dict)

    @property
    def most_clients(self) -> int | None:
        """The largest number of MPS clients on one device at once, shadows included; None: no limit."""
        return MAX_MPS_CLIENTS if self.share_kind is ShareKind.MPS_PERCENT else None


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device: a GPU's product name, or `cpu` for a core, and the launcher's name for it.

    In a cluster also its node, and that node's labels. `lost`: the node is not ready now.
    """

    product: str
    name: str
    node: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    lost: bool = False

    def has(self, labels: Mapping[str, str]) -> bool:
        """Return whether its node has these labels."""
        return labels.items() <= dict(self.labels).items()


@dataclass(frozen=True, slots=True)
class Stock:
    """How many devices of each type a plan may use. `grows`: more nodes come where a plan needs them."""

    counts: Mapping[str, int]
    grows: bool = False


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """Readings of a device; None where it has none, as a core."""

    product: str | None = None
    driver: str | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a GPU's driver says of it while it is idle; None where it does not say."""

    product: str
    driver: str
    memory_mb: float | None
    power_limit_w: float | None = None
    max_clock_mhz: float | None = None
    idle_power_w: float | None = None
    idle_clock_mhz: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuPool(Checked):
    """The GPUs of one type that a plan may use. `count` None: unlimited."""

    device: Device
    count: Count | None
    price_per_hour: NonNegative

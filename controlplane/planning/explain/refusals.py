"""What every strategy says of workloads without a place: fragmented free shares, the nearest SLO and rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controlplane.domain.device import noun
from controlplane.domain.plan import PlannedGpu
from controlplane.domain.units import spoken
from controlplane.domain.workload import ShadowWish, Workload
from controlplane.planning.judge.placements import memory_with_shadow
from controlplane.planning.judge.shadows import most_clients, taken_with_shadows
from controlplane.planning.protocol import Device

Fits = Callable[[Workload], bool]
_LONGEST_SLO_MS = 60_000.0
_ROUNDING = 1e-9


def free_percents(gpus: Sequence[PlannedGpu], kind: str, count: int) -> list[float]:
    """What each of `count` devices of this type has left beside the planned partitions."""
    used = [gpu.percent for gpu in gpus if gpu.type == kind]
    return [100.0 - percent for percent in (*used, *[0.0] * (count - len(used)))]


def is_fragmented(free: Sequence[float], share_percent: float, servers: int = 1) -> bool:
    """Whether the free shares add up to `servers` shares of this size, and single devices hold fewer."""
    pieces = sum(int(percent / share_percent + _ROUNDING) for percent in free)
    return sum(free) >= servers * share_percent - _ROUNDING and pieces < servers


def exhausted(
    gpus: Sequence[PlannedGpu],
    share_percent: float,
    workload: Workload,
    wishes: Mapping[str, ShadowWish],
    device: Device,
) -> str:
    """The resource that runs out on every device of a type with so much share left; empty where none does.

    `gpus` are those of a plan without the workload; further devices of the type are empty.
    """
    name, needed_mb = device.pool.device.name, memory_with_shadow(workload, device, 1)
    planned = [gpu for gpu in gpus if gpu.type == name]
    roomy = [g for g in planned if g.percent + share_percent <= 100.0 + _ROUNDING]
    if not roomy or len(planned) < (device.pool.count or math.inf):
        return ""
    taken = [taken_with_shadows(g, wishes, device) for g in roomy]
    left_mb = (device.pool.device.memory_mb or math.inf) - min(mb for _, mb in taken)
    if needed_mb > left_mb:
        return (
            f"memory runs out: it takes {needed_mb:g} MB with what must stand by, and no {name} with "
            f"{spoken(share_percent)} % left has more than {left_mb:g} MB"
        )
    if min(clients for clients, _ in taken) >= most_clients(device):
        return f"clients run out: a {name} takes {most_clients(device):g} of MPS, shadows included"
    return ""


def fragmented(kind: str, free: Sequence[float], takes: str) -> str:
    """The reason why a workload that takes `takes` finds no room."""
    return (
        f"the free {kind} shares are fragmented: they add up to {spoken(sum(free))} %, at most "
        f"{spoken(max(free))} % on one {noun([kind])}, and it takes about {takes}"
    )


def nearest_slo(fits: Fits, workload: Workload) -> float | None:
    """The smallest SLO, to 0.1 ms, found to fit by bisection upwards; None where not even a minute fits."""
    low, high = workload.slo_ms, workload.slo_ms
    while not fits(replace(workload, slo_ms=high)):
        low, high = high, high * 2.0
        if high > _LONGEST_SLO_MS:
            return None
    while high - low > max(0.05, 1e-4 * high):
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(replace(workload, slo_ms=middle)) else (middle, high)
    rounded = math.ceil(high * 10.0) / 10.0
    return rounded if fits(replace(workload, slo_ms=rounded)) else high


def nearest_rate(fits: Fits, workload: Workload) -> float | None:
    """The largest rate found to fit by bisection downwards; None where not even a thousandth does."""
    low = high = workload.rate_rps
    while not fits(replace(workload, rate_rps=low)):
        high, low = low, low / 2.0
        if low < workload.rate_rps / 1000.0:
            return None
    while high - low > 1e-4 * workload.rate_rps:
        middle = (low + high) / 2.0
        low, high = (middle, high) if fits(replace(workload, rate_rps=middle)) else (low, middle)
    rounded = float(math.floor(low))
    return rounded if rounded > 0 and fits(replace(workload, rate_rps=rounded)) else low

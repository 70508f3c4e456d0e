"""Free shares that would suffice together and are too small one by one."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.domain.device import noun
from controlplane.domain.plan import PlannedGpu
from controlplane.domain.units import spoken

_ROUNDING = 1e-9


def free_percents(gpus: Sequence[PlannedGpu], kind: str, count: int) -> list[float]:
    """What each of `count` devices of this type has left beside the planned partitions."""
    used = [gpu.percent for gpu in gpus if gpu.type == kind]
    return [100.0 - percent for percent in (*used, *[0.0] * (count - len(used)))]


def is_fragmented(free: Sequence[float], share_percent: float, servers: int = 1) -> bool:
    """Whether the free shares add up to `servers` shares of this size, and single devices hold fewer."""
    pieces = sum(int(percent / share_percent + _ROUNDING) for percent in free)
    return sum(free) >= servers * share_percent - _ROUNDING and pieces < servers


def fragmented(kind: str, free: Sequence[float], takes: str) -> str:
    """The reason why a workload that takes `takes` finds no room."""
    return (
        f"the free {kind} shares are fragmented: they add up to {spoken(sum(free))} %, at most "
        f"{spoken(max(free))} % on one {noun([kind])}, and it takes about {takes}"
    )

"""What no plan of `joint` can cost less than.

Each workload takes at least the share it needs alone in the cheapest way it may be served; interference only
adds. GPUs of one type are then counted as bins: a partition above half a GPU cannot share with another such
one, and what is left over beside large ones bounds the rest (Martello and Toth's L2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from controlplane.planners.kinds import Kind
from controlplane.planners.protocol import Device


def prices(devices: Mapping[str, Device]) -> dict[str, float]:
    """What a GPU of each type costs; 1 each where all are free, so that GPUs count."""
    told = {name: d.pool.price_per_hour for name, d in devices.items()}
    return told if any(told.values()) else dict.fromkeys(told, 1.0)


def lower_bound(kinds: Sequence[Sequence[Kind]], devices: Mapping[str, Device]) -> float:
    """By `prices`, of all plans for the workloads that can be held at all; `kinds` as from `kinds_of`."""
    held = [k for k in kinds if k]
    price = prices(devices)
    if len(devices) == 1:
        # Ways to serve differ in how they fill bins: large parts only bound where there is no other way.
        area = sum(min(k.item.servers * k.floor for k in ways) for ways in held)
        sizes = [ways[0].floor if len(ways) == 1 else 0.0 for ways in held]
        loose = area - sum(sizes)
        gpus = max(_bins(sizes, loose), math.ceil(area / 100.0 - 1e-9))
        return gpus * next(iter(price.values()))
    return sum(min(price[k.device] * k.item.servers * k.floor / 100.0 for k in ways) for ways in held)


def _bins(sizes: Sequence[float], loose: float) -> int:
    """L2 for bins of 100; `loose` can be cut into anything."""
    best = 0
    ordered = sorted(sizes, reverse=True)
    for least in {0.0, *(s for s in ordered if s <= 50.0)}:
        huge = [s for s in ordered if s > 100.0 - least]
        large = [s for s in ordered if 50.0 < s <= 100.0 - least]
        small = sum(s for s in ordered if least <= s <= 50.0)
        over = small + (loose if least == 0.0 else 0.0) - sum(100.0 - s for s in large)
        if least == 0.0:
            over -= sum(100.0 - s for s in huge)
        best = max(best, len(huge) + len(large) + max(0, math.ceil(over / 100.0 - 1e-9)))
    return best

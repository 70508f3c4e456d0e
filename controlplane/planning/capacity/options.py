"""How a group of workloads may be served: by one partition or by a pool of several, on one GPU type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import MOST_SERVERS
from controlplane.domain.units import spoken
from controlplane.latency.protocol import FloatArray
from controlplane.planning.capacity.gpu_types import GpuType
from controlplane.planning.capacity.items import Group, Item
from controlplane.planning.capacity.tolerance import TYPICAL_SLOWDOWN, ToleranceTable

_LARGE_PERCENT = 60.0
"""Pools are tried where one partition needs more than this beside neighbours."""
_BARELY = 1.01
"""The slowdown that even a partition alone must tolerate: the exact queue has the last word."""
_MORE_SERVERS = 1
"""Pools of this many servers more than the fewest possible are tried."""
_MOST_POOL_SIZES = 6


@dataclass(frozen=True, slots=True)
class ServingOption:
    """A group, `item.workloads`, served by `item.servers` partitions on GPUs of one type.

    `expected_percent` of each partition beside average neighbours (alone, where it tolerates none);
    `least_percent`: alone.
    """

    item: Item
    gpu_type: str
    expected_percent: float
    least_percent: float

    @property
    def total_percent(self) -> float:
        """Of all its partitions together."""
        return self.item.servers * self.expected_percent

    @property
    def gpus(self) -> int:
        """GPUs that its partitions fill with nothing else beside them."""
        return math.ceil(self.item.servers / max(1, int(100.0 / self.expected_percent + 1e-9)))

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        share = f"{spoken(self.expected_percent)} % of a {self.gpu_type}"
        return share if self.item.servers == 1 else f"{self.item.servers} times {share}"


def serving_options(groups: Sequence[Group], gpu_types: Mapping[str, GpuType]) -> list[list[ServingOption]]:
    """All options of every group, cheapest first; none where nothing holds it."""
    found: list[list[ServingOption]] = [[] for _ in groups]
    for gpu_type in gpu_types.values():
        items = [Item(group) for group in groups]
        table = ToleranceTable.of(items, gpu_type)
        expected = _expected_percent(table)
        for i, item in enumerate(items):
            if np.isfinite(expected[i]):
                found[i].append(_option(item, table, expected, i))
        large = np.flatnonzero((table.items.model >= 0) & (expected > _LARGE_PERCENT)).tolist()
        _add_pools({i: _fewest_servers(items[i], gpu_type) for i in large}, groups, gpu_type, found)
    for options in found:
        options.sort(key=lambda option: cheapest_first(option, gpu_types))
    return found


def cheapest_first(option: ServingOption, gpu_types: Mapping[str, GpuType]) -> tuple[float, int, str]:
    """Sort key; between equal costs fewer servers come first."""
    cost = gpu_types[option.gpu_type].price * option.total_percent
    return cost, option.item.servers, option.gpu_type


def pool_options(items: Sequence[Item], gpu_type: GpuType) -> list[ServingOption | None]:
    """Pools that are wanted whatever the table says of them; None where a model has no profile."""
    table = ToleranceTable.of(items, gpu_type)
    expected = np.minimum(_expected_percent(table), 100.0)
    known = (table.items.model >= 0).tolist()
    return [_option(item, table, expected, i) if known[i] else None for i, item in enumerate(items)]


def _option(item: Item, table: ToleranceTable, expected: FloatArray, i: int) -> ServingOption:
    least = min(float(table.smallest_percent[i]), 100.0)
    return ServingOption(item, table.gpu_type.name, float(expected[i]), least)


def _expected_percent(table: ToleranceTable) -> FloatArray:
    typical = table.percent_at(TYPICAL_SLOWDOWN)
    return np.where(np.isfinite(typical), typical, table.percent_at(_BARELY))


def _fewest_servers(item: Item, gpu_type: GpuType) -> int:
    """Servers below which not even the throughput suffices."""
    cycle = gpu_type.alone.cycle[gpu_type.number_of(item.model)]
    most = float(np.max(1000.0 * np.arange(1, cycle.shape[0] + 1)[:, None] / cycle))
    return max(2, int(np.ceil(item.rate_rps / most)))


def _add_pools(
    fewest: Mapping[int, int],
    groups: Sequence[Group],
    gpu_type: GpuType,
    found: list[list[ServingOption]],
) -> None:
    """Add pools: from the fewest servers upwards until one holds, and then `_MORE_SERVERS` more."""
    pending = {i: servers for i, servers in fewest.items() if servers <= MOST_SERVERS}
    left = dict.fromkeys(pending, _MORE_SERVERS)
    tried = dict.fromkeys(pending, 0)
    while pending:
        items = {i: Item(groups[i], servers) for i, servers in pending.items()}
        table = ToleranceTable.of(list(items.values()), gpu_type)
        expected = _expected_percent(table)
        for n, (i, item) in enumerate(items.items()):
            tried[i] += 1
            if np.isfinite(expected[n]):
                found[i].append(_option(item, table, expected, n))
                left[i] -= 1
            if left[i] < 0 or tried[i] > _MOST_POOL_SIZES or pending[i] >= MOST_SERVERS:
                del pending[i]
            else:
                pending[i] += 1

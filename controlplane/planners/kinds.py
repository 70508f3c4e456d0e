"""How workloads may be served together: by one partition, or by a pool of several.

Most groups are one workload. The search uses no other kinds; where a case is small, `proof` tries more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.plan import MOST_SERVERS, Rule
from controlplane.domain.units import spoken
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import FloatArray
from controlplane.planners.grouping import Grouping
from controlplane.planners.menu import TYPICAL_SLOWDOWN, Alone, Item, Menu
from controlplane.planners.protocol import Device

DEAR_PERCENT = 60.0
"""A pool is tried where one partition needs more than this beside neighbours."""
HARDLY = 0.01
"""What even a partition alone must tolerate: the exact queue has the last word."""
MORE_SERVERS = 1
"""Pools of this many servers more than the fewest that do are tried."""
TABLE_ERROR = 0.03
"""The waiting table and its care for pools are within this of the queue itself; `contents` allows it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A group of workloads, `item.workloads`, served by `item.servers` partitions on one GPU type.

    All of the group share one queue: a way to serve one of them is a way to serve them all. `expected`:
    percent of each partition beside average neighbours (alone, where it tolerates none); `least`: alone.
    """

    item: Item
    device: str
    expected: float
    least: float

    @property
    def cost_percent(self) -> float:
        """Of all its partitions together."""
        return self.item.servers * self.expected

    @property
    def gpus(self) -> int:
        """GPUs that its partitions fill where nobody else is."""
        return math.ceil(self.item.servers / max(1, int(100.0 / self.expected + 1e-9)))

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        share = f"{spoken(self.expected)} % of a {self.device}"
        return share if self.item.servers == 1 else f"{self.item.servers} times {share}"


def kinds_of(
    groups: Sequence[tuple[Workload, ...]],
    devices: Mapping[str, Device],
    alone: Mapping[str, Alone],
    rule: Rule,
    quantile: float | None,
) -> list[list[Kind]]:
    """All kinds of every group, cheapest first; empty where nothing holds it."""
    found: list[list[Kind]] = [[] for _ in groups]
    for name, device in devices.items():
        items = [Item(group) for group in groups]
        single = Menu.of(items, device, rule, quantile, alone[name])
        expected = _expected(single)
        for i, item in enumerate(items):
            if np.isfinite(expected[i]):
                found[i].append(Kind(item, name, float(expected[i]), float(single.least_percent[i])))
        dear = [i for i in range(len(items)) if single.model[i] >= 0 and expected[i] > DEAR_PERCENT]
        lowest = {i: _fewest(items[i], single, alone[name]) for i in dear}
        _pools(dear, lowest, groups, device, name, alone[name], rule, quantile, found)
    cheapest_first = _cheapest_first(devices)
    for kinds in found:
        kinds.sort(key=cheapest_first)
    return found


def with_servers(
    kinds: Sequence[Sequence[Kind]],
    grouping: Grouping,
    devices: Mapping[str, Device],
    alone: Mapping[str, Alone],
    rule: Rule,
    quantile: float | None,
) -> list[list[Kind]]:
    """The kinds of a grouping's groups, those with the servers it asks for first, among them others."""
    asked = [(n, count) for n, count in enumerate(grouping.servers) if count is not None]
    found = [list(ways) for ways in kinds]
    for name, device in devices.items():
        new = [
            (n, Item(grouping.groups[n], count, grouping.batch[n]))
            for n, count in asked
            if grouping.batch[n] or not any(k.item.servers == count and k.device == name for k in found[n])
        ]
        menu = Menu.of([item for _, item in new], device, rule, quantile, alone[name])
        expected = _expected(menu)
        for i, (n, item) in enumerate(new):
            # Wished for by what the exact queue said, whatever the table says.
            if menu.model[i] >= 0:
                size = min(float(expected[i]), 100.0), min(float(menu.least_percent[i]), 100.0)
                found[n].append(Kind(item, name, *size))
    cheapest_first = _cheapest_first(devices)
    for n, count in asked:
        batch = grouping.batch[n]
        found[n].sort(key=lambda k: (k.item.servers != count, k.item.batch != batch, cheapest_first(k)))
    return found


def _cheapest_first(devices: Mapping[str, Device]) -> Callable[[Kind], tuple[float, int, str]]:
    """A key to sort by; between equals fewer servers."""
    price = {name: d.pool.price_per_hour for name, d in devices.items()}
    return lambda k: (price[k.device] * k.cost_percent, k.item.servers, k.device)


def _expected(menu: Menu) -> FloatArray:
    typical = menu.smallest(TYPICAL_SLOWDOWN)
    return np.where(np.isfinite(typical), typical, menu.smallest(1.0 + HARDLY))


def _fewest(item: Item, menu: Menu, alone: Alone) -> int:
    """Servers below which not even the throughput suffices."""
    m = menu.index_of(item.model)
    batches = np.arange(1, alone.cycle.shape[1] + 1)[:, None]
    most = float(np.max(1000.0 * batches / alone.cycle[m]))
    return max(2, int(np.ceil(item.rate_rps / most)))


def _pools(
    dear: Sequence[int],
    lowest: Mapping[int, int],
    groups: Sequence[tuple[Workload, ...]],
    device: Device,
    name: str,
    alone: Alone,
    rule: Rule,
    quantile: float | None,
    found: list[list[Kind]],
) -> None:
    """Add pools: from the fewest servers that could do, until one does and then `MORE_SERVERS` more."""
    pending = {i: lowest[i] for i in dear if lowest[i] <= MOST_SERVERS}
    left = {i: MORE_SERVERS for i in pending}
    tried = dict.fromkeys(pending, 0)
    while pending:
        order = list(pending)
        items = [Item(groups[i], pending[i]) for i in order]
        menu = Menu.of(items, device, rule, quantile, alone)
        expected = _expected(menu)
        for n, i in enumerate(order):
            tried[i] += 1
            if np.isfinite(expected[n]):
                found[i].append(Kind(items[n], name, float(expected[n]), float(menu.least_percent[n])))
                left[i] -= 1
            if left[i] < 0 or tried[i] > 6 or pending[i] >= MOST_SERVERS:
                del pending[i]
            else:
                pending[i] += 1

"""Items on GPUs as the values of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from controlplane.domain.plan import PlannedGpu
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.judge.placements import gpu_of, partition_of

Stands = Sequence[tuple[int, int]]
"""The items of a GPU by number, each with the index of its share."""


def planned_gpus(
    gpus: Mapping[str, Sequence[Stands]], items: Sequence[Item], tables: Mapping[str, ToleranceTable]
) -> tuple[PlannedGpu, ...]:
    """GPUs of all types, in order; servers of a pool are numbered, and the largest share comes first."""
    number = Counter[int]()
    found = []
    for name, stands in gpus.items():
        table = tables[name]
        device = table.gpu_type.device
        for n, own in enumerate(stands):
            partitions = []
            for i, share in sorted(own, key=lambda p: (-p[1], p[0])):
                item = items[i]
                number[id(item)] += 1
                suffix = f"-{number[id(item)]}" if item.servers > 1 else ""
                percent, batch = float(table.gpu_type.percents[share]), int(table.batch[i, share])
                memory_mb, part = item.memory_mb(device), 1.0 / item.servers
                partitions.append(
                    partition_of(item.name + suffix, item.workloads, percent, batch, memory_mb, part)
                )
            found.append(gpu_of(n, device, partitions))
    return tuple(found)

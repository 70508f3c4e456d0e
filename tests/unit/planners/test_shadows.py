"""Where shadows stand, and what they add."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from planning import planned, published, v100, workload

from controlplane.domain.device import MOST_MPS_CLIENTS
from controlplane.domain.plan import Partition, PlannedGpu, Rule
from controlplane.domain.workload import ShadowPlace, ShadowWish, Workload
from controlplane.planners.verify import verify

pytestmark = pytest.mark.unit

ELSEWHERE = ShadowWish(place=ShadowPlace.OTHER_GPU)


def asking(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    return tuple(replace(w, shadow=ELSEWHERE) for w in workloads)


def test_on_another_gpu_it_has_more_where_its_own_has_none_to_give() -> None:
    here = planned("joint", published(12), latency="ours", rule=Rule.P99)
    there = planned("joint", asking(published(12)), latency="ours", rule=Rule.P99)
    assert here.verified
    assert there.verified
    bare = {p.id for _, p in here.partitions() if p.shadow is not None and p.shadow.extra_percent == 0}
    assert bare
    extra = {p.id: p.shadow.extra_percent for _, p in there.partitions() if p.shadow is not None}
    assert all(extra[name] > 0 for name in bare)
    assert len(there.gpus) == len(here.gpus) + 1


def test_of_a_whole_gpu_it_has_as_much_and_no_more_elsewhere() -> None:
    plan = planned("joint", asking(published(50)), latency="ours", rule=Rule.P99)
    whole = [(g, p) for g, p in plan.partitions() if p.percent == 100]
    assert plan.verified
    assert whole
    for gpu, p in whole:
        assert p.shadow is not None
        assert (p.shadow.percent, p.shadow.extra_percent) == (100, 0)
        assert p.shadow.gpu != gpu.id


def test_a_gpu_has_no_more_servers_than_it_takes() -> None:
    asked = tuple(
        replace(workload(f"W{i}", "alexnet", 60.0, 150.0), isolated=True, shadow=ELSEWHERE) for i in range(60)
    )
    plan = planned("joint", asked, latency="ours", rule=Rule.P99)
    standing = Counter(p.shadow.gpu for _, p in plan.partitions() if p.shadow is not None)
    running = standing + Counter(g.id for g, _ in plan.partitions())
    assert plan.verified
    assert sum(standing.values()) == 60
    assert max(running.values()) == MOST_MPS_CLIENTS
    spare = next(g for g in plan.gpus if not g.partitions)
    one = [replace(g, partitions=tuple(on(p, spare) for p in g.partitions)) for g in plan.gpus]
    said = [v.reason for v in verify(replace(plan, gpus=tuple(one)), {"v100": v100("ours")})]
    assert said == ["runs 60 servers, those standing by included; it takes 48"]


def on(partition: Partition, gpu: PlannedGpu) -> Partition:
    assert partition.shadow is not None
    return replace(partition, shadow=replace(partition.shadow, gpu=gpu.id))

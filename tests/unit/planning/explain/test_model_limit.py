"""A GPU whose partitions hold as many models as a plan tells apart is named."""

from __future__ import annotations

from controlplane.domain.plan import Infeasible, Partition, Placement, PlannedGpu, ServedModel
from controlplane.planning.explain.infeasible import with_model_limit

LOST = (Infeasible("w", "all cores are taken"),)


def gpu(*counts: int) -> PlannedGpu:
    partitions = tuple(
        Partition(
            f"p{i}",
            20.0,
            models=tuple(ServedModel(f"m{i}-{n}", 1) for n in range(count)),
            workloads=(Placement("w", "w", f"m{i}-0", rate_rps=1, slo_ms=1),),
        )
        for i, count in enumerate(counts)
    )
    return PlannedGpu("cpu-0", "cpu", partitions=partitions)


def test_a_limit_that_is_none_of_the_device_is_named() -> None:
    (named,) = with_model_limit(LOST, [gpu(1, 1), gpu(5, 5, 5, 4, 4)])
    assert named.reason.startswith(LOST[0].reason)
    assert "cpu-0 has 23 models" in named.reason
    assert with_model_limit(LOST, [gpu(5, 5, 4, 4, 4)]) == LOST
    assert with_model_limit(LOST, []) == LOST

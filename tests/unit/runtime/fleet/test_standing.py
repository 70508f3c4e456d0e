"""A fleet's figures and its worst trouble, from the states of its partitions."""

from __future__ import annotations

from dataclasses import replace

import build
import pytest

from controlplane.domain.observation import Guarding
from controlplane.domain.plan import Shadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.runtime.fleet.status import standing

SHADOW = Shadow(ShadowPolicy.HOT, "cpu-0", 5.0, 25.0)
PLAN = build.plan(*(build.partition(name, 20.0, shadow=SHADOW) for name in ("a", "b", "c")), gpu="cpu-0")
RESTS = Guarding("a", "guarded", 1.0, "s", True, 0, False, None)


def state(name: str, phase: str) -> Guarding:
    return replace(RESTS, partition=name, phase=phase)


@pytest.mark.parametrize(
    ("phases", "ready", "trouble"),
    [
        (("guarded", "guarded", "guarded"), 3, None),
        (("guarded", "settling", "guarded"), 3, None),
        (("exposed", "guarded", "guarded"), 3, "WithoutShadow"),
        (("exposed", "late", "guarded"), 3, "Late"),
        (("exposed", "late", "down"), 2, "PartitionDown"),
        (("guarded", "guarded"), 2, None),
    ],
)
def test_the_worst_trouble_is_named(phases: tuple[str, ...], ready: int, trouble: str | None) -> None:
    found = standing(PLAN, [state(n, p) for n, p in zip("abc", phases, strict=False)], 4)
    assert (found.ready, found.partitions, found.gpus, found.redirects) == (ready, 3, 1, 4)
    assert found.trouble == trouble


def test_a_fleet_is_as_covered_as_its_least_covered_partition() -> None:
    (gpu,) = PLAN.gpus

    def with_covers(*factors: float) -> float:
        parts = [
            replace(part, shadow=replace(part.shadow, covers=factor)) if part.shadow else part
            for part, factor in zip(gpu.partitions, factors, strict=True)
        ]
        return standing(replace(PLAN, gpus=(replace(gpu, partitions=tuple(parts)),)), [], 0).covers

    assert with_covers(1.3, 1.2, 1.5) == 1.2
    assert standing(replace(PLAN, gpus=()), [], 0).covers == 1.0

"""What a plan says of the memory of its servers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning import planned, published

from controlplane.planning.judge.placements import limit_together, tells_apart

pytestmark = pytest.mark.unit


def test_only_what_the_user_wrote_is_a_limit() -> None:
    first, *others = published(12)
    second = next(w for w in others if w.model != first.model)
    assert limit_together([first]) is None
    written = replace(first, memory_mb=600.0)
    assert limit_together([written]) == 600.0
    assert limit_together([written, replace(written, memory_mb=700.0)]) == 700.0, "one model, once"
    assert limit_together([written, second]) is None
    assert limit_together([written, replace(second, memory_mb=100.0)]) == 700.0


@pytest.mark.parametrize("strategy", ["igniter", "gpulet"])
def test_every_strategys_plan_carries_it(strategy: str) -> None:
    asked = tuple(replace(w, memory_mb=500.0) if w.name == "W1" else w for w in published(12))
    plan = planned(strategy, asked)
    limits = {
        w.name: p.memory_limit_mb for _, p in plan.partitions() for w in p.workloads if len(p.workloads) == 1
    }
    assert limits.pop("W1", 500.0) == 500.0
    assert set(limits.values()) == {None}


@pytest.mark.parametrize(
    ("models", "held"),
    [((5, 5, 5, 4, 4), True), ((5, 5, 5, 5, 4), False), ((8,), True), ((9,), False), ((2,) * 8, True)],
)
def test_a_gpu_holds_as_many_models_as_a_plan_tells_apart(models: tuple[int, ...], held: bool) -> None:
    assert tells_apart(models) is held

"""What a plan says of the memory of its servers."""

from dataclasses import replace

import pytest
from planning import joint_p99, planned, published, v100_with_memory, workload

from controlplane.domain.workload import ShadowPlace, ShadowPolicy, ShadowWish
from controlplane.planning.judge.placements import (
    largest_batch_in_memory,
    limit_together,
    tells_apart,
    too_large,
)


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


@pytest.mark.parametrize("strategy", ["joint", "igniter", "gpulet", "gpu-lets+", "latency-aware"])
def test_the_memory_of_a_partition_is_that_of_its_planned_batch(strategy: str) -> None:
    law = {"alexnet": (633.0, 3.0), "resnet50": (498.0, 103.0), "vgg19": (948.0, 63.0), "ssd": (500.0, 116.0)}
    own = v100_with_memory("igniter")
    plan = planned(strategy, published(12), device=own)
    for _, partition in plan.partitions():
        # A process counts once, whatever its models.
        each = [law[m.model][0] + law[m.model][1] * m.batch for m in partition.models]
        assert partition.memory_mb == pytest.approx(sum(each) - 400.0 * (len(each) - 1))
    assert max(m.batch for _, p in plan.partitions() for m in p.models) > 1


def test_what_fits_with_its_planned_batch_is_planned() -> None:
    """Two models fit a GPU with the batches they need, and none with the largest of which is known."""
    none = ShadowWish(ShadowPolicy.NONE)
    asked = [replace(workload(m, m, 200.0, 30.0), shadow=none) for m in ("alexnet", "vgg19")]
    device, gpus = v100_with_memory(), []
    for by_batch in ({1: 1000.0, 32: 16_000.0}, {32: 16_000.0}):
        own = {
            n: replace(p, memory_mb=16_000.0, memory_by_batch=by_batch) for n, p in device.profiles.items()
        }
        plan = joint_p99(asked, device=replace(device, profiles=own))
        assert plan.verified
        gpus.append(len(plan.gpus))
    assert gpus == [1, 2]


@pytest.mark.parametrize(
    ("wish", "servers"),
    [
        (ShadowWish(ShadowPolicy.NONE), 1),
        (ShadowWish(ShadowPolicy.HOT, place=ShadowPlace.SAME_GPU), 2),
        (ShadowWish(ShadowPolicy.HOT, place=ShadowPlace.OTHER_GPU), 1),
    ],
)
def test_a_loaded_shadow_beside_its_server_halves_the_memory(wish: ShadowWish, servers: int) -> None:
    device = v100_with_memory()
    there = device.pool.device.memory_mb
    assert there is not None
    asked = replace(workload("v", "vgg19", 200.0, 30.0), shadow=wish)
    most = largest_batch_in_memory(asked, device)
    assert servers * (948.0 + 63.0 * most) <= there < servers * (948.0 + 63.0 * (most + 1.0))


@pytest.mark.parametrize(
    ("there", "said"),
    [(600.0, "it takes 601 MB, and a v100 has 600 MB"), (601.0, None), (None, None)],
)
def test_what_exceeds_a_gpu_with_single_requests_is_too_large(there: float | None, said: str | None) -> None:
    device = v100_with_memory()
    kind = replace(device.pool.device, memory_mb=there)
    small = replace(device, pool=replace(device.pool, device=kind))
    assert too_large(workload("r", "resnet50", 200.0, 30.0), small) == said


@pytest.mark.parametrize(
    ("models", "held"),
    [((5, 5, 5, 4, 4), True), ((5, 5, 5, 5, 4), False), ((8,), True), ((9,), False), ((2,) * 8, True)],
)
def test_a_gpu_holds_as_many_models_as_a_plan_tells_apart(models: tuple[int, ...], held: bool) -> None:
    assert tells_apart(models) is held

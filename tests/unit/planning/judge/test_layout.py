"""GPUs as arrays: one column for each model that a partition serves."""

from dataclasses import replace

import numpy as np
import planning
import pytest

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.planning.explain.explain import explain
from controlplane.planning.judge.evaluate import Terms, evaluate, evaluate_changed, with_guest
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.verify import verify
from controlplane.planning.replan.differences import Change, changes

TERMS = Terms(Rule.P99, 0.95)


def placement(name: str, model: str, rate_rps: float, slo_ms: float) -> Placement:
    return Placement(name, name, model, rate_rps, slo_ms)


def shared_gpu(batch: int = 4) -> PlannedGpu:
    """A partition with two models, three workloads, beside a partition with one."""
    two = Partition(
        "both",
        60.0,
        (ServedModel("resnet50", 8), ServedModel("alexnet", batch)),
        (
            placement("a", "alexnet", 50.0, 40.0),
            placement("r", "resnet50", 100.0, 60.0),
            placement("b", "alexnet", 30.0, 30.0),
        ),
    )
    one = Partition("one", 40.0, (ServedModel("vgg19", 2),), (placement("v", "vgg19", 20.0, 90.0),))
    return PlannedGpu("v100-0", "v100", (two, one))


def test_each_model_of_a_partition_has_its_own_column() -> None:
    layout = Layout.of([shared_gpu()], planning.v100("ours"))
    assert [q.served.model for q in layout.queues[0]] == ["resnet50", "alexnet", "vgg19"]
    assert layout.partition[0].tolist() == [0, 0, 1]
    assert layout.percent[0].tolist() == [60.0, 60.0, 40.0]
    assert layout.rate[0].tolist() == [100.0, 80.0, 20.0]
    assert layout.slo_ms[0].tolist() == [60.0, 30.0, 90.0]


def test_an_active_shadow_changes_all_models_of_its_partition() -> None:
    layout = Layout.of([shared_gpu()], planning.v100("ours"))
    changed = layout.resized(np.array([0]), np.array([0]), np.array([70.0]))
    assert changed.percent[0].tolist() == [70.0, 70.0, 40.0]
    assert layout.percent[0].tolist() == [60.0, 60.0, 40.0]


def test_an_active_shadow_is_judged_as_a_partition_of_its_share() -> None:
    devices, (_, one) = {"v100": planning.v100("ours")}, shared_gpu().partitions
    base, larger = (
        evaluate([PlannedGpu("v100-0", "v100", (replace(one, percent=percent),))], devices, TERMS)["v100"]
        for percent in (40.0, 60.0)
    )
    row = np.array([0])
    changed = base.layout.resized(row, row, np.array([60.0]))
    found = evaluate_changed(changed, row, base, devices["v100"], TERMS)
    assert found.p99_ms[0, 0] == larger.p99_ms[0, 0] < base.p99_ms[0, 0]


def test_an_active_shadow_on_another_gpu_stays_a_server_of_its_pool() -> None:
    device, (_, one) = planning.v100("ours"), shared_gpu().partitions
    busy = replace(one, workloads=(replace(one.workloads[0], rate_rps=100.0),))
    pool = [PlannedGpu(f"v100-{n}", "v100", (replace(busy, id=f"one.{n}"),)) for n in range(2)]
    base = evaluate(pool, {"v100": device}, TERMS)["v100"]
    (server,) = pool[0].partitions
    changed = with_guest(PlannedGpu("v100-2", "v100", ()), server, server.percent, device)
    found = evaluate_changed(changed, np.array([-1]), base, device, TERMS, base.pools_of(0, server))
    assert found.p99_ms[0, 0] == base.p99_ms[0, 0]


def reasons(*gpus: PlannedGpu) -> list[str]:
    plan = Plan("by-hand", Rule.P99, "ours", gpus, quantile=0.95)
    return [f"{v.subject}: {v.reason}" for v in verify(plan, {"v100": planning.v100("ours")})]


def test_models_that_take_turns_are_judged_by_their_p99() -> None:
    gpu = shared_gpu()
    assert reasons(gpu) == []
    two, one = gpu.partitions
    strict = tuple(replace(w, slo_ms=8.0) if w.name == "r" else w for w in two.workloads)
    (late,) = reasons(replace(gpu, partitions=(replace(two, workloads=strict), one)))
    assert late.startswith("r: its P99 is ")


def test_a_model_that_takes_turns_waits_longer_than_alone() -> None:
    devices, gpu = {"v100": planning.v100("ours")}, shared_gpu()
    two, one = gpu.partitions
    alone = replace(two, models=two.models[:1], workloads=two.workloads[1:2])
    own = evaluate([replace(gpu, partitions=(alone, one))], devices, TERMS)["v100"]
    both = evaluate([gpu], devices, TERMS)["v100"]
    assert both.p99_ms[0, 0] > own.p99_ms[0, 0]
    assert both.times.capacity_rps[0, 0] < own.times.capacity_rps[0, 0]


def test_a_model_that_takes_turns_executes_as_fast_as_alone() -> None:
    devices, gpu = {"v100": planning.v100("ours")}, shared_gpu(batch=1)
    whole = replace(gpu.partitions[0], percent=100.0)
    alone = replace(whole, models=whole.models[1:], workloads=(whole.workloads[0], whole.workloads[2]))
    both, own = (
        evaluate([replace(gpu, partitions=(partition,))], devices, TERMS)["v100"].times.execution_ms[0]
        for partition in (whole, alone)
    )
    assert both[1] == own[0] < 1.0


def in_order(gpu: PlannedGpu, *ranks: int | None, batch: int = 1) -> PlannedGpu:
    """A GPU whose first partition is served in the order of these ranks."""
    two, *others = gpu.partitions
    models = tuple(replace(m, batch=batch, rank=rank) for m, rank in zip(two.models, ranks, strict=True))
    light = tuple(replace(w, rate_rps=w.rate_rps / 4.0) for w in two.workloads)
    return replace(gpu, partitions=(replace(two, models=models, workloads=light), *others))


def test_the_model_that_goes_first_waits_less_and_the_other_no_longer_than_in_any_order() -> None:
    devices, gpu = {"v100": planning.v100("ours")}, shared_gpu()
    any_order, first, last = (
        evaluate([in_order(gpu, *ranks)], devices, TERMS)["v100"].p99_ms[0, 0]
        for ranks in ((None, None), (0, 1), (1, 0))
    )
    assert first < last < any_order + 3.0


def test_an_order_is_one_of_single_requests_and_of_every_model() -> None:
    gpu = shared_gpu()
    assert reasons(in_order(gpu, 0, 1)) == []
    assert any("has no rank and other models have one" in said for said in reasons(in_order(gpu, 0, None)))
    assert any("has a rank and batch 2" in said for said in reasons(in_order(gpu, 0, 1, batch=2)))
    two, one = gpu.partitions
    alone = replace(one, models=tuple(replace(m, rank=0) for m in one.models))
    said = reasons(replace(gpu, partitions=(two, alone)))
    assert any("has a rank for its only model" in each for each in said)


def test_the_models_of_a_partition_are_full_together() -> None:
    found = evaluate([shared_gpu()], {"v100": planning.v100("ours")}, TERMS)["v100"]
    assert np.isfinite(found.p99_ms).all()
    used = np.array([100.0, 80.0]) / found.times.capacity_rps[0, :2]
    assert used[0] == pytest.approx(used[1])


def test_a_pool_has_no_server_with_other_models() -> None:
    gpu = shared_gpu()
    two, one = gpu.partitions
    again = replace(gpu, id="v100-1", partitions=(replace(two, id="again"), replace(one, id="more")))
    assert any(r.startswith("r: is a pool whose servers serve other models too") for r in reasons(gpu, again))


def test_a_partition_serves_a_model_once() -> None:
    gpu = shared_gpu()
    two, one = gpu.partitions
    twice = replace(two, models=(*two.models, two.models[0]))
    assert "both: serves a model twice" in reasons(replace(gpu, partitions=(twice, one)))


def test_another_batch_of_one_model_is_a_change() -> None:
    before, after = (Plan("by-hand", Rule.P99, "ours", (shared_gpu(batch),)) for batch in (4, 6))
    (change,) = changes(before, after)
    assert change.change is Change.RESIZED
    assert change.before == ("v100-0", 60.0, (8, 4))
    assert change.after == ("v100-0", 60.0, (8, 6))


@pytest.mark.parametrize(
    ("gpu", "batch", "order"),
    [
        (shared_gpu(), 8, ""),
        (in_order(shared_gpu(), 0, 1), 1, ", requests waiting at the gateway, the shortest first"),
    ],
)
def test_a_model_that_takes_turns_is_explained_with_the_others(
    gpu: PlannedGpu, batch: int, order: str
) -> None:
    plan = Plan("by-hand", Rule.P99, "ours", (gpu,), quantile=0.95)
    (of_r,) = explain(plan, "r", {"v100": planning.v100("ours")})  # type: ignore[misc]
    assert of_r.alternatives[0].batch == batch
    assert of_r.reasons[-1] == f"one server with alexnet, of which one model executes at a time{order}"

"""Each rule of the judge, broken alone."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import planning
import pytest
from planning import joint_p99, planned, published

from controlplane.domain.plan import Partition, Plan, PlannedGpu, ServedModel, Shadow
from controlplane.domain.workload import ShadowPolicy
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.judge.verify import verify


@cache
def good() -> Plan:
    return planned("igniter", published(12))


def reasons(plan: Plan, *, workloads: bool = False) -> str:
    found = verify(plan, {"v100": planning.v100()}, published(12) if workloads else None)
    return "\n".join(f"{v.subject}: {v.reason}" for v in found)


def with_partition(number: int, change: Callable[[Partition], Partition]) -> Plan:
    plan = good()
    gpu = plan.gpus[number]
    gpu = replace(gpu, partitions=(change(gpu.partitions[0]), *gpu.partitions[1:]))
    return replace(plan, gpus=(*plan.gpus[:number], gpu, *plan.gpus[number + 1 :]))


def served(partition: Partition, **changes: object) -> Partition:
    return replace(partition, models=(replace(partition.models[0], **changes),))  # type: ignore[arg-type]


def placed(partition: Partition, **changes: object) -> Partition:
    return replace(partition, workloads=(replace(partition.workloads[0], **changes),))  # type: ignore[arg-type]


def capacity_rps(partition: Partition) -> float:
    plan = good()
    verdicts = judge(plan.gpus, {"v100": planning.v100()}, Terms.of(plan))
    return next(one.capacity_rps for one in verdicts if one.partition.id == partition.id)


def test_a_good_plan_is_good() -> None:
    assert reasons(good(), workloads=True) == ""


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (0, lambda p: replace(p, percent=91.0), "91 % is no share"),
        (0, lambda p: replace(p, percent=0.0), "0 % is no share"),
        (0, lambda p: replace(p, percent=math.nan), "is no finite number: percent"),
        (1, lambda p: replace(p, percent=95.0), "shares add up to 110 %"),
        (0, lambda p: served(p, batch=33), "batch 33 is outside 1 to 32"),
        (0, lambda p: served(p, batch=0), "batch 0 is outside"),
        (0, lambda p: served(p, instances=2), "2 instances"),
        (0, lambda p: served(p, max_queue_delay_us=5), "a queue delay"),
        (0, lambda p: served(p, model="alexnet"), "needs ssd"),
        (0, lambda p: served(p, model="bert"), "bert has no profile"),
        (0, lambda p: replace(p, models=(*p.models, ServedModel("ssd", 1))), "serves a model twice"),
        (0, lambda p: replace(p, workloads=()), "serves no workload"),
        (0, lambda p: placed(p, rate_rps=330.0), "330/s arrive"),
        (0, lambda p: placed(p, slo_ms=40.0), "half its SLO is 20 ms"),
        # All that it can serve is not too much.
        (0, lambda p: placed(p, slo_ms=40.0, rate_rps=capacity_rps(p)), "half its SLO is 20 ms"),
        (0, lambda p: placed(p, rate_rps=math.inf), "is no finite number: rate_rps"),
        (0, lambda p: placed(p, rate_rps=-1.0), "rate_rps is -1"),
        (0, lambda p: placed(p, endpoint="W8"), "shares the endpoint W8"),
        (0, lambda p: replace(p, id="W8"), "2 partitions have this id"),
        (0, lambda p: replace(p, memory_mb=9000.0, shadow=replace(p.shadow, memory_mb=9000.0)), "18000 MB"),
        (0, lambda p: replace(p, shadow=replace(p.shadow, gpu="v100-77")), "not in the plan"),
        (0, lambda p: replace(p, shadow=replace(p.shadow, percent=97.5)), "not its own and the extra"),
        (
            0,
            lambda p: replace(p, shadow=replace(p.shadow, percent=102.5, extra_percent=10.0)),
            "carries 102.5",
        ),
    ],
)
def test_each_rule(number: int, change: Callable[[Partition], Partition], said: str) -> None:
    assert said in reasons(with_partition(number, change))


def test_a_rate_below_one_is_one() -> None:
    plan = with_partition(0, lambda p: placed(p, rate_rps=0.5))
    assert "rate_rps is" not in reasons(plan)


def test_a_shadow_that_breaks_a_neighbour_once_active() -> None:
    # W6 stands beside W8, which holds by a hair: its shadow with the full extra would break W8.
    plan = good()
    gpu = plan.gpus[1]
    w6 = gpu.partitions[1]
    greedy = replace(w6, shadow=Shadow(ShadowPolicy.HOT, gpu.id, 10.0, w6.percent + 10.0))
    bad = replace(
        plan, gpus=(plan.gpus[0], replace(gpu, partitions=(gpu.partitions[0], greedy)), *plan.gpus[2:])
    )
    assert "beside the active shadow" in reasons(bad)


def test_gpu_ids_types_and_numbers() -> None:
    plan = good()
    twice = replace(plan, gpus=(plan.gpus[0], replace(plan.gpus[1], id="v100-0"), *plan.gpus[2:]))
    assert "2 GPUs have this id" in reasons(twice)
    other = replace(plan, gpus=(replace(plan.gpus[0], type="t4"), *plan.gpus[1:]))
    assert "nothing is known" in reasons(other)
    few = verify(plan, {"v100": planning.v100(count=5)})
    assert any("there are 5" in v.reason for v in few)


def test_a_workload_may_not_be_lost_nor_its_rate() -> None:
    plan = good()
    assert "W12: is lost" in reasons(replace(plan, gpus=plan.gpus[1:]), workloads=True)
    less = with_partition(0, lambda p: placed(p, rate_rps=250.0))
    assert "add up to 250/s, not 300/s" in reasons(less, workloads=True)
    assert verify(plan, {"v100": planning.v100()}, published(12)[:11])[0].reason == "was not asked for"


def test_the_p99_rule_asks_the_queue_and_knows_pools() -> None:
    plan = joint_p99(published(12))
    assert plan.verified
    pool = [p for _, p in plan.partitions() if p.workloads[0].name == "W12"]
    assert len(pool) >= 2
    # One queue in front of both is what holds the SLO: apart they would not.
    apart = tuple(replace(g, partitions=tuple(_renamed(p, g) for p in g.partitions)) for g in plan.gpus)
    found = verify(replace(plan, gpus=apart), {"v100": planning.v100("ours")})
    assert any("its P99 is" in v.reason and v.subject.startswith("W12") for v in found)


def _renamed(partition: Partition, gpu: PlannedGpu) -> Partition:
    if partition.workloads[0].name != "W12":
        return partition
    name = f"W12{gpu.id}"
    return placed(partition, name=name, endpoint=name)

"""Partitions with several models in the simulator."""

from dataclasses import replace

import numpy as np
import pytest
from known_service import KnownService
from turing import device, planned

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.latency.queueing.turns import bound_turns
from controlplane.simulate.arrivals import Trace
from controlplane.simulate.engine import Settings, simulate

SERVICE = {"short": (5.0, 6.0, 7.0, 8.0), "long": (40.0, 45.0, 50.0, 55.0)}
TRUTH = {"t4": KnownService(SERVICE)}


def shared(short_rps: float = 40.0, long_rps: float = 5.0) -> Plan:
    partition = Partition(
        "both",
        100.0,
        (ServedModel("short", 4), ServedModel("long", 4)),
        (
            Placement("s", "s", "short", short_rps, 200.0),
            Placement("l", "l", "long", long_rps, 400.0),
        ),
    )
    return Plan("by-hand", Rule.P99, "known", (PlannedGpu("t4-0", "t4", (partition,)),))


def answers(short_s: list[float], long_s: list[float]) -> list[tuple[str, float, int]]:
    """Workload, end in ms and batch of every request, as they end."""
    demands = {"s": Trace(tuple(short_s)), "l": Trace(tuple(long_s))}
    seen = simulate(shared(), TRUTH, Settings(seconds=2.0, demands=demands, answers=100)).answers
    return [(a.workload, round(a.arrival_ms + a.latency_ms, 6), a.batch) for a in seen]


def test_a_request_waits_for_the_batch_of_another_model_that_runs() -> None:
    assert answers([0.010], [0.0]) == [("l", 40.0, 1), ("s", 45.0, 1)]


def test_what_waits_for_its_turn_fills_a_batch() -> None:
    seen = answers([0.001 * n for n in range(1, 7)], [0.0])
    assert [batch for workload, _, batch in seen if workload == "s"] == [4, 4, 4, 4, 2, 2]


def test_in_a_backlog_the_model_with_fewer_executions_catches_up() -> None:
    """The order that tests/e2e/render/test_turns.py sees on a real Triton."""
    before = [0.1 * n for n in range(8)]
    backlog = [1.0] * 12
    seen = answers([*before, 0.999, *backlog], backlog)
    order = [workload for workload, ends, _ in seen if ends > 1000.0]
    first = order.index("l")
    assert order[first : first + 12] == ["l"] * 12


def test_models_that_take_turns_share_their_utilisation() -> None:
    found = simulate(shared(), TRUTH, Settings(seconds=200.0)).workloads
    expected = 40.0 * 8.0 / 4000.0 + 5.0 * 55.0 / 4000.0
    assert [w.utilisation for w in found] == pytest.approx([expected, expected], rel=0.1)


@pytest.mark.parametrize("rates", [(40.0, 5.0), (10.0, 10.0), (80.0, 2.0)])
def test_the_bound_is_no_lower_than_the_simulation(rates: tuple[float, float]) -> None:
    found = simulate(shared(*rates), TRUTH, Settings(seconds=2000.0)).workloads
    bound = bound_turns(rates, [np.array(t) for t in SERVICE.values()])
    assert all(w.p99_ms <= 1.01 * p99 for w, p99 in zip(found, bound.p99_ms, strict=True))


def test_a_plan_of_a_scheduler_with_turns_is_simulated() -> None:
    plan = planned("sbp", {"densenet161": 50.0, "vgg16": 50.0}, count=2)
    assert any(p.turns for _, p in plan.partitions())
    assert simulate(plan, {"rtx2080ti": device(1).latency}).breaks == 0


def test_models_that_take_turns_have_one_instance_and_no_delay() -> None:
    (gpu,) = shared().gpus
    (partition,) = gpu.partitions
    slow = replace(partition.models[0], max_queue_delay_us=100)
    changed = replace(gpu, partitions=(replace(partition, models=(slow, partition.models[1])),))
    with pytest.raises(InputError, match="one at a time"):
        simulate(replace(shared(), gpus=(changed,)), TRUTH)

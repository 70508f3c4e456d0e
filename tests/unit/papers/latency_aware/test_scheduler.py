"""The latency-aware scheduler on the V100 catalogue."""

import itertools
from dataclasses import replace

import numpy as np
import planning

from controlplane.domain.plan import Rule
from controlplane.latency.fitting.published import Published
from controlplane.papers.latency_aware.responses import LARGEST_LOAD, Tables, Task, settle
from controlplane.papers.latency_aware.strategy import Search

THREE = (("resnet50", 200.0, 50.0), ("vgg19", 30.0, 200.0), ("alexnet", 600.0, 40.0))
"""The rates and SLOs of the paper, on models that the catalogue has."""


def tables() -> Tables:
    device = planning.v100("latency-aware")
    assert isinstance(device.latency, Published)
    return Tables.of(device.latency, device.pool.device.grid.percents(), 32)


def task(model: str, rate_rps: float, slo_ms: float) -> Task:
    return Task(planning.v100("latency-aware").latency.models.index(model), rate_rps, slo_ms)


def test_three_tasks_of_the_paper_share_one_gpu() -> None:
    found = settle([task(*row) for row in THREE], tables())
    assert all(c.holds for c in found)
    percents = tables().percent[0]
    assert sum(percents[c.share] for c in found) <= 100.0


def test_without_a_bound_on_their_sum_shares_may_overlap() -> None:
    tasks = [task(model, 2.0 * rate, 8.0) for model, rate, _ in THREE]
    bounded, free = tables(), replace(tables(), most_percent=300.0)
    missed = [sum(not c.holds for c in settle(tasks, own)) for own in (bounded, free)]
    assert missed[0] > missed[1]
    assert sum(free.percent[0][c.share] for c in settle(tasks, free)) > 100.0


def test_no_single_change_of_batch_or_share_is_better() -> None:
    """A fixpoint: no task has a better response within what the others leave."""
    from controlplane.papers.latency_aware import responses

    own = tables()
    tasks = [task(*row) for row in THREE]
    found = settle(tasks, own)
    chosen = [(c.batch, c.share) for c in found]
    for i, one in enumerate(tasks):
        free = 100.0 - sum(own.percent[0][p] for n, (_, p) in enumerate(chosen) if n != i)
        others = responses._weight_of_others(tasks, chosen, i, own)
        assert responses._response(one, own, others, free) == chosen[i]


def test_an_overload_is_never_called_held() -> None:
    own = tables()
    capacity = float((own.batch[:, 0] / own.solo_ms[task("vgg19", 1, 1).model, :, -1]).max()) * 1000.0
    found = settle([task("vgg19", capacity * (LARGEST_LOAD + 0.05), 10_000.0)], own)
    assert not found[0].holds


def test_a_plan_serves_all_that_it_does_not_refuse() -> None:
    workloads = [planning.workload(m, m, slo, rate) for m, rate, slo in THREE]
    plan = planning.planned("latency-aware", workloads, latency="latency-aware", rule=Rule.HALF_SLO)
    assert not plan.infeasible
    assert {w.name for _, _, w in plan.placements()} == {m for m, _, _ in THREE}


def test_what_no_gpu_carries_is_infeasible_with_a_reason() -> None:
    workloads = [
        planning.workload("v", "vgg19", 30.0, 5000.0),
        planning.workload("a", "alexnet", 40.0, 100.0),
    ]
    plan = planning.planned("latency-aware", workloads, latency="latency-aware")
    (refused,) = plan.infeasible
    assert refused.workload == "v"
    assert "v100" in refused.reason


def test_moves_and_swaps_find_the_best_placement_of_four_tasks() -> None:
    generator = np.random.default_rng(3)
    chosen = [
        task(m, float(generator.integers(20, 200)), float(generator.integers(40, 200)))
        for m in planning.MODELS
    ]
    search = Search(chosen, tables(), 2)
    placing = search.best()
    assert placing is not None
    best = min(search.score(p) for p in itertools.product(range(2), repeat=4))
    assert search.score(placing) == best


def test_memory_bounds_the_placement() -> None:
    big = [Task(0, 50.0, 100.0, memory_mb=600.0) for _ in range(3)]
    assert Search(big, tables(), 2, memory_mb=1000.0).best() is None
    placing = Search(big, tables(), 3, memory_mb=1000.0).best()
    assert sorted(placing or ()) == [0, 1, 2]

"""Few workloads: cuts and pools in all combinations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import planning
import pytest
from planning import planned, published, workload

from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.context import Context
from controlplane.planning.joint.small_cases import Combination, combinations


def of(asked: tuple[Workload, ...]) -> list[Combination]:
    context = Context.of(planning.request(asked), 0.0)
    return combinations(context.workloads, context.gpu_types)


def test_every_pool_stands_with_all_its_servers_and_serves_all_workloads() -> None:
    found = of(published(12))
    assert found == sorted(found, key=lambda w: (w.cost, w.share))
    for likely in found:
        served = [w.name for k in likely.pools for w in k.item.workloads]
        assert sorted(served) == sorted(w.name for w in published(12))
        stands = Counter(n for gpus in likely.gpus.values() for gpu in gpus for n in gpu)
        assert stands == {n: k.item.servers for n, k in enumerate(likely.pools)}
        assert likely.least <= likely.cost


def test_a_workload_that_fits_nowhere_or_many_families_leave_no_combination() -> None:
    assert of((*published(12)[:3], workload("hopeless", "vgg19", 1.0, 100.0))) == []
    apart = [replace(w, isolated=True) for w in published(50)[:40]]
    assert of(tuple(apart)) == []
    assert planned("joint", apart).verified


@pytest.mark.parametrize(("rule", "latency", "gpus"), [(Rule.HALF_SLO, "igniter", 5), (Rule.P99, "ours", 7)])
def test_table_3_takes_as_few_gpus_as_proven(rule: Rule, latency: str, gpus: int) -> None:
    plan: Plan = planned("joint", published(12), rule=rule, latency=latency)
    assert plan.verified
    assert len(plan.gpus) == gpus

"""The document of a running fleet."""

from __future__ import annotations

from dataclasses import replace

import planning
import pytest

from controlplane.domain.plan import Plan, Rule
from controlplane.report.page.fleet import fleet_document
from controlplane.report.tables.status_table import Status


@pytest.fixture(scope="module")
def plan() -> Plan:
    asked = planning.published(12)[:3]
    twin = replace(asked[0], name="twin", endpoint="twin")
    return planning.planned("joint", [*asked, twin], rule=Rule.P99, latency="ours")


def test_the_planned_and_the_measured_utilisation_stand_side_by_side(plan: Plan) -> None:
    (partition, placed, *_), *_ = [(p, *p.workloads) for _, p in plan.partitions() if len(p.workloads) > 1]
    busy = {(partition.id, placed.endpoint): 0.83, ("gone", "gone"): 0.1}
    document = fleet_document("shop", plan, Status((), (), (), None), (), busy)
    sharing = {w.name for w in partition.workloads if w.model == placed.model}
    for one in document["workloads"]:
        assert one["busy"] == (0.83 if one["name"] in sharing else None)
        assert one["utilisation"] is not None
        assert one["utilisation"] != 0.83

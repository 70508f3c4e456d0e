"""The document of a running fleet."""

import json
from dataclasses import replace

import planning
import pytest

from controlplane.domain.plan import Infeasible, Plan, Rule
from controlplane.planning.explain.alternatives import LARGER_SHARE
from controlplane.planning.explain.explain import explain, explain_queues
from controlplane.report.page import embedded, page
from controlplane.report.page.document import fleet_document, plan_document
from controlplane.report.tables.status_table import Status


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planning.planned("igniter", planning.published(12))


def test_every_queue_is_explained_as_its_workload_alone(plan: Plan) -> None:
    devices = {"v100": planning.v100()}
    together = explain_queues(plan, devices)
    assert len(together) == 12
    for (partition, _), explanation in together.items():
        assert explain(plan, explanation.workload, devices) == (explanation,)
        assert explanation.partition == partition


def test_a_larger_share_with_a_longer_prediction_has_its_reason() -> None:
    plan = planning.planned("joint", planning.published(12), rule=Rule.P99, latency="ours")
    found = explain_queues(plan, {"v100": planning.v100("ours")}).values()
    longer = []
    for one in found:
        planned, *others = one.alternatives
        slower = [a for a in others if a.what == LARGER_SHARE and a.execution_ms > planned.execution_ms]
        assert ("the latency model predicts longer" in one.reasons[0]) == bool(slower)
        longer += slower
    assert longer


def test_document_has_each_workload_once_with_the_rate_of_all_its_servers(plan: Plan) -> None:
    gpu, *others = plan.gpus
    (partition,) = gpu.partitions
    (placed,) = partition.workloads
    half = replace(placed, rate_rps=placed.rate_rps / 2)
    pair = [
        replace(
            gpu, id=f"v100-{n}", partitions=(replace(partition, id=f"{placed.name}-{n}", workloads=(half,)),)
        )
        for n in (90, 91)
    ]
    found = plan_document(replace(plan, gpus=(*pair, *others)))
    (one,) = [w for w in found["workloads"] if w["name"] == placed.name]
    assert one["rate_rps"] == placed.rate_rps
    assert one["gpus"] == ["v100-90", "v100-91"]


def test_half_slo_plans_are_shown_against_half_the_slo(plan: Plan) -> None:
    assert plan.rule is Rule.HALF_SLO
    found = plan_document(plan)
    assert found["basis"]["limit"] == "half the SLO"
    assert all(w["limit_ms"] == w["slo_ms"] / 2 and w["holds"] for w in found["workloads"])


def test_no_text_ends_the_script_that_holds_the_document(plan: Plan) -> None:
    hostile = "</script><script>alert(1)</script> \u2028 <!--"
    given = plan_document(replace(plan, infeasible=(Infeasible("w", hostile),)))
    text = embedded(given)
    assert "<" not in text
    assert json.loads(text)["infeasible"][0]["reason"] == hostile


def test_page_names_no_address_and_forbids_connections(plan: Plan) -> None:
    text = page("Plan", plan_document(plan))
    assert "connect-src 'none'" in text
    assert "https://" not in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.fixture(scope="module")
def shared() -> Plan:
    asked = planning.published(12)[:3]
    twin = replace(asked[0], name="twin", endpoint="twin")
    return planning.planned("joint", [*asked, twin], rule=Rule.P99, latency="ours")


def test_the_planned_and_the_measured_utilisation_stand_side_by_side(shared: Plan) -> None:
    (partition, placed, *_), *_ = [(p, *p.workloads) for _, p in shared.partitions() if len(p.workloads) > 1]
    busy = {(partition.id, placed.endpoint): 0.83, ("gone", "gone"): 0.1}
    document = fleet_document("shop", shared, Status((), (), (), None), (), busy)
    sharing = {w.name for w in partition.workloads if w.model == placed.model}
    for one in document["workloads"]:
        assert one["busy"] == (0.83 if one["name"] in sharing else None)
        assert one["utilisation"] is not None
        assert one["utilisation"] != 0.83

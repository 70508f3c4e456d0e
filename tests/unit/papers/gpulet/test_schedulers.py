"""gpulet's schedulers on the surrogate of an RTX 2080 Ti."""

from dataclasses import replace

import planning
import pytest
from turing import SLO_MS, asked, device, planned, question

from controlplane.papers.gpulet import elastic
from controlplane.papers.gpulet.gpulets import Cluster
from controlplane.papers.gpulet.latency import Gpulet
from controlplane.papers.gpulet.sizing import GPULET, Demand, Sizing, Times
from controlplane.papers.gpulet.strategy import reserved
from controlplane.planning import registry
from controlplane.planning.judge.verify import verify

FAMILY = ("sbp", "greedy-best-fit", "gpulet", "gpulet+int", "gpulet-ideal")
TWO = {"resnet50": 100.0, "vgg16": 100.0}
TURNS = {"densenet161": 50.0, "vgg16": 50.0}


def times() -> Times:
    model = device().latency
    assert isinstance(model, Gpulet)
    return Times.of(model, 32)


def index(model: str) -> int:
    return device().latency.models.index(model)


def test_interference_is_the_papers_in_both_directions() -> None:
    table = times()
    resnet, vgg = (index("resnet50"), 40, 8), (index("vgg16"), 60, 8)
    assert table._factor(resnet, vgg) == pytest.approx(1.1476, abs=1e-4)
    assert table._factor(vgg, resnet) == pytest.approx(1.1298, abs=1e-4)


def test_the_judge_sees_the_same_times_without_the_margin() -> None:
    plan = planned("gpulet", TWO, as_coded=True)
    (gpu,) = plan.gpus
    table = times()
    for own, other in (gpu.partitions, gpu.partitions[::-1]):
        runs = [(index(p.models[0].model), int(p.percent), p.models[0].batch) for p in (own, other)]
        expected = table.beside(runs[0], runs[1:]) / 1.1
        assert own.workloads[0].predicted.execution_ms == pytest.approx(expected)


@pytest.mark.parametrize(("rate", "planned_for"), [(100, 125), (200, 235), (600, 660)])
def test_rates_have_the_authors_reserve(rate: float, planned_for: int) -> None:
    assert reserved(rate) == planned_for


@pytest.mark.parametrize("strategy", FAMILY)
@pytest.mark.parametrize("as_coded", [False, True])
def test_every_scheduler_serves_all_of_two_models(strategy: str, as_coded: bool) -> None:
    plan = planned(strategy, TWO, as_coded=as_coded)
    assert not plan.infeasible
    served = {name: 0.0 for name in TWO}
    for _, _, w in plan.placements():
        served[w.name] += w.rate_rps
    assert served == pytest.approx(TWO)
    assert verify(plan, {"rtx2080ti": device()}, asked(TWO)) == plan.violations


def test_a_gpu_holds_at_most_two_gpulets() -> None:
    plan = planned("gpulet+int", dict.fromkeys(SLO_MS, 100.0), count=8)
    assert not plan.infeasible
    assert max(len(g.partitions) for g in plan.gpus) == 2


def test_sbp_lets_models_take_turns_on_whole_gpus() -> None:
    plan = planned("sbp", TURNS, count=2)
    (gpu,) = plan.gpus
    (partition,) = gpu.partitions
    assert partition.percent == 100
    assert {m.model for m in partition.models} == set(TURNS)
    assert plan.verified


def test_a_partition_in_turns_is_judged_by_its_round() -> None:
    plan = planned("sbp", TURNS, count=2)
    (partition,) = plan.gpus[0].partitions
    round_ms = sum(w.predicted.execution_ms or 0.0 for w in partition.workloads)
    for w in partition.workloads:
        batch = next(m.batch for m in partition.models if m.model == w.model)
        assert w.predicted.capacity_rps == pytest.approx(1000.0 * batch / round_ms)


def test_more_gpus_are_taken_until_the_demands_have_a_place() -> None:
    rates = dict.fromkeys(SLO_MS, 200.0)
    counts = [len(planned(name, rates, count=None).gpus) for name in ("gpulet", "sbp")]
    assert counts[0] <= counts[1]


def test_gpus_are_counted_up_from_those_of_the_period_before(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def place(demands: object, cluster: Cluster, sizing: object) -> str | None:
        tried.append(len(cluster.gpus))
        return None if len(cluster.gpus) == 3 else "no room"

    before = planned("gpulet", dict.fromkeys(SLO_MS, 200.0))
    before = replace(before, gpus=before.gpus[:2])
    monkeypatch.setattr(elastic, "partition", place)
    asked_again = replace(question(asked(TWO)), previous=before)
    registry.strategy("gpulet").plan(asked_again)
    assert tried == [2, 3]


def test_what_finds_no_gpulet_is_infeasible() -> None:
    plan = planned("gpulet", dict.fromkeys(SLO_MS, 200.0), count=1)
    placed = {w.name for _, _, w in plan.placements()}
    refused = {i.workload for i in plan.infeasible}
    assert refused
    assert placed | refused == set(SLO_MS)


def test_the_efficient_size_of_the_code_is_never_20_or_100() -> None:
    sizing = Sizing(times(), GPULET, as_coded=True)
    for model, slo in SLO_MS.items():
        assert sizing.efficient(Demand(0, index(model), 125, slo)) in (40, 50, 60, 80)


@pytest.mark.parametrize(
    ("rates", "sbp"),
    [
        ({"vgg16": 200.0, "mobilenet_v2": 200.0, "densenet161": 200.0}, True),
        (dict.fromkeys(SLO_MS, 100.0), False),
    ],
)
def test_what_four_gpus_hold_as_coded(rates: dict[str, float], sbp: bool) -> None:
    assert (not planned("sbp", rates, as_coded=True).infeasible) == sbp


def test_table_3_takes_eight_gpus_of_at_most_two() -> None:
    """gpu-lets+ on iGniter's twelve workloads, beside what its authors report (Fig 14, 18, Sec. 5.3)."""
    plan = planning.planned("gpu-lets+", planning.published(12))
    assert len(plan.gpus) == 8
    assert max(len(g.partitions) for g in plan.gpus) == 2
    placed = {name: chosen for gpu in planning.layout(plan) for name, chosen in gpu.items()}
    assert placed["W4"] == (60.0, 2)
    assert placed["W9"][0] == 40.0
    assert placed["W2"][0] == 40.0

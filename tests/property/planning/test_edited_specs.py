"""A spec that was edited is planned against the plan that runs, whatever was edited."""

from collections.abc import Sequence
from dataclasses import replace

import planning
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controlplane.domain.plan import Plan
from controlplane.domain.workload import Arrivals, ShadowPlace, ShadowPolicy, ShadowWish, Workload
from controlplane.planning import registry
from controlplane.planning.judge.placements import memory_together
from controlplane.planning.judge.verify import verify
from controlplane.planning.protocol import PlanRequest, Strategy
from controlplane.planning.replan.differences import changes
from controlplane.planning.replan.smallest_change import smallest_change
from controlplane.report.tables.change_table import change_table

_COPIES = 3
_MODELS = [f"{model}-{n}" for model in planning.MIXED_SLO_MS for n in range(_COPIES)]
_JOINT = registry.strategy("joint")
_LATE_BINDING = registry.strategy("joint", late_binding=True)
_COUNTS = (1, 2, None)
_KEEPING = ("remove", "rate", "slo")
"""Edits after which what runs may still serve all that is asked for."""
_ALL = (*_KEEPING, "add", "rename", "model", "settings")
_ARRIVALS = ((Arrivals.POISSON, 1.0), (Arrivals.POISSON, 4.0), (Arrivals.CONSTANT, 1.0))


def asked_of(workloads: Sequence[Workload], count: int | None, previous: Plan | None = None) -> PlanRequest:
    return planning.p99_request(workloads, device=planning.cores(_COPIES, count), previous=previous)


@st.composite
def light_workloads(draw: st.DrawFn) -> list[Workload]:
    """Workloads of which several share a partition in turns, some of them one model."""
    drawn = planning.mixed(draw(st.integers(5, 8)), _COPIES, draw(st.integers(0, 50)))
    asked = [replace(w, rate_rps=w.rate_rps / 10.0, slo_ms=3.0 * w.slo_ms) for w in drawn]
    twin = replace(asked[0], name="twin", endpoint="twin")
    return [*asked, twin] if draw(st.booleans()) else asked


@st.composite
def edits(draw: st.DrawFn, asked: Sequence[Workload]) -> list[Workload]:
    """The workloads after one to four edits of a spec."""
    now = list(asked)
    kinds = draw(st.sampled_from([_KEEPING, _KEEPING, _ALL]))
    for n in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(now) - 1))
        w = now[at]
        kind = draw(st.sampled_from(kinds))
        if kind == "rate":
            now[at] = replace(w, rate_rps=w.rate_rps * draw(st.sampled_from([0.01, 0.9, 1.1, 20.0])))
        elif kind == "slo":
            now[at] = replace(w, slo_ms=w.slo_ms * draw(st.sampled_from([0.9, 3.0, 0.05])))
        elif kind == "add":
            now.append(planning.workload(f"new{n}", draw(st.sampled_from(_MODELS)), 200.0, 5.0))
        elif kind == "remove" and len(now) > 1:
            del now[at]
        elif kind == "rename":
            now[at] = replace(w, name=f"renamed{n}", endpoint=f"renamed{n}")
        elif kind == "model":
            now[at] = replace(w, model=draw(st.sampled_from(_MODELS)))
        else:
            arrivals, dispersion = draw(st.sampled_from(_ARRIVALS))
            now[at] = replace(
                w,
                client_batch=draw(st.sampled_from([1, 2, 3])),
                isolated=draw(st.booleans()),
                arrivals=arrivals,
                dispersion=dispersion,
                memory_mb=draw(st.sampled_from([None, 300.0])),
                shadow=ShadowWish(
                    draw(st.sampled_from(list(ShadowPolicy))), draw(st.sampled_from(list(ShadowPlace)))
                ),
            )
    return now


def check(plan: Plan, request: PlanRequest) -> None:
    assert plan.verified is not bool(plan.violations)
    assert set(verify(plan, request.devices, request.workloads)) <= set(plan.violations)
    placed = {w.name for _, _, w in plan.placements()}
    refused = {i.workload for i in plan.infeasible}
    assert placed | refused == {w.name for w in request.workloads}
    assert not placed & refused
    asked = {w.name: w for w in request.workloads}
    for gpu, partition in plan.partitions():
        assert {m.model for m in partition.models} == {w.model for w in partition.workloads}
        own = [asked[w.name] for w in partition.workloads]
        assert partition.memory_mb == memory_together(own, partition.models, request.devices[gpu.type])


@pytest.mark.slow
# Without shrinking, which would make plans for minutes.
@pytest.mark.parametrize("strategy", [_JOINT, _LATE_BINDING], ids=["greedy-order", "late-binding"])
@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_an_edited_spec_is_planned_against_its_running_plan(strategy: Strategy, data: st.DataObject) -> None:
    workloads = data.draw(light_workloads())
    before = strategy.plan(asked_of(workloads, data.draw(st.sampled_from(_COUNTS))))
    edited = data.draw(edits(workloads))
    request = asked_of(edited, data.draw(st.sampled_from(_COUNTS)), before)
    after = strategy.plan(request)
    check(after, request)
    changes(before, after)
    change_table(before, after, edited)
    check(smallest_change(strategy, request).plan, request)
    check(smallest_change(strategy, request, cheaper=True).plan, request)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_model_whose_workload_ended_leaves_its_partition(gone: int) -> None:
    workloads = [
        planning.workload("w0", "alexnet-0", 100.0, 10.0),
        planning.workload("w1", "alexnet-1", 100.0, 10.0),
    ]
    before = _LATE_BINDING.plan(asked_of(workloads, 1))
    shared = replace(
        before.gpus[0].partitions[0],
        models=tuple(m for p in before.gpus[0].partitions for m in p.models),
        workloads=tuple(w for p in before.gpus[0].partitions for w in p.workloads),
    )
    ranked = tuple(replace(m, batch=1, rank=n) for n, m in enumerate(shared.models))
    gpu = replace(before.gpus[0], partitions=(replace(shared, models=ranked),))
    left = [w for n, w in enumerate(workloads) if n != gone]
    request = asked_of(left, 1, replace(before, gpus=(gpu,)))
    after = smallest_change(_JOINT, request).plan
    check(after, request)
    ((_, partition),) = after.partitions()
    assert after.verified
    assert [(m.model, m.rank) for m in partition.models] == [(left[0].model, None)]
    assert partition.id == shared.id

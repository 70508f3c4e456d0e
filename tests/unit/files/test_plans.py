"""A plan survives its file, and a broken one is refused with its place."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.plan import (
    Infeasible,
    Partition,
    Placement,
    Plan,
    PlannedGpu,
    Prediction,
    ProfileUse,
    Rule,
    ServedModel,
    Shadow,
    Totals,
    Violation,
)
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.documents import versioned
from controlplane.files.mistakes import field_of
from controlplane.files.plans import plan_hash, read_plan, write_plan

FAST = Placement("W12", "W12", "ssd", 300, 55, predicted=Prediction(execution_ms=26.5))
SLOW = Placement("W11", "W11", "ssd", 5, 40, isolated=True)
HOT = Shadow(ShadowPolicy.HOT, "v100-0", 7.5, 100)
PARTITIONS = (
    Partition("W12", 92.5, (ServedModel("ssd", 8),), (FAST,), shadow=HOT),
    Partition("W11", 7.5, (ServedModel("ssd", 1),), (SLOW,)),
)
PHASES = {"search": 0.7, "verify": 0.5}
PLAN = Plan(
    strategy="igniter",
    rule=Rule.HALF_SLO,
    latency_model="igniter",
    quantile=0.95,
    seed=1,
    verified=True,
    violations=(Violation("W1", "why"),),
    spec_sha256="ab",
    profiles=(ProfileUse("ssd", "v100", "cd"),),
    gpus=(PlannedGpu("v100-0", "v100", PARTITIONS, price_per_hour=3.06, memory_mb=16160),),
    infeasible=(Infeasible("W13", "no share holds it", 12.5, 180),),
    totals=Totals(1, 100, 3.06, planning_ms=1.2, stopped_by="converged", phases_ms=PHASES),
)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, PLAN)
    assert read_plan(path)[0] == PLAN


def test_the_hash_is_of_what_runs() -> None:
    assert plan_hash(replace(PLAN, totals=None, seed=7)) == plan_hash(PLAN)
    gpu = PLAN.gpus[0]
    smaller = replace(gpu, partitions=(replace(gpu.partitions[0], percent=90.0), gpu.partitions[1]))
    assert plan_hash(replace(PLAN, gpus=(smaller,))) != plan_hash(PLAN)


def test_an_order_survives_its_file_and_changes_the_hash_of_what_runs(tmp_path: Path) -> None:
    gpu = PLAN.gpus[0]
    first = replace(gpu.partitions[0], models=(ServedModel("ssd", 8, rank=2),))
    ordered = replace(PLAN, gpus=(replace(gpu, partitions=(first, gpu.partitions[1])),))
    write_plan(tmp_path / "plan.json", ordered)
    assert read_plan(tmp_path / "plan.json")[0] == ordered
    assert plan_hash(ordered) != plan_hash(PLAN)


FIRST = ("gpus", 0, "partitions", 0)
WORKLOAD, MODEL, SHADOW = (*FIRST, "workloads", 0), (*FIRST, "models", 0), (*FIRST, "shadow")
SECOND = ("gpus", 0, "partitions", 1)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("schema_version",), 9, "9 is not supported"),
        (("strategyy",), "x", "did you mean 'strategy'"),
        (("quantile",), 7.0, "less than 1"),
        ((*FIRST, "percent"), 0, "greater than 0"),
        ((*FIRST, "percent"), 101, "at most 100"),
        ((*FIRST, "id"), "a/b", "is not a valid name"),
        ((*FIRST, "models"), [], "at least 1 item"),
        ((*WORKLOAD, "endpoint"), "..", "not a valid name"),
        ((*WORKLOAD, "model"), "vgg", "models"),
        ((*WORKLOAD, "rate_rps"), 1e308, "at most 1e+09"),
        ((*WORKLOAD, "slo_ms"), 1e300, "at most 1e+09"),
        ((*WORKLOAD, "client_batch"), 0, "at least 1"),
        ((*MODEL, "batch"), 0, "at least 1"),
        ((*MODEL, "batch"), 1.5, "whole number"),
        ((*MODEL, "batch"), 10**9, "at most 4096"),
        ((*MODEL, "rank"), 9, "less than 9"),
        ((*MODEL, "rank"), -1, "at least 0"),
        ((*SHADOW, "gpu"), "v100-9", "not a GPU of this plan"),
        ((*SHADOW, "policy"), "auto", "hot, shared, warm or"),
        ((*SHADOW, "policy"), "shared", "no `shared` of v100-0"),
    ],
)
def test_a_broken_plan_is_refused(tmp_path: Path, path: tuple[Any, ...], value: object, says: str) -> None:
    check_refused(tmp_path, path, value, path, says)


@pytest.mark.parametrize(
    ("path", "value", "place", "says"),
    [
        ((*FIRST, "percent"), 95, ("gpus", 0, "partitions"), "add up to 102.5 percent"),
        ((*FIRST, "id"), "W11", (*SECOND, "id"), "duplicate id 'W11'"),
        ((*WORKLOAD, "endpoint"), "W11", (*SECOND, "workloads", 0, "endpoint"), "already"),
    ],
)
def test_what_does_not_fit_together_is_refused_at_the_later_place(
    tmp_path: Path, path: tuple[Any, ...], value: object, place: tuple[Any, ...], says: str
) -> None:
    check_refused(tmp_path, path, value, place, says)


def check_refused(
    tmp_path: Path, path: tuple[Any, ...], value: object, place: tuple[Any, ...], says: str
) -> None:
    document: Any = copy.deepcopy(versioned(PLAN))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document, indent=1))
    with pytest.raises(InputError) as caught:
        read_plan(file)
    assert caught.value.field == field_of(place)
    assert caught.value.line is not None
    assert says in caught.value.problem


def test_a_spec_is_no_plan(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("schema_version: 1\ngpus: [{type: v100}]\nworkloads: []\n")
    with pytest.raises(InputError, match="is a spec, not a plan: `ctl plan SPEC"):
        read_plan(file)

"""A plan leaves a core of its host to the gateway and clients, or somebody has accepted that it does not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from build import partition
from typer.testing import CliRunner

from controlplane.cli.main import app
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, PlannedGpu, Rule
from controlplane.files.documents import Document
from controlplane.files.plans import read_plan, read_spec, write_plan
from controlplane.runtime.jobs.plan import check_spare_core


def on_cores(*cores: int) -> Plan:
    gpus = tuple(PlannedGpu(f"cpu-{i}", "cpu", (partition(f"p{i}"),)) for i in cores)
    return Plan("joint", Rule.P99, "ours", (PlannedGpu("v100-0", "v100", ()), *gpus))


def is_short(plan: Plan, cores: int) -> bool:
    said: list[str] = []
    check_spare_core(plan, Document("plan", "", {}), cores, said.append, accepted=True)
    return bool(said)


def spec(directory: Path, count: str) -> Path:
    path = directory / "spec.yaml"
    path.write_text(
        f"schema_version: 1\ngpus:\n  - type: v100\n  - type: cpu\n    {count}\n"
        "workloads: [{name: a, model: m, slo_ms: 60, rate_rps: 50}]\n"
    )
    return path


@pytest.mark.parametrize(
    ("planned", "cores", "short"),
    [
        ((), 1, False),
        ((0,), 1, True),
        ((0,), 2, False),
        ((0, 1), 2, True),
        ((0, 1), 4, False),
        ((0, 7), 2, True),
    ],
)
def test_only_a_plan_that_leaves_no_core_is_short(planned: tuple[int, ...], cores: int, short: bool) -> None:
    assert is_short(on_cores(*planned), cores) is short


def test_a_core_where_only_shadows_stand_by_is_free() -> None:
    plan = on_cores(0)
    assert not is_short(replace(plan, gpus=(*plan.gpus, PlannedGpu("cpu-1", "cpu", ()))), 2)


def test_it_is_refused_at_the_count_with_the_way_out(tmp_path: Path) -> None:
    parsed, document = read_spec(spec(tmp_path, "count: 2"))
    with pytest.raises(InputError) as caught:
        check_spare_core(on_cores(0, 1), document, 2, print, accepted=False, spec=parsed)
    error = caught.value
    assert (error.file, error.line, error.field) == (str(tmp_path / "spec.yaml"), 5, "gpus[1].count")
    assert error.problem == (
        "this host has 2 cores and 2 are planned: none is left for the gateway, the controller and clients, "
        "and P99s will break; plan with `count: 1`, or accept it with --allow all-cores"
    )
    assert error.exit_code == 2
    parsed, document = read_spec(spec(tmp_path, "price_per_hour: 1"))
    with pytest.raises(
        InputError, match=r"spec.yaml:4: gpus\[1\].type: this host has 1 core and 1 are planned"
    ):
        check_spare_core(on_cores(0), document, 1, print, accepted=False, spec=parsed)


def test_what_was_accepted_is_said_all_the_same(tmp_path: Path) -> None:
    parsed, document = read_spec(spec(tmp_path, "count: 2"))
    said: list[str] = []
    check_spare_core(on_cores(0, 1), document, 2, said.append, accepted=True, spec=parsed)
    check_spare_core(on_cores(0, 1), document, 2, said.append, accepted=True)
    check_spare_core(on_cores(0), document, 2, said.append, accepted=False)
    assert [line.partition(":")[0] for line in said] == ["warning", "warning"]


def test_apply_refuses_before_anything_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "plan.json"
    write_plan(path, on_cores(*sorted(os.sched_getaffinity(0))))
    line = 1 + max(i for i, text in enumerate(path.read_text().splitlines()) if '"id": "cpu-' in text)
    told = CliRunner().invoke(app, ["apply", str(path), "--yes", "--allow", "violations"]).exception
    assert isinstance(told, InputError)
    assert (told.file, told.line) == (str(path), line)
    assert told.problem.endswith("or accept it with --allow all-cores")
    assert list((tmp_path / "state").rglob("default*")) == []
    assert read_plan(path)[0].gpus

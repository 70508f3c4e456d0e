import os
from dataclasses import replace
from pathlib import Path

import build
import pytest
from typer.testing import CliRunner

from controlplane.cli.main import app
from controlplane.domain.device import ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, PlannedGpu, Rule
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile
from controlplane.domain.settings import PlanSettings
from controlplane.files.documents import Document
from controlplane.files.measurements.profiles import write_profile
from controlplane.files.plans import read_plan, read_spec, write_plan
from controlplane.runtime import SystemClock
from controlplane.runtime.jobs.plan import (
    Choices,
    Planned,
    blind_types,
    check_spare_core,
    make_plan,
    mean_execution_ms,
)

SPEC = """
schema_version: 1
gpus: [{type: v100}]
workloads:
  - {name: search, model: resnet50, slo_ms: 40, rate_rps: 400}
  - {name: ads, model: alexnet, slo_ms: 20, rate_rps: 500}
"""


def planned(directory: Path, strategy: str) -> Plan:
    (directory / "spec.yaml").write_text(SPEC)
    spec, document = read_spec(directory / "spec.yaml")
    return make_plan(spec, document, Choices(strategy), profiles=directory, cores=1, clock=SystemClock()).plan


@pytest.mark.parametrize("max_batch", [0, 8])
def test_requests_larger_than_the_model_takes_are_refused_with_the_line(
    tmp_path: Path, max_batch: int
) -> None:
    points = tuple(Measurement(percent, 1, 200.0 / percent) for percent in (10.0, 50.0, 100.0))
    profile = Profile("mine", "v100", ShareKind.MPS_PERCENT, Environment(), points, max_batch=max_batch)
    write_profile(tmp_path, profile)
    text = "schema_version: 1\ngpus: [{type: v100}]\nworkloads:\n" + (
        "  - {name: W, model: mine, slo_ms: 400, rate_rps: 4}\n"
        f"  - {{name: V, model: mine, slo_ms: 400, rate_rps: 4, client_batch: {max_batch + 2}}}\n"
    )
    (tmp_path / "spec.yaml").write_text(text)
    spec, document = read_spec(tmp_path / "spec.yaml")
    with pytest.raises(InputError) as refused:
        make_plan(spec, document, Choices("joint"), profiles=tmp_path, cores=1, clock=SystemClock())
    assert (refused.value.line, refused.value.field) == (5, "workloads[1].client_batch")
    assert f"takes requests of {max(max_batch, 1)} at most" in str(refused.value)


@pytest.mark.parametrize(
    ("strategy", "settings", "says"),
    [
        ("joint", PlanSettings(Rule.HALF_SLO, late_binding=True), "is for the rule p99, not for half-slo"),
        ("igniter", PlanSettings(late_binding=True), "is for --strategy joint alone, not for igniter"),
    ],
)
def test_late_binding_is_for_p99s_of_joint(
    tmp_path: Path, strategy: str, settings: PlanSettings, says: str
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    spec, document = read_spec(tmp_path / "spec.yaml")
    choices = Choices(strategy, settings)
    with pytest.raises(InputError, match=says) as refused:
        make_plan(spec, document, choices, profiles=tmp_path, cores=1, clock=SystemClock())
    assert refused.value.field == "late_binding"


def test_what_is_expected_is_the_mean_and_what_is_promised_leaves_room(tmp_path: Path) -> None:
    means, promised = planned(tmp_path, "igniter"), planned(tmp_path, "joint")
    for plan, least, most in ((means, 1.0, 1.0), (promised, 1.001, 2.0)):
        expected_ms = mean_execution_ms(plan, tmp_path)
        for _, partition, placement in plan.placements():
            told = placement.predicted.execution_ms
            assert told is not None
            assert least - 1e-6 <= told / expected_ms[partition.id, placement.model] <= most + 1e-6


def on_my_gpu(directory: Path, latency_model: str, colocation: tuple[ColocationPoint, ...]) -> Planned:
    """A plan for two workloads on a GPU of no catalogue."""
    points = tuple(
        Measurement(percent, batch, (2.0 + batch) * 100.0 / percent)
        for percent in (10.0, 50.0, 100.0)
        for batch in (1, 2, 4)
    )
    profile = Profile("mine", "mygpu", ShareKind.MPS_PERCENT, Environment(), points, colocation, max_batch=4)
    write_profile(directory, profile)
    (directory / "spec.yaml").write_text(
        "schema_version: 1\ngpus: [{type: mygpu}]\nworkloads:\n"
        "  - {name: W, model: mine, slo_ms: 100, rate_rps: 40, isolated: true, shadow: {policy: none}}\n"
        "  - {name: V, model: mine, slo_ms: 100, rate_rps: 40, isolated: true, shadow: {policy: none}}\n"
    )
    spec, document = read_spec(directory / "spec.yaml")
    choices = Choices("igniter", PlanSettings(latency=latency_model))
    return make_plan(spec, document, choices, profiles=directory, cores=1, clock=SystemClock())


def test_a_plan_that_takes_neighbours_for_free_says_so(tmp_path: Path) -> None:
    pair = (ColocationPoint(50.0, 4, (Neighbour("mine", 50.0, 4),), 15.0),)
    assert blind_types(on_my_gpu(tmp_path, "igniter", ())) == ("mygpu",)
    assert blind_types(on_my_gpu(tmp_path, "igniter", pair)) == ("mygpu",)
    assert blind_types(on_my_gpu(tmp_path, "igniter-refit", pair)) == ()
    assert blind_types(on_my_gpu(tmp_path, "ours", pair)) == ()


def on_cores(*cores: int) -> Plan:
    gpus = tuple(PlannedGpu(f"cpu-{i}", "cpu", (build.partition(f"p{i}"),)) for i in cores)
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

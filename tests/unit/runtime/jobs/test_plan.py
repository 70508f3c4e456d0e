from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.device import ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.profile import ColocationPoint, Environment, Measurement, Neighbour, Profile
from controlplane.domain.settings import PlanSettings
from controlplane.files.measurements.profiles import write_profile
from controlplane.files.plans import read_spec
from controlplane.runtime import SystemClock
from controlplane.runtime.jobs.plan import Choices, Planned, blind_types, make_plan, mean_execution_ms

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

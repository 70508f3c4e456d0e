"""Whether a fleet follows its load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.serving import FollowLoad, Serving
from controlplane.files.documents import parsed_yaml
from controlplane.files.fleets import FleetFiles
from controlplane.files.following import Following
from controlplane.runtime.fleet.preflight import FollowOptions, checked_follow, keep_follow

SPEC = """
schema_version: 1
gpus: [{type: cpu}]
workloads: [{name: W, model: m, slo_ms: 100, rate_rps: 10}]
"""


@pytest.fixture
def plan() -> Plan:
    sha256 = parsed_yaml("spec.yaml", SPEC).sha256
    return Plan("joint", Rule.P99, "ours", (), spec_sha256=sha256, spec=SPEC)


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    return FleetFiles(tmp_path / "state", "f")


def test_a_fleet_follows_only_where_that_is_asked_for(files: FleetFiles, plan: Plan) -> None:
    assert checked_follow(files, plan, FollowOptions(), print) == Following()
    asked = replace(plan, serve=Serving(follow_load=FollowLoad(30.0)))
    assert checked_follow(files, asked, FollowOptions(), print) == Following(follow=True, dwell_s=30.0)


def test_what_was_asked_for_once_stays_without_a_section(
    files: FleetFiles, plan: Plan, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles"
    (profiles / "t4").mkdir(parents=True)
    for file in ("t4/m.json", "t4.json", "calibration.json"):
        (profiles / file).write_text("{}")
    asked = checked_follow(files, plan, FollowOptions(True, 30.0, True), print)
    keep_follow(files, plan, asked, profiles)
    assert checked_follow(files, plan, FollowOptions(), print) == Following(follow=True, dwell_s=30.0)
    kept = files.following.profiles
    assert {str(path.relative_to(kept)) for path in kept.rglob("*.json")} == {
        "t4/m.json",
        "t4.json",
        "calibration.json",
    }
    assert not checked_follow(files, replace(plan, serve=Serving()), FollowOptions(), print).follow


def test_a_plan_without_its_spec_is_not_followed_and_that_is_said(
    files: FleetFiles, plan: Plan, tmp_path: Path
) -> None:
    keep_follow(files, plan, Following(follow=True), tmp_path)
    other, told = replace(plan, spec_sha256="0" * 64, spec=None), list[str]()
    checked_follow(files, other, FollowOptions(), told.append)
    assert [line.partition(":")[0] for line in told] == ["warning"]
    with pytest.raises(InputError, match="--follow-load"):
        checked_follow(files, other, FollowOptions(follow=True), print)
    with pytest.raises(InputError, match="is not the one that the plan was made from"):
        checked_follow(files, replace(other, spec=SPEC), FollowOptions(), print)


def test_a_file_of_another_version_is_refused_with_its_line(files: FleetFiles) -> None:
    files.directory.mkdir(parents=True)
    (files.directory / "following").mkdir()
    (files.directory / "following" / "following.json").write_text('{\n "schema_version": 2\n}')
    with pytest.raises(InputError, match=r"following\.json:2"):
        files.following.settings()

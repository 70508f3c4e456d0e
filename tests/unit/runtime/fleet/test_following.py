"""Whether a fleet follows its load."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.serving import FollowLoad, Serving
from controlplane.files.documents import parsed_yaml
from controlplane.files.fleets import FleetFiles
from controlplane.files.following import Following
from controlplane.files.measurements.profiles import NAME as CALIBRATION
from controlplane.runtime.fleet.preflight import checked_follow, keep_follow

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


def test_a_fleet_follows_only_where_its_section_says_so(files: FleetFiles, plan: Plan) -> None:
    assert checked_follow(files, plan, print, all_cores=False) == Following()
    asked = replace(plan, serve=Serving(follow_load=FollowLoad(30.0)))
    wanted = Following(follow=True, dwell_s=30.0, all_cores=True)
    assert checked_follow(files, asked, print, all_cores=True) == wanted


def test_an_apply_that_changes_nothing_leaves_what_was_learned_and_newer_profiles_replace_it(
    files: FleetFiles, plan: Plan, tmp_path: Path
) -> None:
    profiles, kept = tmp_path / "profiles", files.following.profiles
    (profiles / "t4").mkdir(parents=True)
    measured, learned = profiles / "t4" / "m.json", kept / CALIBRATION
    for file in (measured, profiles / "t4.json"):
        file.write_text("{}")
    keep_follow(files, plan, Following(), profiles)
    assert {str(path.relative_to(kept)) for path in kept.rglob("*.json")} == {"t4/m.json", "t4.json"}
    learned.write_text("learned")
    keep_follow(files, plan, Following(follow=True), profiles)
    assert learned.read_text() == "learned"
    assert files.following.settings().follow
    measured.write_text("{ }")
    os.utime(measured, (time.time() + 10, time.time() + 10))
    keep_follow(files, plan, Following(), profiles)
    assert not learned.exists()
    assert (kept / "t4" / "m.json").read_text() == "{ }"
    measured.unlink()
    keep_follow(files, plan, Following(), profiles)
    assert not (kept / "t4" / "m.json").exists()


def test_with_a_plan_of_an_earlier_version_a_fleet_stops_following_and_that_is_said(
    files: FleetFiles, plan: Plan, tmp_path: Path
) -> None:
    keep_follow(files, plan, Following(follow=True), tmp_path)
    other, told = replace(plan, spec_sha256="0" * 64, spec=None), list[str]()
    assert checked_follow(files, other, told.append, all_cores=False).follow
    assert [line.partition(":")[0] for line in told] == ["warning"]
    with pytest.raises(InputError, match="is not the one that the plan was made from"):
        checked_follow(files, replace(other, spec=SPEC), print, all_cores=False)


def test_a_plan_without_its_spec_cannot_follow_otherwise_than_its_fleet_does(
    files: FleetFiles, plan: Plan, tmp_path: Path
) -> None:
    bare = replace(plan, spec_sha256="0" * 64, spec=None)
    asked = replace(bare, serve=Serving(follow_load=FollowLoad()))
    with pytest.raises(InputError, match=r"serve\.follow_load: needs a plan with its spec"):
        checked_follow(files, asked, print, all_cores=False)
    keep_follow(files, plan, Following(follow=True), tmp_path)
    assert checked_follow(files, asked, print, all_cores=False).follow
    ended = replace(bare, serve=Serving())
    assert not checked_follow(files, ended, print, all_cores=False).follow


def test_a_file_of_another_version_is_refused_with_its_line(files: FleetFiles) -> None:
    files.directory.mkdir(parents=True)
    (files.directory / "following").mkdir()
    (files.directory / "following" / "following.json").write_text('{\n "schema_version": 2\n}')
    with pytest.raises(InputError, match=r"following\.json:2"):
        files.following.settings()

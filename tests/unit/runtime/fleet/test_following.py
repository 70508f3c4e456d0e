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


def test_a_fleet_keeps_its_plans_spec_and_follows_only_where_its_section_says_so(
    files: FleetFiles, plan: Plan, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles"
    (profiles / "cpu").mkdir(parents=True)
    (profiles / "cpu" / "m.json").write_text("{}")
    asked = replace(plan, serve=Serving(follow_load=FollowLoad(30.0)))
    following = checked_follow(files, asked, print, all_cores=True)
    assert following.following == Following(plan.spec_sha256 or "", follow=True, dwell_s=30.0, all_cores=True)
    keep_follow(files, following, profiles)
    assert files.following.spec()[1].sha256 == plan.spec_sha256
    assert (files.following.profiles / "cpu" / "m.json").exists()
    after = checked_follow(files, plan, print, all_cores=False).following
    assert after == Following(plan.spec_sha256 or "")


def test_an_apply_that_changes_nothing_leaves_what_was_learned_and_newer_profiles_replace_it(
    files: FleetFiles, plan: Plan, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles"
    measured, learned = profiles / "cpu" / "m.json", files.following.profiles / CALIBRATION
    measured.parent.mkdir(parents=True)
    measured.write_text("{}")
    follow = checked_follow(files, plan, print, all_cores=False)
    keep_follow(files, follow, profiles)
    learned.write_text("learned")
    keep_follow(files, follow, profiles)
    assert learned.read_text() == "learned"
    measured.write_text("{ }")
    os.utime(measured, (time.time() + 10, time.time() + 10))
    keep_follow(files, follow, profiles)
    assert not learned.exists()
    assert (files.following.profiles / "cpu" / "m.json").read_text() == "{ }"
    measured.unlink()
    keep_follow(files, follow, profiles)
    assert not (files.following.profiles / "cpu" / "m.json").exists()


def test_with_a_plan_of_an_earlier_version_a_fleet_keeps_its_spec(
    files: FleetFiles, plan: Plan, tmp_path: Path
) -> None:
    asked = replace(plan, serve=Serving(follow_load=FollowLoad(30.0)))
    keep_follow(files, checked_follow(files, asked, print, all_cores=True), tmp_path)
    again = checked_follow(files, replace(asked, spec=None), print, all_cores=False).following
    assert again == Following(plan.spec_sha256 or "", follow=True, dwell_s=30.0, all_cores=True)
    other, told = replace(asked, spec_sha256="0" * 64, spec=None), list[str]()
    assert checked_follow(files, other, told.append, all_cores=False).following == again
    assert [line.partition(":")[0] for line in told] == ["warning"]
    with pytest.raises(InputError, match="is not the one that the plan was made from"):
        checked_follow(files, replace(other, spec=SPEC), print, all_cores=False)


def test_a_file_of_another_version_is_refused_with_its_line(files: FleetFiles) -> None:
    files.directory.mkdir(parents=True)
    (files.directory / "following").mkdir()
    (files.directory / "following" / "following.json").write_text('{\n "schema_version": 2\n}')
    with pytest.raises(InputError, match=r"following\.json:2"):
        files.following.settings()

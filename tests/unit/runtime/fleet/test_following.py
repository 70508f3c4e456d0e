"""Whether a fleet follows its load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.files.fleets import FleetFiles
from controlplane.files.following import Following
from controlplane.files.specs import read_spec
from controlplane.runtime.fleet.preflight import FollowOptions, checked_follow, keep_follow

pytestmark = pytest.mark.unit

SPEC = """
schema_version: 1
gpus: [{type: cpu}]
workloads: [{name: W, model: m, slo_ms: 100, rate_rps: 10}]
"""
NOTHING_ASKED = FollowOptions(None, None, None, False)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def plan(spec: Path) -> Plan:
    return Plan("joint", Rule.P99, "ours", (), spec_sha256=read_spec(spec)[1].sha256)


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    return FleetFiles(tmp_path / "state", "f")


def test_a_fleet_follows_only_where_that_is_asked_for(files: FleetFiles, plan: Plan, spec: Path) -> None:
    assert checked_follow(files, plan, NOTHING_ASKED, print).following is None
    kept = checked_follow(files, plan, replace(NOTHING_ASKED, spec=spec), print).following
    assert kept is not None
    assert not kept.follow


def test_what_was_asked_for_once_stays(files: FleetFiles, plan: Plan, spec: Path, tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    (profiles / "cpu").mkdir(parents=True)
    (profiles / "cpu" / "m.json").write_text("{}")
    keep_follow(files, checked_follow(files, plan, FollowOptions(spec, True, 30.0, True), print), profiles)
    again = checked_follow(files, plan, NOTHING_ASKED, print).following
    assert again == Following(plan.spec_sha256 or "", follow=True, dwell_s=30.0, all_cores=True)
    assert files.following.spec()[1].sha256 == plan.spec_sha256
    assert (files.following.profiles / "cpu" / "m.json").exists()


def test_another_specs_plan_is_not_followed_and_that_is_said(
    files: FleetFiles, plan: Plan, spec: Path, tmp_path: Path
) -> None:
    keep_follow(files, checked_follow(files, plan, FollowOptions(spec, True, None, False), print), tmp_path)
    other, told = replace(plan, spec_sha256="0" * 64), list[str]()
    checked_follow(files, other, NOTHING_ASKED, told.append)
    assert told == ["warning: the fleet stops following its load: it keeps another spec (--spec SPEC)"]
    with pytest.raises(InputError, match="--follow-load: needs the spec"):
        checked_follow(files, other, replace(NOTHING_ASKED, follow=True), print)
    with pytest.raises(InputError, match=r"--spec: .* is not the spec that the plan was made from"):
        checked_follow(files, other, replace(NOTHING_ASKED, spec=spec), print)


def test_a_file_of_another_version_is_refused_with_its_line(files: FleetFiles) -> None:
    files.directory.mkdir(parents=True)
    (files.directory / "following").mkdir()
    (files.directory / "following" / "following.json").write_text('{\n "schema_version": 2\n}')
    with pytest.raises(InputError, match=r"following\.json:2"):
        files.following.settings()

"""What an apply refuses and warns of before and after it changes anything."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import build
import pytest
from build import spec
from http_server import Quiet, serving

from controlplane.domain import triton_releases
from controlplane.domain.device import HeldDevice, ShareKind
from controlplane.domain.errors import InputError, MissingTool, NotNow
from controlplane.domain.fleet import LIVE_BATCHES, Role, Server
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.domain.serving import FollowLoad, Serving
from controlplane.files.documents import parsed_yaml
from controlplane.files.fleets import FleetFiles, FleetSettings
from controlplane.files.following import Following
from controlplane.files.measurements.profiles import NAME as CALIBRATION
from controlplane.files.measurements.profiles import write_profile
from controlplane.files.plans import read_plan, write_plan
from controlplane.ports import Launcher
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet import preflight
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import History
from controlplane.runtime.fleet.preflight import (
    check_promises,
    check_shares,
    checked_follow,
    keep_follow,
    refuse_namesake,
    shares_of_others,
)
from controlplane.runtime.jobs.doctor import examine
from launchers.triton import program

GPU = "GPU-1"


def server(fleet: str, partition: str, percent: float, *, log: str | None = None, **more: Any) -> Server:
    made = spec(partition, fleet=fleet, percent=percent, revision=f"r{percent:g}", **more)
    return build.server(made, log_path=log)


def plan(percent: float, device: str = "cpu") -> Plan:
    return build.plan(build.partition("p", percent, "w", slo_ms=60.0), gpu=f"{device}-0")


def checked(tmp_path: Path, wanted: Plan, servers: list[Server], *, accepted: bool = False) -> list[str]:
    path, said = tmp_path / "plan.json", list[str]()
    write_plan(path, wanted)
    parsed, document = read_plan(path)
    devices = {"cpu-0": "cpu-0", "v100-0": GPU}
    check_shares(parsed, document, devices, shares_of_others(servers, "mine"), said.append, accepted=accepted)
    return said


def test_two_fleets_may_not_take_more_than_a_core(tmp_path: Path) -> None:
    servers = [server("theirs", "a", 60), server("theirs", "b", 30)]
    with pytest.raises(InputError, match=r"65 % of cpu-0 .* fleet 'theirs' has 90 % of it") as refused:
        checked(tmp_path, plan(65), servers)
    assert (refused.value.file, refused.value.field) == (str(tmp_path / "plan.json"), "gpus[0].id")
    assert refused.value.line is not None
    (said,) = checked(tmp_path, plan(65), servers, accepted=True)
    assert said.startswith("warning: 65 % of cpu-0")
    assert checked(tmp_path, plan(10), servers) == []


def test_a_gpu_is_never_overcommitted(tmp_path: Path) -> None:
    servers = [server("theirs", "a", 60, device=GPU)]
    assert checked(tmp_path, plan(40, "v100"), servers) == []
    with pytest.raises(InputError, match="GPU-1"):
        checked(tmp_path, plan(50, "v100"), servers, accepted=True)


def test_what_stands_by_is_measured_or_is_our_own_does_not_count() -> None:
    servers = [
        server("theirs", "a", 60),
        server("theirs", "a", 80, role=Role.SHADOW),
        server("theirs", "moved", 30, role=Role.SHADOW, device="cpu-1"),
        server("profile", "p", 100, role=Role.PROFILE),
        server("mine", "a", 50),
    ]
    assert shares_of_others(servers, "mine") == {"cpu-0": {"theirs": 60.0}, "cpu-1": {"theirs": 30.0}}


def test_a_shadow_that_several_partitions_share_does_not_count() -> None:
    servers = [
        server("theirs", "a", 30, models=("a",)),
        server("theirs", "b", 20, models=("b",)),
        server("theirs", "standby", 40, role=Role.SHARED, models=("a", "b")),
    ]
    assert shares_of_others(servers, "mine") == {"cpu-0": {"theirs": 50.0}}


def test_a_partition_that_serves_what_a_smaller_one_serves_too_counts() -> None:
    servers = [
        server("theirs", "head", 30, models=("a",)),
        server("theirs", "main", 80, models=("a", "b")),
    ]
    assert shares_of_others(servers, "mine") == {"cpu-0": {"theirs": 110.0}}


def test_a_fleet_of_the_same_name_in_another_state_folder_is_not_taken_over(tmp_path: Path) -> None:
    theirs = FleetFiles(tmp_path / "theirs" / "trisect", "f")
    servers = [server("f", "a", 20, log=str(theirs.directory / "logs" / "a.log"))]
    mine = FleetFiles(tmp_path / "mine" / "trisect", "f")
    refuse_namesake(servers, mine)  # the other folder is gone: it is this fleet, moved
    theirs.write_settings(FleetSettings("process", "/m", "/o", {}))
    with pytest.raises(InputError, match=f"XDG_STATE_HOME to {tmp_path / 'theirs'}"):
        refuse_namesake(servers, mine)
    refuse_namesake(servers, theirs)


@pytest.mark.parametrize(
    ("before", "here", "switch", "chosen"),
    [
        (None, "/new.so", "", "/new.so"),
        (None, None, "", None),
        ("/old.so", "/new.so", "", "/new.so"),
        ("/old.so", None, "off", None),
        ("", "/new.so", "", None),
    ],
)
def test_how_a_fleet_began_decides_whether_its_batches_change(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: str | None,
    here: str | None,
    switch: str,
    chosen: str | None,
) -> None:
    monkeypatch.setenv(LIVE_BATCHES, switch)
    assert settings_here(tmp_path, before, here).batch_library == chosen


def test_a_fleet_of_changing_batches_is_not_made_one_of_fixed_ones_by_an_installation_without_the_library(
    tmp_path: Path,
) -> None:
    with pytest.raises(MissingTool, match=f"{LIVE_BATCHES}=off"):
        settings_here(tmp_path, "/old.so", None)


@pytest.mark.parametrize(
    ("held", "error", "says"),
    [
        ((), InputError, "cpu"),
        ((HeldDevice("cpu", "a/cpu-0", "a", lost=True),), NotNow, "cpu.*not ready"),
        ((HeldDevice("v100", "a/GPU-1", "a", lost=True),), InputError, "cpu"),
    ],
)
def test_a_device_of_a_node_that_is_not_ready_is_not_said_to_lack(
    tmp_path: Path, held: tuple[HeldDevice, ...], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        settings_here(tmp_path, None, None, held)


def test_a_plan_that_runs_keeps_its_devices_though_their_node_is_lost(tmp_path: Path) -> None:
    held = (HeldDevice("cpu", "a/cpu-0", "a", lost=True),)
    found = settings_here(tmp_path, None, None, held, known={"cpu-0": "a/cpu-0"}, runs=True)
    assert found.devices == {"cpu-0": "a/cpu-0"}


def settings_here(
    tmp_path: Path,
    before: str | None,
    here: str | None,
    held: tuple[HeldDevice, ...] = (HeldDevice("cpu", "cpu-0"),),
    **more: Any,
) -> FleetSettings:
    """The settings of an apply; `before`: the library of the one before, empty for fixed batches."""
    files = FleetFiles(tmp_path, "mine")
    if before is not None:
        files.make()
        files.write_settings(
            FleetSettings("process", "/m", "/o", {"cpu-0": "cpu-0"}, batch_library=before or None)
        )
    launcher = SimpleNamespace(name="process", batch_library=lambda: here, inventory=lambda: held)
    fleet = cast(Any, SimpleNamespace(files=files, launcher=launcher))
    return preflight.settings(
        plan(10), fleet, repository=tmp_path, output=tmp_path, section=Serving(), **more
    )


@pytest.mark.parametrize("points", [(), (Measurement(20.0, 1, 300.0), Measurement(100.0, 1, 60.0))])
def test_the_plan_that_is_applied_is_applied_again_whatever_its_profiles_say_now(
    tmp_path: Path, points: tuple[Measurement, ...]
) -> None:
    path, profiles, files = tmp_path / "plan.json", tmp_path / "profiles", FleetFiles(tmp_path, "mine")
    write_plan(path, plan(50))
    applied, document = read_plan(path)
    if points:
        measured = Profile("m", "cpu", ShareKind.CPU_QUOTA, Environment(), points)
        write_profile(profiles, measured)
    said: list[str] = []
    with pytest.raises(InputError):
        check_promises(applied, document, profiles, files, said.append)
    files.make()
    files.write_plans(plan(60), applied)
    with pytest.raises(InputError):
        check_promises(applied, document, profiles, files, said.append)
    files.write_plans(applied, None)
    check_promises(applied, document, profiles, files, said.append)
    assert [line.partition(":")[0] for line in said] == ["warning"]


@pytest.fixture
def triton(request: pytest.FixtureRequest) -> Iterator[Server]:
    class Handler(Quiet):
        def do_GET(self) -> None:
            self.answer(request.param)

    with serving(Handler) as port:
        yield build.server(build.spec(), port=port)


class OneServer:
    name = "process"

    def __init__(self, server: Server) -> None:
        self._server = server

    def capabilities(self) -> tuple[()]:
        return ()

    def enforcement(self) -> str:
        return "a test"

    def servers(self, _: str) -> tuple[Server, ...]:
        return (self._server,)


def fleet_of(directory: Path, said: list[str]) -> Fleet:
    nothing = cast(Any, None)
    return Fleet(FleetFiles(directory, "f"), nothing, nothing, SystemClock(), said.append)


@pytest.mark.parametrize("triton", [{"name": "x", "version": "2.51.0"}], indirect=True)
def test_apply_names_the_missing_fixes_once_and_doctor_always(triton: Server, tmp_path: Path) -> None:
    said: list[str] = []
    fleet = fleet_of(tmp_path, said)
    preflight.warn_of_old_servers([triton], fleet)
    preflight.warn_of_old_servers([triton, triton], fleet)
    assert said == [
        "warning: 1 server runs Triton 2.51.0, which lacks the fixes for CVE-2025-23310, CVE-2025-23311, "
        "CVE-2025-23319 and 12 more: use 2.71.0 (image 26.07) or newer",
        "warning: Triton 2.51.0 lacks fixes of vulnerabilities (`ctl doctor`)",
    ]
    (event,) = History(fleet.files.history).events()
    assert (event.level, event.kind, event.subject) == ("warning", "triton", "f")
    found = {c.name: c for c in examine((cast(Launcher, OneServer(triton)),), ("default",))}
    assert not found["fleet default"].available
    assert "2.51.0" in found["fleet default"].detail


@pytest.mark.parametrize(
    "triton",
    [{"version": "2.71.0"}, {"version": "2.72.0dev"}, {"version": 3}, {"version": "none"}, [], {}],
    indirect=True,
)
def test_a_newer_version_and_an_unknown_one_raise_no_warning(triton: Server, tmp_path: Path) -> None:
    said: list[str] = []
    preflight.warn_of_old_servers([triton], fleet_of(tmp_path, said))
    assert said == []


def test_the_oldest_of_several_is_named() -> None:
    told = triton_releases.warning(["2.71.0", "2.60.0", "2.60.0", "2.61.0"])
    assert told is not None
    assert told.startswith("2 servers run Triton 2.60.0, which lacks the fixes for CVE-2025-33202")


def test_releases_are_in_order_and_the_default_image_is_the_newest() -> None:
    versions = [release.version for release in triton_releases.RELEASES]
    assert versions == sorted(versions)
    assert f"nvcr.io/nvidia/tritonserver:{triton_releases.NEWEST.image}-py3" == program.VENDOR_IMAGE
    assert triton_releases.RELEASES[0].fixed == (
        *("CVE-2025-23310", "CVE-2025-23311", "CVE-2025-23319", "CVE-2025-23320", "CVE-2025-23334"),
    )


SPEC = """
schema_version: 1
gpus: [{type: cpu}]
workloads: [{name: W, model: m, slo_ms: 100, rate_rps: 10}]
"""


@pytest.fixture
def followed() -> Plan:
    sha256 = parsed_yaml("spec.yaml", SPEC).sha256
    return Plan("joint", Rule.P99, "ours", (), spec_sha256=sha256, spec=SPEC)


@pytest.fixture
def files(tmp_path: Path) -> FleetFiles:
    return FleetFiles(tmp_path / "state", "f")


def test_a_fleet_follows_only_where_its_section_says_so(files: FleetFiles, followed: Plan) -> None:
    assert checked_follow(files, followed, print, all_cores=False) == Following()
    asked = replace(followed, serve=Serving(follow_load=FollowLoad(30.0)))
    wanted = Following(follow=True, dwell_s=30.0, all_cores=True)
    assert checked_follow(files, asked, print, all_cores=True) == wanted


def test_an_apply_that_changes_nothing_leaves_what_was_learned_and_newer_profiles_replace_it(
    files: FleetFiles, followed: Plan, tmp_path: Path
) -> None:
    profiles, kept = tmp_path / "profiles", files.following.profiles
    (profiles / "t4").mkdir(parents=True)
    measured, learned = profiles / "t4" / "m.json", kept / CALIBRATION
    for file in (measured, profiles / "t4.json"):
        file.write_text("{}")
    keep_follow(files, followed, Following(), profiles)
    assert {str(path.relative_to(kept)) for path in kept.rglob("*.json")} == {"t4/m.json", "t4.json"}
    learned.write_text("learned")
    keep_follow(files, followed, Following(follow=True), profiles)
    assert learned.read_text() == "learned"
    assert files.following.settings().follow
    measured.write_text("{ }")
    os.utime(measured, (time.time() + 10, time.time() + 10))
    keep_follow(files, followed, Following(), profiles)
    assert not learned.exists()
    assert (kept / "t4" / "m.json").read_text() == "{ }"
    measured.unlink()
    keep_follow(files, followed, Following(), profiles)
    assert not (kept / "t4" / "m.json").exists()


def test_with_a_plan_of_an_earlier_version_a_fleet_stops_following_and_that_is_said(
    files: FleetFiles, followed: Plan, tmp_path: Path
) -> None:
    keep_follow(files, followed, Following(follow=True), tmp_path)
    other, told = replace(followed, spec_sha256="0" * 64, spec=None), list[str]()
    assert checked_follow(files, other, told.append, all_cores=False).follow
    assert [line.partition(":")[0] for line in told] == ["warning"]
    with pytest.raises(InputError, match="is not the one that the plan was made from"):
        checked_follow(files, replace(other, spec=SPEC), print, all_cores=False)


def test_a_plan_without_its_spec_cannot_follow_otherwise_than_its_fleet_does(
    files: FleetFiles, followed: Plan, tmp_path: Path
) -> None:
    bare = replace(followed, spec_sha256="0" * 64, spec=None)
    asked = replace(bare, serve=Serving(follow_load=FollowLoad()))
    with pytest.raises(InputError, match=r"serve\.follow_load: needs a plan with its spec"):
        checked_follow(files, asked, print, all_cores=False)
    keep_follow(files, followed, Following(follow=True), tmp_path)
    assert checked_follow(files, asked, print, all_cores=False).follow
    ended = replace(bare, serve=Serving())
    assert not checked_follow(files, ended, print, all_cores=False).follow


def test_a_file_of_another_version_is_refused_with_its_line(files: FleetFiles) -> None:
    files.directory.mkdir(parents=True)
    (files.directory / "following").mkdir()
    (files.directory / "following" / "following.json").write_text('{\n "schema_version": 2\n}')
    with pytest.raises(InputError, match=r"following\.json:2"):
        files.following.settings()

"""How a fleet is served after an apply and a rollback: its plan's section, and consent to looser access."""

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from build import SPEC
from fake_host import GatewayInMemory
from typer.testing import CliRunner

from controlplane.cli import cluster, wiring
from controlplane.cli.fleet.targets import Wish, say_or_refuse, section_of, target
from controlplane.cli.main import app, run
from controlplane.cli.options import Allowance
from controlplane.control.converge.desired import Desired
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.serving import (
    Access,
    FollowLoad,
    LateBinding,
    LauncherName,
    Listen,
    Serving,
    Tls,
    differences,
)
from controlplane.files.documents import parsed_yaml
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
from controlplane.files.following import Following
from controlplane.files.pinned import Applied
from controlplane.files.plans import plan_hash, read_plan, write_plan
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet import controller_process
from controlplane.runtime.fleet.fleet import Fleet

PLAN = Plan("joint", Rule.P99, "ours", (), spec_sha256=parsed_yaml("s", SPEC).sha256, spec=SPEC)
GUARDED = Serving(access=Access(tokens=True, audit=True), load_timeout_s=900.0)
OPEN = Serving(follow_load=FollowLoad(30.0))


@pytest.fixture(autouse=True)
def files(directory: Path) -> FleetFiles:
    """A guarded fleet."""
    kept = FleetFiles(state_root(), "default")
    settings = FleetSettings("process", "/m", str(directory / "out"), {}, endpoints=GUARDED.gateway)
    kept.write_settings(replace(settings, load_timeout_s=GUARDED.load_timeout_s))
    return kept


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Serving(access=Access(tokens=True)), Serving()),
        (Serving(access=Access(audit=True)), Serving()),
        (Serving(), Serving(access=Access(plain_text=True))),
        (Serving(tls=Tls("c", "k")), Serving()),
        (Serving(tls=Tls("c", "k", "ca")), Serving(tls=Tls("c", "k"))),
        (Serving(), Serving(listen=Listen("0.0.0.0"))),
    ],
)
def test_looser_access_is_refused_without_consent_and_the_way_back_is_not(
    before: Serving, after: Serving
) -> None:
    with pytest.raises(InputError, match=r"^--yes: "):
        say_or_refuse(differences(before, after), accepted=False)
    say_or_refuse(differences(after, before), accepted=False)


def target_of(section: Serving, *given: str) -> Any:
    """Where a new fleet's plan with this section goes."""
    write_plan(Path("plan.json"), replace(PLAN, serve=section))
    allowed, here = frozenset({Allowance.VIOLATIONS}), Path()
    return target(Wish(Path("plan.json"), "new", here, here, here, given, allowed))


def test_late_binding_is_for_the_one_gateway_of_a_host() -> None:
    with pytest.raises(InputError, match=r"^serve\.late_binding: "):
        target_of(Serving(late_binding=LateBinding()), "serve.launcher=kubernetes")


def test_a_plan_of_an_earlier_version_leaves_how_its_fleet_is_served(
    files: FleetFiles, tmp_path: Path
) -> None:
    files.following.write(Following(follow=True, dwell_s=40.0))
    found = section_of(PLAN, files, ["serve.compress=true"])
    assert (found.access, found.load_timeout_s, found.compress) == (GUARDED.access, 900.0, True)
    assert found.follow_load == FollowLoad(40.0)
    # A plan of a spec without a section has the defaults.
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert run(["plan", "spec.yaml", "-o", "plan.json"]) == 0
    assert section_of(read_plan(Path("plan.json"))[0], files, []) == Serving()


class Empty(Fleet):
    """A fleet of no servers."""

    def planned(
        self, plan: Plan, settings: FleetSettings, applied: Applied | None = None, *, write: bool = True
    ) -> tuple[Applied, Desired]:
        return Applied(plan_hash(plan), {}), Desired({}, {})


@pytest.fixture
def fleet(files: FleetFiles, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The guarded fleet, which was an open one before that followed its load."""
    files.write_plans(replace(PLAN, serve=GUARDED), replace(PLAN, serve=OPEN))
    launcher = SimpleNamespace(name="process", servers=lambda fleet: (), sweep=lambda fleet: ())
    made = Empty(files, cast(Any, launcher), cast(Any, GatewayInMemory({})), SystemClock(), lambda line: None)
    Path("out", "default").mkdir(parents=True)
    monkeypatch.setattr(wiring, "existing_fleet", lambda name: (made, files.settings()))
    monkeypatch.setattr(controller_process, "left_running", contextlib.nullcontext)
    return made


def test_a_rollback_to_looser_access_needs_consent_and_shows_what_it_loosens(fleet: Fleet) -> None:
    before = fleet.files.settings()
    error = CliRunner().invoke(app, ["rollback"]).exception
    assert isinstance(error, InputError)
    assert error.field == "--yes"
    assert "access.tokens" in error.problem
    assert fleet.files.settings() == before
    told = CliRunner().invoke(app, ["rollback", "--yes"])
    assert told.exit_code == 0
    assert "serve: access.tokens True -> False" in told.stderr
    assert fleet.files.section() == replace(OPEN, launcher=LauncherName.PROCESS)
    assert fleet.files.following.settings() == Following(follow=True, dwell_s=30.0)


def test_a_rollback_to_a_section_alone_is_shown_and_asked_about(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    asked = list[str]()
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "n")
    assert run(["rollback"]) == 0
    assert "serve: access.tokens True -> False" in capsys.readouterr().out
    assert len(asked) == 1
    section = fleet.files.section()
    assert section is not None
    assert section.access == GUARDED.access


def test_a_plans_section_limits_the_starts_of_a_cluster(files: FleetFiles) -> None:
    launcher = SimpleNamespace(name="kubernetes", inventory=lambda: (), batch_library=lambda: None)
    host = SimpleNamespace(files=files, launcher=launcher)
    found = cluster._settings(host, Path("models"), replace(PLAN, serve=GUARDED), {}, False)
    assert (found.load_timeout_s, found.endpoints.host) == (900.0, "0.0.0.0")


def test_a_new_fleet_has_the_environments_launcher_and_its_controllers_the_sections_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRISECT_LAUNCHER", "kubernetes")
    monkeypatch.setattr(cluster, "fleet_of_controllers", lambda files, place: SimpleNamespace())
    assert target_of(Serving(), "serve.load_timeout_s=600").plan.serve == Serving(load_timeout_s=600.0)
    for key in ("serve.compress=true", "serve.late_binding={}"):
        with pytest.raises(InputError, match=f"^{key.partition('=')[0]}"):
            target_of(Serving(), key)

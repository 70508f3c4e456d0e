"""What a verb takes where nothing is told, and where nobody answers."""

import io
from pathlib import Path

import pytest
from build import SPEC
from told import Ctl
from typer.testing import CliRunner

from controlplane.cli import options, wiring
from controlplane.cli.main import app, main, run
from controlplane.cli.options import launcher_of_environment
from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import Cluster
from controlplane.domain.serving import LateBinding, LauncherName, Listen, Serving
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
from controlplane.files.plans import read_plan


def plan_file(folder: Path, text: str, *options: str) -> str:
    """The path of a plan that `ctl plan` made of a spec with this section."""
    (folder / "spec.yaml").write_text(SPEC + text)
    path = str(folder / "plan.json")
    assert run(["plan", str(folder / "spec.yaml"), "-o", path, *options]) == 0
    return path


def refused(*arguments: str) -> InputError:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, InputError)
    return error


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("serve.listen.grpc=8000", "serve.listen.grpc"),
        ("quantile=0.9", "quantile"),
        ("serve.context=here", "serve.context"),
    ],
)
def test_one_value_of_a_call_is_checked_as_the_section_is(directory: Path, given: str, field: str) -> None:
    plan = plan_file(directory, "")
    assert refused("apply", plan, "--set", given, "--allow", "violations").field == field
    if given != "serve.context=here":
        assert refused("diff", plan, "--set", given).field == field


def test_a_plan_has_the_section_as_its_command_line_changed_it(directory: Path) -> None:
    section = "serve: {listen: {http: 9000}, compress: true}\n"
    plan = plan_file(directory, section, "--set=serve.listen.http=9001", "--set=serve.late_binding={}")
    found = read_plan(Path(plan))[0].serve
    assert found == Serving(listen=Listen(http=9001), compress=True, late_binding=LateBinding())


def test_a_fleet_keeps_its_launcher_and_its_place_and_refuses_others(directory: Path) -> None:
    docker, process = LauncherName.DOCKER, LauncherName.PROCESS
    files = FleetFiles(state_root(), "shop")
    assert [wiring.chosen_launcher(files, one) for one in (None, docker)] == [None, docker]
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    assert [wiring.chosen_launcher(files, one) for one in (None, process)] == [process, process]
    with pytest.raises(InputError, match=r"serve\.launcher: fleet 'shop' runs with process: `ctl destroy`"):
        wiring.chosen_launcher(files, docker)
    with pytest.raises(InputError, match=r"serve\.namespace: fleet 'shop' runs in the default one"):
        wiring.chosen_cluster(files, Cluster(namespace="other"))


@pytest.mark.parametrize("verb", ["plan", "apply", "profile", "demo"])
def test_the_keys_that_may_be_set_are_listed_without_an_argument(verb: str, ctl: Ctl) -> None:
    known = [line.split()[0] for line in ctl(verb, "--set help").out.splitlines()]
    assert ("serve.listen.http" in known) == (verb != "profile")
    assert ("inss.policy" in known) == (verb == "plan")


@pytest.mark.parametrize(("answer", "meant"), [("y\n", True), ("Yes\n", True), ("\n", False), ("n\n", False)])
def test_an_answer_that_is_missing_names_the_way_out(
    answer: str, meant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert options.agreed("Go on?") is meant
    with pytest.raises(InputError, match="--yes"):
        options.agreed("Go on?")


@pytest.mark.parametrize(
    ("verb", "option", "path", "says"),
    [
        ("plan", "--output", "missing/plan.json", "there is no directory 'missing'; make it"),
        ("plan", "--output", ".", "'.' is a directory; name a file in it"),
        ("show", "--report", "missing/plan.html", "there is no directory 'missing'; make it"),
        ("show", "--report", "plan.pdf", "'plan.pdf' must end in .html"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(
    verb: str, option: str, path: str, says: str
) -> None:
    assert str(refused(verb, "no-such-file", option, path)).startswith(f"{option}: {says}")


@pytest.mark.parametrize("verb", [["destroy", "--yes"], ["destroy"], ["rollback", "--yes"], ["status"]])
def test_an_unknown_fleet_is_named_with_those_that_exist(verb: list[str]) -> None:
    FleetFiles(state_root(), "shop").write_settings(FleetSettings("process", "/m", "/o", {}))
    told = refused(*verb, "--fleet", "nope")
    assert str(told) == "--fleet: there is no fleet 'nope'; fleets that were applied: shop"
    assert not FleetFiles(state_root(), "nope").directory.exists()


def test_what_an_interrupted_apply_left_can_be_destroyed(ctl: Ctl) -> None:
    directory = FleetFiles(state_root(), "shop").directory
    directory.mkdir(parents=True)
    assert ctl("destroy --yes --fleet shop").out == "fleet shop: destroyed\n"
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--catalogue", "v100", "--seconds", "5"], "--seconds: needs --fleet"),
        (["--catalogue", "v100", "--calibrate"], "--calibrate: needs --fleet"),
        (["--fleet", "f", "--profile", "p.json"], "--profile: cannot be combined with --fleet"),
        ([], "give one of --catalogue DEVICE, --profile FILE and --fleet NAME"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(arguments: list[str], says: str) -> None:
    assert str(refused("validate", *arguments)) == says


@pytest.mark.parametrize("verb", [["status"], ["events"], ["destroy", "--yes"], ["rollback"]])
def test_a_state_directory_that_cannot_be_looked_into_is_told(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As root nothing is forbidden, but a name may still be too long.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("a" * 300)))
    monkeypatch.setattr("sys.argv", ["ctl", *verb])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EngineError.exit_code
    told = capsys.readouterr().err
    assert told.startswith(f"ctl: {tmp_path}")
    assert told.endswith("File name too long\n")


def test_a_destroyed_fleet_can_be_destroyed_again_and_its_events_are_named(ctl: Ctl) -> None:
    with pytest.raises(InputError, match=r"no fleet was applied$"):
        wiring.existing_fleet("shop")
    files = FleetFiles(state_root(), "shop")
    files.ended.parent.mkdir(parents=True)
    files.ended.touch()
    assert ctl("destroy --fleet shop").out.startswith("fleet shop: nothing is left of it")
    assert not files.directory.exists()
    with pytest.raises(InputError, match="`ctl events --fleet shop`"):
        wiring.existing_fleet("shop")


def test_the_command_line_overrides_the_environment(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    monkeypatch.setenv("TRISECT_FLEET", "of-environment")
    for given, arguments in (("of-environment", ""), ("given", "--fleet given")):
        assert f"there is no fleet {given!r}" in ctl("status", arguments, code=2).err


def test_the_launcher_of_a_new_fleet_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRISECT_LAUNCHER", raising=False)
    assert launcher_of_environment() is None
    monkeypatch.setenv("TRISECT_LAUNCHER", "process")
    assert launcher_of_environment() is LauncherName.PROCESS
    monkeypatch.setenv("TRISECT_LAUNCHER", "pods")
    with pytest.raises(InputError) as wrong:
        launcher_of_environment()
    assert wrong.value.field == "$TRISECT_LAUNCHER"

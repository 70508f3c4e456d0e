"""What a verb takes where nothing is told, and where nobody answers."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controlplane.cli import options, wiring
from controlplane.cli.main import app, main
from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.fleet import GatewayConfig
from controlplane.domain.serving import LauncherName
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root


def test_a_fleet_keeps_its_ports_unless_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert wiring.chosen_gateway("shop", {}) == GatewayConfig()
    assert wiring.chosen_gateway("shop", {"--http-port": 8700}) == GatewayConfig(http_port=8700)
    own = GatewayConfig("127.0.0.1", 8600, 8601, 8602)
    FleetFiles(state_root(), "shop").write_settings(FleetSettings("process", "/m", "/o", {}, own))
    assert wiring.chosen_gateway("shop", {}) == own
    assert wiring.chosen_gateway("shop", {"--grpc-port": 9}) == GatewayConfig("127.0.0.1", 8600, 9, 8602)
    assert wiring.chosen_gateway("other", {}) == GatewayConfig()


def test_a_fleet_keeps_whether_its_gateway_compresses_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert not wiring.chosen_gateway("shop", {}).compress_answers
    own = wiring.chosen_gateway("shop", {"--compress-answers": True})
    FleetFiles(state_root(), "shop").write_settings(FleetSettings("process", "/m", "/o", {}, own))
    assert wiring.chosen_gateway("shop", {}).compress_answers
    assert not wiring.chosen_gateway("shop", {"--compress-answers": False}).compress_answers


def test_a_fleet_keeps_its_traces_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    collector = "http://127.0.0.1:4318/v1/traces"
    assert wiring.chosen_gateway("shop", {}).trace_endpoint == ""
    own = wiring.chosen_gateway("shop", {"--trace-endpoint": collector})
    FleetFiles(state_root(), "shop").write_settings(FleetSettings("process", "/m", "/o", {}, own))
    assert wiring.chosen_gateway("shop", {}).trace_endpoint == collector
    assert wiring.chosen_gateway("shop", {"--trace-endpoint": ""}).trace_endpoint == ""


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://host:4317", "http://"])
def test_a_collector_is_named_by_its_url(url: str) -> None:
    said = CliRunner().invoke(app, ["apply", "plan.json", "--trace-endpoint", url])
    assert "--trace-endpoint" in str(said.exception)
    assert "/v1/traces" in str(said.exception)


def test_a_fleet_keeps_its_launcher_and_refuses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    docker, process = LauncherName.DOCKER, LauncherName.PROCESS
    assert [wiring.chosen_launcher("shop", told) for told in (None, docker)] == [None, docker]
    FleetFiles(state_root(), "shop").write_settings(FleetSettings("process", "/m", "/o", {}))
    assert [wiring.chosen_launcher("shop", told) for told in (None, process)] == [process, process]
    with pytest.raises(InputError, match="--launcher: fleet 'shop' runs with process: `ctl destroy`"):
        wiring.chosen_launcher("shop", docker)


def test_a_port_is_not_taken_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InputError, match="--grpc-port: 8001 is --http-port already"):
        wiring.chosen_gateway("shop", {"--http-port": 8001})
    with pytest.raises(InputError, match="--metrics-port: 7 is --grpc-port already"):
        wiring.chosen_gateway("shop", {"--grpc-port": 7, "--metrics-port": 7})


@pytest.mark.parametrize(("answer", "meant"), [("y\n", True), ("Yes\n", True), ("\n", False), ("n\n", False)])
def test_an_answer(answer: str, meant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert options.agreed("Go on?") is meant


def test_no_answer_is_an_input_error_that_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(InputError, match="--yes") as refused:
        options.agreed("Go on?")
    assert refused.value.exit_code == 2


def test_a_figure_is_of_a_known_format_or_refused_before_anything_is_computed(tmp_path: Path) -> None:
    assert options.drawable(None) is None
    assert options.drawable(tmp_path / "plan.svg") == tmp_path / "plan.svg"
    for name in ("plan.bmp", "plan", "directory.d/plan"):
        with pytest.raises(InputError, match=r"--plot: .* must end in \.svg, \.png or \.pdf"):
            options.drawable(Path(name))


@pytest.mark.parametrize(
    ("verb", "arguments", "says"),
    [
        (
            "plan",
            ["--output", "{}/missing/plan.json"],
            "--output: there is no directory '{0}/missing'; make it",
        ),
        ("plan", ["-o", "{}"], "--output: '{0}' is a directory; name a file in it"),
        ("show", ["--plot", "{}/missing/plan.svg"], "--plot: there is no directory '{0}/missing'; make it"),
        (
            "show",
            ["--report", "{}/missing/plan.html"],
            "--report: there is no directory '{0}/missing'; make it",
        ),
        ("show", ["--report", "{}/plan.pdf"], "--report: '{0}/plan.pdf' must end in .html"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(
    tmp_path: Path, verb: str, arguments: list[str], says: str
) -> None:
    told = CliRunner().invoke(app, [verb, "no-such-file", *(a.format(tmp_path) for a in arguments)])
    assert isinstance(told.exception, InputError)
    assert str(told.exception).startswith(says.format(tmp_path))


@pytest.mark.parametrize("verb", [["destroy", "--yes"], ["destroy"], ["rollback", "--yes"], ["status"]])
def test_an_unknown_fleet_is_named_with_those_that_exist(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    FleetFiles(state_root(), "shop").write_settings(FleetSettings("process", "/m", "/o", {}))
    told = CliRunner().invoke(app, [*verb, "--fleet", "nope"]).exception
    assert isinstance(told, InputError)
    assert told.exit_code == 2
    assert str(told) == "--fleet: there is no fleet 'nope'; fleets that were applied: shop"
    assert not FleetFiles(state_root(), "nope").directory.exists()


def test_what_an_interrupted_apply_left_can_be_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = FleetFiles(state_root(), "shop").directory
    directory.mkdir(parents=True)
    told = CliRunner().invoke(app, ["destroy", "--yes", "--fleet", "shop"])
    assert (told.exit_code, told.stdout) == (0, "fleet shop: destroyed\n")
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
    told = CliRunner().invoke(app, ["validate", *arguments]).exception
    assert isinstance(told, InputError)
    assert str(told) == says


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


def test_a_destroyed_fleet_can_be_destroyed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    files = FleetFiles(state_root(), "shop")
    files.ended.parent.mkdir(parents=True)
    files.ended.touch()
    told = CliRunner().invoke(app, ["destroy", "--fleet", "shop"])
    assert (told.exit_code, told.stdout.split(":")[:2]) == (0, ["fleet shop", " nothing is left of it"])
    assert not files.directory.exists()


def test_of_a_destroyed_fleet_the_events_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"no fleet was applied$"):
        wiring.existing_fleet("shop")
    ended = FleetFiles(state_root(), "shop").ended
    ended.parent.mkdir(parents=True)
    ended.touch()
    with pytest.raises(InputError, match="`ctl events --fleet shop`"):
        wiring.existing_fleet("shop")

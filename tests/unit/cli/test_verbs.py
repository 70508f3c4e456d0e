"""What every verb has in common: help, exit codes, a closed pipe, colours, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from build import SPEC, partition, plan

from controlplane.cli import main as cli
from controlplane.cli import wiring
from controlplane.cli.endings import EXIT_DEFECT, EXIT_PIPE
from controlplane.cli.main import run
from controlplane.cli.output import say
from controlplane.cli.verbs import VERBS
from controlplane.domain.errors import EngineError, GatewayError, InfeasibleError, InputError
from controlplane.domain.fleet import GatewayConfig
from controlplane.domain.observation import Event
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
from controlplane.files.plans import read_plan

TOKEN = [("token", verb) for verb in ("create", "list", "revoke")]
LIMIT = [("limit", verb) for verb in ("set", "list", "remove")]
EVERY = [(verb,) for verb in VERBS] + TOKEN + LIMIT
FAIL: dict[tuple[str, ...], list[str]] = {
    ("profile",): ["--repository", "missing"],
    ("validate",): [],
    ("train",): ["missing.yaml", "-o", "policy.npz"],
    ("plan",): ["missing.yaml"],
    ("simulate",): ["missing.json"],
    ("show",): ["missing.json"],
    ("compare",): ["missing.yaml"],
    ("render",): ["missing.json"],
    ("apply",): ["missing.json"],
    ("diff",): ["missing.json"],
    ("logs",): ["search"],
    ("status",): [],
    ("wait",): [],
    ("top",): [],
    ("events",): [],
    ("dashboard",): [],
    ("report",): [],
    ("redirect",): ["search"],
    ("rollback",): ["--yes"],
    ("destroy",): ["--yes"],
    ("controller",): ["--once"],
    ("demo",): ["--set", "serve.listen.http=0"],
    ("token", "create"): ["web", "--endpoint", "search"],
    ("token", "list"): [],
    ("token", "revoke"): ["web"],
    ("limit", "set"): ["search", "--max-rate", "5"],
    ("limit", "list"): [],
    ("limit", "remove"): ["search"],
}
"""Arguments with which a verb cannot succeed on a host without a fleet: exit code 2."""


def fleet() -> None:
    """Write the files of a fleet that was applied and whose servers are gone."""
    files = FleetFiles(state_root(), "default")
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    files.write_plans(plan(partition("P", 50.0, "search", model="resnet50", batch=8)), None)


@pytest.mark.parametrize("verb", EVERY, ids=" ".join)
def test_both_forms_of_help_are_the_same_and_describe_every_argument(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*verb, "-h"]) == 0
    short = capsys.readouterr().out
    assert run([*verb, "--help"]) == 0
    assert capsys.readouterr().out == short
    assert f"Usage: ctl {' '.join(verb)}" in short
    assert f"Example: ctl {' '.join(verb)}" in short
    for line in short.partition("Arguments:\n")[2].partition("\n\n")[0].splitlines():
        assert len(line.removesuffix("[required]").split()) > 3, f"not described: {line}"
    if verb not in (("token",), ("limit",)):
        assert "-q, --quiet" in short
        assert "-v, --verbose" in short


@pytest.mark.parametrize("verb", EVERY, ids=" ".join)
def test_an_unknown_option_is_exit_code_2_and_an_error_in_json(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*verb, "--no-such-option", "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (error["kind"], error["exit_code"]) == ("usage", 2)
    assert error["message"] in err


@pytest.mark.parametrize("verb", FAIL, ids=" ".join)
def test_wrong_input_is_exit_code_2_with_a_message_in_json_too_and_verbose_says_where_it_was_raised(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*verb, *FAIL[verb], "-v"]) == 2
    out, verbose = capsys.readouterr()
    assert out == ""
    if not verbose.startswith("Usage: "):  # a wrong command line may end before -v is read
        assert "Traceback" in verbose
        assert verbose.endswith(" s  exit code 2\n")
    assert run([*verb, *FAIL[verb], "--json", "-q"]) == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document.keys() == {"schema_version", "error"}
    assert document["schema_version"] == 1
    assert document["error"].keys() == {"kind", "exit_code", "message", "file", "line", "field"}
    assert document["error"]["message"] in err
    if verb != ("logs",):  # it has no --json, which is another error
        assert err in verbose
    assert err.startswith(("ctl: ", "Usage: "))


def test_an_error_in_a_file_has_its_line_and_field(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "spec.yaml").write_text(SPEC.replace("slo_ms: 40", "slo_ms: -1"))
    assert run(["plan", "spec.yaml", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["file"], error["line"], error["field"]) == ("spec.yaml", 3, "workloads[0].slo_ms")


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (InputError("wrong"), "input", 2),
        (InfeasibleError("too much"), "infeasible", 3),
        (EngineError("down"), "engine", 4),
        (PermissionError(13, "Permission denied", "/state"), "engine", 4),
        (GatewayError("taken"), "gateway", 5),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    error: BaseException,
    kind: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("controlplane.cli.wiring.status_source", fail)
    assert run(["status", "--json"]) == code
    found = json.loads(capsys.readouterr().out)["error"]
    assert (found["kind"], found["exit_code"]) == (kind, code)


def test_a_defect_of_the_program_has_an_exit_code_of_its_own_and_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controlplane.cli.wiring.status_source", lambda _: 1 / 0)
    assert run(["status", "--json"]) == EXIT_DEFECT
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "defect"
    assert "Traceback" in err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_list_of_clients_shows_no_secret(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    fleet()
    assert run(["token", "create", "web", "--operator"]) == 0
    (client,) = wiring.clients("default").clients()
    assert client.region_prefix is not None
    token = capsys.readouterr().out.strip()
    assert run(["token", "list", *form]) == 0
    out = capsys.readouterr().out
    assert "web" in out
    assert all(secret not in out for secret in (token, client.token_sha256, client.region_prefix))


def test_a_simulation_that_misses_an_objective_is_exit_code_1_with_check(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "spec.yaml").write_text(SPEC)
    assert run(["plan", "spec.yaml", "-o", "plan.json"]) == 0
    short = ["simulate", "plan.json", "--seconds", "20", "--json"]
    assert run([*short, "--check"]) == 0
    slower = [*short, "--truth", "ours*4"]
    assert run(slower) == 0
    capsys.readouterr()
    assert run([*slower, "--check"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["totals"]["breaks"] == 1
    assert err == "1 workload of 1 would miss the SLO\n"


def test_what_is_no_allowance_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("plan", "apply"):
        assert run([verb, "file", "--allow", "renames,overcomit", "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["field"] == "--allow"
        assert "did you mean 'overcommit'" in error["message"]


def test_an_option_that_is_a_setting_is_refused_with_the_way_to_find_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plan", "file", "--quantile", "0.9", "--json"]) == 2
    assert "`ctl plan --set help`" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert run(["status", "--quantile"]) == 2
    assert "--set help" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", [("status", "--check"), ("wait", "--timeout", "0")])
def test_a_fleet_without_servers_is_exit_code_1(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet()
    assert run([*verb, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["fleet"] == "default"
    assert "workload search: no running server answers search" in err
    assert "no controller runs" in err


def test_a_plan_in_json_is_a_plan_file_and_its_changes_are_on_stderr(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "spec.yaml").write_text(SPEC)
    assert run(["plan", "spec.yaml", "-o", "before.json"]) == 0
    capsys.readouterr()
    assert run(["plan", "spec.yaml", "--json", "--against", "before.json"]) == 0
    out, err = capsys.readouterr()
    (directory / "plan.json").write_text(out)
    assert [p.name for _, _, p in read_plan(directory / "plan.json")[0].placements()] == ["search"]
    assert "nothing changes" in err


def test_a_shown_plan_explains_a_workload_and_draws_its_page_without_its_spec(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "spec.yaml").write_text(SPEC)
    assert run(["plan", "spec.yaml", "-o", "plan.json"]) == 0
    (directory / "spec.yaml").unlink()
    capsys.readouterr()
    assert run(["show", "plan.json", "--explain", "search", "--report", "plan.html"]) == 0
    assert "held to 40 ms" in capsys.readouterr().out
    assert "<title>Plan" in (directory / "plan.html").read_text()
    assert run(["show", "plan.json", "--explain", "serach"]) == 2
    assert "did you mean search" in capsys.readouterr().err


def test_a_plan_that_cannot_be_written_prints_one_document(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise EngineError("plan.json: cannot be written: No space left on device")

    (directory / "spec.yaml").write_text(SPEC)
    monkeypatch.setattr("controlplane.files.plans.write_plan", full)
    assert run(["plan", "spec.yaml", "--json", "-o", "plan.json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "engine"


def test_a_watch_in_json_is_a_line_for_each_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter(range(2))

    def look(_: str) -> object:
        return lambda: next(looks)

    def document(fleet: str, seen: int) -> dict[str, object]:
        return {"fleet": fleet, "seen": seen}

    def pause(_: float) -> None:
        if not looks.__length_hint__():
            raise KeyboardInterrupt

    monkeypatch.setattr("controlplane.cli.wiring.status_source", look)
    monkeypatch.setattr("controlplane.report.tables.status_table.status_document", document)
    monkeypatch.setattr("controlplane.cli.fleet.looking.time.sleep", pause)
    assert run(["status", "--watch", "--json"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["seen"] for line in lines[:2]] == [0, 1]


def test_followed_events_are_each_shown_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    happened = [Event(float(n), "info", "apply", "default", str(n)) for n in range(4)]
    looks = iter((happened[:2], happened[:2], happened[1:3], happened[2:]))
    monkeypatch.setattr("controlplane.cli.wiring.recent_events", lambda *_, **__: tuple(next(looks)))

    def pause(_: float) -> None:
        if not looks.__length_hint__():
            raise KeyboardInterrupt

    monkeypatch.setattr("controlplane.cli.fleet.looking.time.sleep", pause)
    assert run(["events", "--follow", "--json"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["reason"] for line in lines[:4]] == ["0", "1", "2", "3"]
    assert lines[4] == "{", "the interruption's document follows"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == "ctl 0.1.0\n"


@pytest.mark.parametrize("arguments", [("-h",), ("plan", "-h"), ("plan", "spec.yaml", "--json")])
def test_a_closed_pipe_ends_a_verb_without_a_word(arguments: tuple[str, ...], directory: Path) -> None:
    (directory / "spec.yaml").write_text(SPEC)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", cli.__name__, *arguments]
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (EXIT_PIPE, "")


@pytest.mark.parametrize("colourless", [{}, {"NO_COLOR": "1", "FORCE_COLOR": "", "TERM": "xterm-256color"}])
def test_output_to_a_pipe_is_plain_text_with_no_color_and_without(
    colourless: dict[str, str], directory: Path
) -> None:
    (directory / "spec.yaml").write_text(SPEC)
    command = [sys.executable, "-m", cli.__name__, "plan", "spec.yaml"]
    assert "\x1b" not in subprocess.check_output(command, env={**os.environ, **colourless}, text=True)


def test_quiet_leaves_out_progress_but_no_warning_and_no_answer(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(path: Path) -> tuple[object, object]:
        say("reading")
        say("warning: an old field")
        raise InputError("is wrong", file=str(path))

    monkeypatch.setattr("controlplane.files.plans.read_spec", read)
    for quiet in (["plan", "spec.yaml", "-q"], ["-q", "plan", "spec.yaml"]):
        assert run(quiet) == 2
        assert capsys.readouterr().err == "warning: an old field\nctl: spec.yaml: is wrong\n"
    assert run(["plan", "spec.yaml"]) == 2
    assert capsys.readouterr().err.startswith("reading\n")
    fleet()
    assert run(["wait", "--timeout", "0", "-q"]) == 1
    assert "no controller runs" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["wait -q -v", "wait -v -q", "-q wait -v", "-v wait -q", "-v wait"])
def test_verbose_wins_over_quiet_and_names_the_defaults(
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRISECT_FLEET", "shop")
    assert run(line.split()) == 2
    assert "default fleet = 'shop' from TRISECT_FLEET" in capsys.readouterr().err


def test_one_command_leaves_no_verbosity_to_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    run(["status", "-v"])
    capsys.readouterr()
    run(["status"])
    assert capsys.readouterr().err.startswith("ctl: ")


def test_a_fleet_shows_its_section_ready_to_paste(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet()
    assert run(["show", "--fleet", "default"]) == 0
    shown = capsys.readouterr().out
    (directory / "spec.yaml").write_text(SPEC + shown)
    assert run(["plan", "spec.yaml", "-o", "plan.json"]) == 0
    section = read_plan(directory / "plan.json")[0].serve
    assert section is not None
    assert (section.launcher, section.gateway) == ("process", GatewayConfig())
    capsys.readouterr()
    assert run(["show", "--fleet", "none"]) == 2
    assert run(["show", "plan.json", "--fleet", "default"]) == 2
    assert run(["show"]) == 2

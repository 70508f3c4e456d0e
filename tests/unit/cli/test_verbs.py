"""What every verb has in common: help, exit codes, a closed pipe, colours, JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from build import SPEC, partition, plan
from told import Ctl

from controlplane.cli import main as cli
from controlplane.cli import wiring
from controlplane.cli.endings import EXIT_DEFECT, EXIT_PIPE
from controlplane.cli.output import say
from controlplane.cli.verbs import VERBS
from controlplane.domain.errors import EngineError, GatewayError, InfeasibleError, InputError
from controlplane.domain.fleet import GatewayConfig
from controlplane.domain.observation import Event
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
from controlplane.files.plans import read_plan

TOKEN = [f"token {verb}" for verb in ("create", "list", "revoke")]
LIMIT = [f"limit {verb}" for verb in ("set", "list", "remove")]
EVERY = [*VERBS, *TOKEN, *LIMIT]
FAIL: dict[str, str] = {
    **dict.fromkeys(("validate", "status", "wait", "top", "events", "dashboard", "report"), ""),
    **dict.fromkeys(("token list", "limit list"), ""),
    **dict.fromkeys(("simulate", "show", "render", "apply", "diff"), "missing.json"),
    **dict.fromkeys(("plan", "compare"), "missing.yaml"),
    **dict.fromkeys(("logs", "redirect", "limit remove"), "search"),
    **dict.fromkeys(("rollback", "destroy"), "--yes"),
    "profile": "--repository missing",
    "train": "missing.yaml -o policy.npz",
    "controller": "--once",
    "demo": "--set serve.listen.http=0",
    "token create": "web --endpoint search",
    "token revoke": "web",
    "limit set": "search --max-rate 5",
}
"""Arguments with which a verb cannot succeed on a host without a fleet: exit code 2."""


@pytest.fixture(autouse=True)
def directory(directory: Path) -> Path:
    (directory / "spec.yaml").write_text(SPEC)
    return directory


def fleet() -> None:
    """Write the files of a fleet that was applied and whose servers are gone."""
    files = FleetFiles(state_root(), "default")
    files.write_settings(FleetSettings("process", "/m", "/o", {}))
    files.write_plans(plan(partition("P", 50.0, "search", model="resnet50", batch=8)), None)


@pytest.mark.parametrize("verb", EVERY)
def test_both_forms_of_help_are_the_same_and_describe_every_argument(verb: str, ctl: Ctl) -> None:
    short = ctl(verb, "-h").out
    assert ctl(verb, "--help").out == short
    assert f"Usage: ctl {verb}" in short
    assert f"Example: ctl {verb}" in short
    for line in short.partition("Arguments:\n")[2].partition("\n\n")[0].splitlines():
        assert len(line.removesuffix("[required]").split()) > 3, f"not described: {line}"
    if verb not in ("token", "limit"):
        assert "-q, --quiet" in short
        assert "-v, --verbose" in short


@pytest.mark.parametrize("verb", EVERY)
def test_an_unknown_option_is_exit_code_2_and_an_error_in_json(verb: str, ctl: Ctl) -> None:
    told = ctl(verb, "--no-such-option --json", code=2)
    error = told.document["error"]
    assert (error["kind"], error["exit_code"]) == ("usage", 2)
    assert error["message"] in told.err


@pytest.mark.parametrize("verb", FAIL)
def test_wrong_input_is_exit_code_2_with_a_message_in_json_too_and_verbose_says_where_it_was_raised(
    verb: str, ctl: Ctl
) -> None:
    verbose = ctl(verb, FAIL[verb], "-v", code=2)
    assert verbose.out == ""
    if not verbose.err.startswith("Usage: "):  # a wrong command line may end before -v is read
        assert "Traceback" in verbose.err
        assert verbose.err.endswith(" s  exit code 2\n")
    told = ctl(verb, FAIL[verb], "--json -q", code=2)
    assert told.document.keys() == {"schema_version", "error"}
    assert told.document["schema_version"] == 1
    error = told.document["error"]
    assert error.keys() == {"kind", "exit_code", "message", "file", "line", "field"}
    assert error["message"] in told.err
    if verb != "logs":  # it has no --json, which is another error
        assert told.err in verbose.err
    assert told.err.startswith(("ctl: ", "Usage: "))


def test_an_error_in_a_file_has_its_line_and_field(directory: Path, ctl: Ctl) -> None:
    (directory / "spec.yaml").write_text(SPEC.replace("slo_ms: 40", "slo_ms: -1"))
    error = ctl("plan spec.yaml --json", code=2).document["error"]
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
        (ZeroDivisionError(), "defect", EXIT_DEFECT),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_a_defect_is_not_hidden(
    error: BaseException, kind: str, code: int, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("controlplane.cli.wiring.status_source", fail)
    told = ctl("status --json", code=code)
    found = told.document["error"]
    assert (found["kind"], found["exit_code"]) == (kind, code)
    assert ("Traceback" in told.err) == (kind == "defect")


@pytest.mark.parametrize("form", ["", "--json"])
def test_the_list_of_clients_shows_no_secret(form: str, ctl: Ctl) -> None:
    fleet()
    token = ctl("token create web --operator").out.strip()
    (client,) = wiring.clients("default").clients()
    assert client.region_prefix is not None
    out = ctl("token list", form).out
    assert "web" in out
    assert all(secret not in out for secret in (token, client.token_sha256, client.region_prefix))


def test_a_simulation_that_misses_an_objective_is_exit_code_1_with_check(ctl: Ctl) -> None:
    ctl("plan spec.yaml -o plan.json")
    short = "simulate plan.json --seconds 20 --json"
    ctl(short, "--check")
    ctl(short, "--truth ours*4")
    told = ctl(short, "--truth ours*4 --check", code=1)
    assert told.document["totals"]["breaks"] == 1
    assert told.err == "1 workload of 1 would miss the SLO\n"


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_what_is_no_allowance_is_refused_with_the_nearest(verb: str, ctl: Ctl) -> None:
    error = ctl(verb, "file --allow renames,overcomit --json", code=2).document["error"]
    assert error["field"] == "--allow"
    assert "did you mean 'overcommit'" in error["message"]


def test_an_option_that_is_a_setting_is_refused_with_the_way_to_find_it(ctl: Ctl) -> None:
    error = ctl("plan file --quantile 0.9 --json", code=2).document["error"]
    assert "`ctl plan --set help`" in error["message"]
    assert "--set help" not in ctl("status --quantile", code=2).err


@pytest.mark.parametrize("verb", ["status --check", "wait --timeout 0"])
def test_a_fleet_without_servers_is_exit_code_1(verb: str, ctl: Ctl) -> None:
    fleet()
    told = ctl(verb, "--json", code=1)
    assert told.document["fleet"] == "default"
    assert "workload search: no running server answers search" in told.err
    assert "no controller runs" in told.err


def test_a_plan_in_json_is_a_plan_file_and_its_changes_are_on_stderr(directory: Path, ctl: Ctl) -> None:
    ctl("plan spec.yaml -o before.json")
    told = ctl("plan spec.yaml --json --against before.json")
    (directory / "plan.json").write_text(told.out)
    assert [p.name for _, _, p in read_plan(directory / "plan.json")[0].placements()] == ["search"]
    assert "nothing changes" in told.err


def test_a_shown_plan_explains_a_workload_and_draws_its_page_without_its_spec(
    directory: Path, ctl: Ctl
) -> None:
    ctl("plan spec.yaml -o plan.json")
    (directory / "spec.yaml").unlink()
    assert "held to 40 ms" in ctl("show plan.json --explain search --report plan.html").out
    assert "<title>Plan" in (directory / "plan.html").read_text()
    assert "did you mean search" in ctl("show plan.json --explain serach", code=2).err


def test_a_plan_that_cannot_be_written_prints_one_document(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    def full(*_: object) -> None:
        raise EngineError("plan.json: cannot be written: No space left on device")

    monkeypatch.setattr("controlplane.files.plans.write_plan", full)
    assert ctl("plan spec.yaml --json -o plan.json", code=4).document["error"]["kind"] == "engine"


def until_all_are_seen(looks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the pause after the last look interrupted."""

    def pause(_: float) -> None:
        if not looks.__length_hint__():
            raise KeyboardInterrupt

    monkeypatch.setattr("controlplane.cli.fleet.looking.time.sleep", pause)


def test_a_watch_in_json_is_a_line_for_each_look(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    looks = iter(range(2))
    monkeypatch.setattr("controlplane.cli.wiring.status_source", lambda _: lambda: next(looks))
    monkeypatch.setattr(
        "controlplane.report.tables.status_table.status_document",
        lambda fleet, seen: {"fleet": fleet, "seen": seen},
    )
    until_all_are_seen(looks, monkeypatch)
    lines = ctl("status --watch --json", code=130).out.splitlines()
    assert [json.loads(line)["seen"] for line in lines[:2]] == [0, 1]


def test_followed_events_are_each_shown_once(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    happened = [Event(float(n), "info", "apply", "default", str(n)) for n in range(4)]
    looks = iter((happened[:2], happened[:2], happened[1:3], happened[2:]))
    monkeypatch.setattr("controlplane.cli.wiring.recent_events", lambda *_, **__: tuple(next(looks)))
    until_all_are_seen(looks, monkeypatch)
    lines = ctl("events --follow --json", code=130).out.splitlines()
    assert [json.loads(line)["reason"] for line in lines[:4]] == ["0", "1", "2", "3"]
    assert lines[4] == "{", "the interruption's document follows"


def test_the_version_is_that_of_the_package(ctl: Ctl) -> None:
    assert ctl("--version").out == "ctl 0.1.0\n"


@pytest.mark.parametrize("arguments", [("-h",), ("plan", "-h"), ("plan", "spec.yaml", "--json")])
def test_a_closed_pipe_ends_a_verb_without_a_word(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", cli.__name__, *arguments]
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (EXIT_PIPE, "")


@pytest.mark.parametrize("colourless", [{}, {"NO_COLOR": "1", "FORCE_COLOR": "", "TERM": "xterm-256color"}])
def test_output_to_a_pipe_is_plain_text_with_no_color_and_without(colourless: dict[str, str]) -> None:
    command = [sys.executable, "-m", cli.__name__, "plan", "spec.yaml"]
    assert "\x1b" not in subprocess.check_output(command, env={**os.environ, **colourless}, text=True)


def test_quiet_leaves_out_progress_but_no_warning_and_no_answer(
    monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    def read(path: Path) -> tuple[object, object]:
        say("reading")
        say("warning: an old field")
        raise InputError("is wrong", file=str(path))

    monkeypatch.setattr("controlplane.files.plans.read_spec", read)
    for quiet in ("plan spec.yaml -q", "-q plan spec.yaml"):
        assert ctl(quiet, code=2).err == "warning: an old field\nctl: spec.yaml: is wrong\n"
    assert ctl("plan spec.yaml", code=2).err.startswith("reading\n")
    fleet()
    assert "no controller runs" in ctl("wait --timeout 0 -q", code=1).err


@pytest.mark.parametrize("line", ["wait -q -v", "wait -v -q", "-q wait -v", "-v wait -q", "-v wait"])
def test_verbose_wins_over_quiet_and_names_the_defaults(
    line: str, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setenv("TRISECT_FLEET", "shop")
    assert "default fleet = 'shop' from TRISECT_FLEET" in ctl(line, code=2).err
    assert ctl("status", code=2).err.startswith("ctl: "), "the next command is not verbose"


def test_a_fleet_shows_its_section_ready_to_paste(directory: Path, ctl: Ctl) -> None:
    fleet()
    (directory / "spec.yaml").write_text(SPEC + ctl("show --fleet default").out)
    ctl("plan spec.yaml -o plan.json")
    section = read_plan(directory / "plan.json")[0].serve
    assert section is not None
    assert (section.launcher, section.gateway) == ("process", GatewayConfig())
    for wrong in ("--fleet none", "plan.json --fleet default", ""):
        ctl("show", wrong, code=2)

"""Every block of the README runs, here or where `RUN_ELSEWHERE` says, or is what a tested command printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from readme import ROOT, blocks, commands, kind

from controlplane.cli.main import run
from controlplane.cli.verbs import VERBS

pytestmark = pytest.mark.slow

CTL = ".venv/bin/ctl "
RUN_ELSEWHERE = {
    "make setup": ("Makefile", r"^test: setup "),  # before every test of CI
    "make demo": ("tests/e2e/test_signals.py", r"^def test_the_readmes_demo_"),
}
"""The commands that run for minutes, each with the line of the file that runs it."""


def ctl(directory: Path, line: str) -> str:
    command = [sys.executable, "-m", "controlplane.cli.main", *line.split()]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"ctl {line}: {done.stderr}"
    assert done.stdout, f"ctl {line} shows nothing"
    return done.stdout


def test_the_blocks_are_of_known_kinds() -> None:
    assert [kind(block) for block in blocks()] == ["commands", "commands", "plan", "spec"]


def test_every_command_of_the_readme_runs_here_or_where_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    here = [line for line in commands() if line.startswith(CTL)]
    planned, _ = (ctl(tmp_path, line.removeprefix(CTL)) for line in here)
    (shown,) = (block for block in blocks() if kind(block) == "plan")
    assert [line for line in shown.splitlines() if line not in planned] == []
    assert {line for line in commands() if line not in here} == set(RUN_ELSEWHERE)
    for file, line in RUN_ELSEWHERE.values():
        assert len(re.findall(line, (ROOT / file).read_text(), re.MULTILINE)) == 1


def test_the_spec_of_the_readme_can_be_planned(tmp_path: Path) -> None:
    (spec,) = (block for block in blocks() if kind(block) == "spec")
    (tmp_path / "spec.yaml").write_text(spec)
    ctl(tmp_path, "plan spec.yaml")


def test_every_verb_that_the_readme_names_exists_and_every_verb_is_named() -> None:
    _, _, section = (ROOT / "README.md").read_text().partition("\n## Verbs of `ctl`\n")
    table, _, _ = section.partition("\n[")
    assert set(re.findall(r"`([a-z]+)`", table)) == set(VERBS)


def test_every_option_that_the_readme_names_is_one_of_ctl(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(re.findall(r"(--[a-z][a-z-]+)", (ROOT / "README.md").read_text()))
    for verb in ([], *([verb] for verb in VERBS), ["token", "create"], ["limit", "set"]):
        assert run([*verb, "-h"]) == 0
    shown = capsys.readouterr().out
    assert {option for option in named if option not in shown} == set()


@pytest.mark.parametrize("page", ["README", "CHANGELOG", "CONTRIBUTING", "SECURITY"])
def test_every_link_of_a_page_beside_the_site_leads_to_a_file_or_names_a_host(page: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / f"{page}.md").read_text())
    within = [link for link in links if not re.match(r"https://[a-z0-9.-]+\.[a-z]+(/|$)", link)]
    assert [link for link in within if not (ROOT / link.partition("#")[0]).exists()] == []

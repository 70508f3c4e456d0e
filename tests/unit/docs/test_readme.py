"""Every block of the README runs, or is what a tested command printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.cli.main import run
from controlplane.cli.verbs import VERBS

pytestmark = [pytest.mark.unit, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)
TARGET = re.compile(r"^make (\w+)")


def blocks() -> list[str]:
    """The indented blocks, without their indentation."""
    found = (block.group().strip("\n") for block in BLOCK.finditer((ROOT / "README.md").read_text()))
    return ["\n".join(line[4:] for line in block.splitlines()) for block in found]


def kind(block: str) -> str:
    """What a block is: commands, a spec, the demo's output or the drawing."""
    if re.match(r"make |\.venv/bin/ctl ", block):
        return "commands"
    if block.startswith("schema_version:"):
        return "spec"
    return "output" if block.startswith("profile ") else "drawing"


def ctl(directory: Path, line: str) -> None:
    command = [sys.executable, "-m", "controlplane.cli.main", *line.split()]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"ctl {line}: {done.stderr}"
    assert done.stdout, f"ctl {line} shows nothing"


def test_the_blocks_are_of_known_kinds() -> None:
    assert [kind(block) for block in blocks()] == ["commands", "output", "drawing", "spec"]


def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = [
        line.partition("#")[0].strip() for b in blocks() if kind(b) == "commands" for line in b.splitlines()
    ]
    ran = 0
    for line in lines:
        if line.startswith(".venv/bin/ctl "):
            ctl(tmp_path, line.removeprefix(".venv/bin/ctl "))
            ran += 1
        else:  # `make setup` brought what runs this test, and the demo runs for minutes
            target = TARGET.match(line)
            assert target is not None, line
            planned = subprocess.run(["make", "-n", target[1]], cwd=ROOT, capture_output=True, check=False)
            assert planned.returncode == 0, f"{line}: {planned.stderr!r}"
    assert ran == 2


def test_the_spec_of_the_readme_can_be_planned(tmp_path: Path) -> None:
    (spec,) = (block for block in blocks() if kind(block) == "spec")
    (tmp_path / "spec.yaml").write_text(spec)
    ctl(tmp_path, "plan spec.yaml")


def test_every_verb_that_the_readme_names_exists_and_every_verb_is_named() -> None:
    text = (ROOT / "README.md").read_text()
    assert set(re.findall(r"`ctl ([a-z]+)", text)) == set(VERBS)


def test_every_option_that_the_readme_names_is_one_of_ctl(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(re.findall(r"(--[a-z][a-z-]+)", (ROOT / "README.md").read_text()))
    for verb in ([], *([verb] for verb in VERBS), ["token", "create"], ["limit", "set"]):
        assert run([*verb, "-h"]) == 0
    shown = capsys.readouterr().out
    assert {option for option in named if option not in shown} == set()

"""What the pages for users name exists: verbs with their options, and messages."""

import re
from functools import cache
from pathlib import Path

import pytest

from controlplane.cli.main import run
from controlplane.cli.verbs import VERBS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PAGES = (
    "tutorial",
    "quickstart-gpu",
    "models",
    "network",
    "kubernetes-tutorial",
    "kubernetes",
    "upgrades",
    "troubleshooting",
)
OF_OTHERS = ("Too many open files", "fleet.json: is empty")
"""Messages of the kernel, and those that the code makes of parts."""


def commands(page: str) -> list[str]:
    """The command lines of `ctl` in a page's blocks and text."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^(?:    |\$ )(?:.*; )?(ctl [^#\n]+)", text, re.MULTILINE)
    return [*blocks, *(" ".join(found.split()) for found in re.findall(r"`(ctl [^`]+)`", text))]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_has_a_verb_and_options_of_it(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @cache
    def options(*verb: str) -> set[str]:
        assert run([*verb, "-h"]) == 0
        return set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))

    for command in commands(page):
        _, verb, *rest = command.split()
        assert verb in VERBS, command
        names = (verb, rest[0]) if verb in ("token", "limit") and rest else (verb,)
        named = {word for word in re.split(r"[\s=\[\]]+", " ".join(rest)) if word.startswith("--")}
        assert named - options(*names) == set(), command


def test_every_message_of_the_page_on_trouble_is_in_the_code() -> None:
    files = [path for folder in ("controlplane", "launchers") for path in (ROOT / folder).rglob("*.py")]
    code = re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text() for path in files))
    rows = [line for line in (ROOT / "docs/troubleshooting.md").read_text().splitlines() if line[:2] == "| "]
    quoted = [said for row in rows for said in re.findall(r"`([^`/_]+ [^`/_]+)`", row.split("|")[1])]
    parts = [part.strip(" :") for said in quoted for part in re.split(r"\.\.\.|\b[NM]\b", said)]
    missing = [part for part in parts if part not in code and not any(other in part for other in OF_OTHERS)]
    assert len(parts) > 15
    assert missing == []


def test_every_row_on_gpus_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/results/gpu.md").read_text().split("## Behaviours")[1]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    for row in rows:
        named = re.findall(r"`((?:unit|contract|chaos|golden)/[^`]+)`", row.split(" | ")[-1])
        assert named, row
        for file, _, name in (one.partition("::") for one in named):
            assert (
                f"def {name}(" in (ROOT / "tests" / file).read_text()
                if name
                else (ROOT / "tests" / file).exists()
            )

"""The help of `ctl`, held to the letter, and the page of every verb, which is made of it.

UPDATE_GOLDEN=1 writes both anew.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from controlplane.cli.main import run
from controlplane.cli.verbs import GROUPS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "cli.md"
HEAD = """# Commands

`ctl COMMAND -h` in one page, which `tests/golden/test_help.py` writes. Every command has `-q` (no progress),
`-v` (times, defaults) and `-h`. With `--json`, which all have but `ctl logs` and `ctl schema`, stdout has one
document with a `schema_version`, also for an error (`ctl schema`). Defaults come from variables such as
`TRISECT_FLEET`. After an interruption each command says what is left and how to go on. Arguments in
braces are required, those in brackets are not.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the answer is no (`--check`, `ctl diff`, `ctl wait`); the demo lost requests or repaired nothing |
| 2 | the input or the command line is wrong (the message names file, line and field), or nothing confirmed |
| 3 | some workloads are infeasible: no placement was found; the rest is planned |
| 4 | a launch, an engine (Docker, the cluster) or the disk failed |
| 5 | the gateway failed |
| 70 | a defect of Trisect: please report the traceback |
| 130, 143 | interrupted by Ctrl-C; ended by SIGTERM or SIGHUP |
| 141 | the reader of stdout has closed it |

Options of several commands:
"""
EVERYWHERE = ("--json Print one", "-q, --quiet", "-v, --verbose", "-h, --help")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the terminal and the user's variables are."""
    monkeypatch.setenv("COLUMNS", "100")
    for name in [name for name in os.environ if name.startswith("TRISECT_")]:
        monkeypatch.delenv(name)


def compared(found: str, golden: Path) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text()


@pytest.mark.parametrize("verb", [(), ("plan",), ("apply",)], ids=lambda verb: " ".join(verb) or "all")
def test_the_help_of_the_main_verbs(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*verb, "-h"]) == 0
    found = capsys.readouterr().out
    assert len(found.splitlines()) <= 60
    compared(found, HERE / f"help_{'_'.join(('ctl', *verb))}.txt")


def test_the_page_of_commands_is_what_the_program_says(capsys: pytest.CaptureFixture[str]) -> None:
    def helped(*verb: str) -> str:
        assert run([*verb, "-h"]) == 0
        return capsys.readouterr().out

    groups: dict[str, list[str]] = {}
    for title, verbs in GROUPS.items():
        for verb in verbs:
            inner = re.findall(r"^  (\w+)  ", helped(verb).partition("Commands:\n")[2], re.MULTILINE)
            texts = [helped(verb, name) for name in inner] or [helped(verb)]
            groups.setdefault(title, []).extend(texts)
    texts = [text for texts in groups.values() for text in texts]
    assert [text.split()[2] for text in texts if "\n  --json" not in text] == ["logs", "schema"]
    uses = Counter(line for text in texts for line in options(text))
    shared = [line for line, verbs in uses.items() if verbs > 1]
    parts = [HEAD, "".join(sorted(shared))]
    for title, texts in groups.items():
        parts.append(f"## {title}\n")
        parts += [section(text, shared) for text in texts]
    compared("\n".join(parts), PAGE)


def section(text: str, shared: Sequence[str]) -> str:
    """A verb's usage, what it does, and its arguments and options, each in a line."""
    usage = text.splitlines()[0].removeprefix("Usage: ").replace(" [OPTIONS]", "")
    described = " ".join(re.split(r"\n(?:Arguments|Options):", text.partition("\n\n")[2])[0].split())
    lines = options(text)
    own = "".join(line for line in lines if line not in shared)
    names = (line[3 : line.index("`:")] for line in lines if line in shared and line[3] == "-")
    others = " ".join(f"`{name.partition(' <')[0]}`" for name in names)
    return f"### `{usage}`\n\n{described}\n\n{own}{f'* {others}' if others else ''}".rstrip() + "\n"


def options(text: str) -> list[str]:
    text = re.sub(r"(?<=\w-)\n +(?=\w)", "", text)  # a line ends behind a hyphen
    blocks = re.findall(r"^(?:Arguments|Options):\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    lines = []
    for entry in (entry for block in blocks for entry in re.split(r"\n(?=  \S)", block.rstrip())):
        named, _, says = entry.strip().partition("  ")
        if not " ".join(entry.split()).startswith(EVERYWHERE):
            named = re.sub(r" <[^|<>]*>", "", named)
            says = says if named.startswith("-") else says.replace("[required]", "")
            lines.append(f"* `{' '.join(named.split())}`: {' '.join(says.split())}\n")
    return lines

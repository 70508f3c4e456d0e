"""Each statement of docs/security.md names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
THE_SAME = "the same file"
NAMED = re.compile(r"`([^`]+\.py|[^` ]+/[^` ]+)`")


def rows() -> list[list[str]]:
    """The cells of every line of the tables."""
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row != ["threat", "answer", "test"] and set(row) != {"---"}]


def found(named: str) -> list[Path]:
    """The tests of a name: a path, one below `S` or `U`, or a file's name alone."""
    for short, folder in (("S/", "tests/security/"), ("U/", "tests/unit/")):
        if named.startswith(short):
            named = named.replace(short, folder, 1)
    path = ROOT / named
    return [path] if path.exists() else [] if "/" in named else list(TESTS.rglob(named))


def test_each_line_names_tests_that_exist() -> None:
    assert len(rows()) > 30
    for threat, _, tests in rows():
        names = NAMED.findall(tests)
        assert names or tests == THE_SAME, threat
        assert [name for name in names if len(found(name)) != 1] == [], threat


def test_each_attack_has_its_line() -> None:
    named = {path for *_, tests in rows() for name in NAMED.findall(tests) for path in found(name)}
    assert {path.name for path in (TESTS / "security").glob("test_*.py")} <= {path.name for path in named}

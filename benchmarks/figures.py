"""The figures of the README: from one file into the lines of pages; which are older than their code.

python -m benchmarks.figures            # list the runs
python -m benchmarks.figures --write    # fill the values into the lines
"""

import argparse
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.harness import show, table

ROOT = Path(__file__).parents[1]
_PLACE = re.compile(r"\{(\w+)\}")
_NUMBER = r"\d+(?:\.\d+)?"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a bench: its figures, and the folders of the code that they measure."""

    command: str
    date: date
    host: str
    measures: tuple[str, ...]
    values: Mapping[str, float]

    def changed(self) -> str:
        """Return the date and hash of the last commit to the code, where that is later; else nothing."""
        command = ["git", "log", "-1", "--no-merges", "--format=%cs %h", "--", *self.measures]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        last = told.stdout.strip()
        return last if last.partition(" ")[0] > self.date.isoformat() else ""


@dataclass(frozen=True, slots=True)
class Cited:
    """The runs, and by page the lines with a {name} in place of each figure."""

    runs: tuple[Run, ...]
    lines: Mapping[str, Sequence[str]]

    @property
    def values(self) -> dict[str, float]:
        """Every figure by its name."""
        return {name: value for run in self.runs for name, value in run.values.items()}

    def filled(self, page: str, text: str) -> str:
        """Return a page with the figures in its lines. Raises ValueError for a line not found once."""
        for line in self.lines[page]:
            found = re.findall(pattern(line), text)
            if len(found) != 1:
                raise ValueError(f"{page}: found {len(found)} times, not once: {line!r}")
            text = text.replace(found[0], _PLACE.sub(lambda name: f"{self.values[name[1]]}", line))
        return text


def pattern(line: str) -> str:
    """Return what matches a line, whatever its figures are."""
    return _NUMBER.join(map(re.escape, _PLACE.split(line)[::2]))


def read() -> Cited:
    """Read the file."""
    told = tomllib.loads((ROOT / "docs/results/figures.toml").read_text())
    runs = tuple(Run(**{**run, "measures": tuple(run["measures"])}) for run in told["run"])
    return Cited(runs, told["lines"])


def main() -> None:
    """Fill the figures into the pages, or list their runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="fill the values into the lines of the pages")
    cited = read()
    if parser.parse_args().write:
        for page in cited.lines:
            (ROOT / page).write_text(cited.filled(page, (ROOT / page).read_text()))
        return
    made = table("figures", "command", "figures", "date", "host", "older than its code, of")
    for run in cited.runs:
        made.add_row(run.command, ", ".join(run.values), str(run.date), run.host, run.changed())
    show(made)


if __name__ == "__main__":
    main()

"""What every bench ends with: its figures beside their aims, and an exit code.

A figure is Trisect's own. Its aim is a bound that a user would notice, its reference another's figure for the
same, such as a paper's. A figure without an aim is shown and judges nothing; a run without any aim fails.
"""

import argparse
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table

WIDTH = 120


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; `at_most` or `at_least` is its aim."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    reference: float | None = None

    @property
    def missed(self) -> bool:
        """Whether the aim is missed; a figure that could not be taken misses it."""
        over = self.at_most is not None and not self.value <= self.at_most
        return over or (self.at_least is not None and not self.value >= self.at_least)

    @property
    def aim(self) -> str:
        """The aim in words."""
        least = None if self.at_least is None else f"at least {self.at_least:g}"
        most = None if self.at_most is None else f"at most {self.at_most:g}"
        return ", ".join(filter(None, (least, most))) or "–"


@dataclass(slots=True)
class Figures:
    """The figures of one run."""

    taken: list[Figure] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        reference: float | None = None,
    ) -> None:
        """Take a figure."""
        self.taken.append(Figure(name, float(value), unit, at_most, at_least, reference))

    def end(self) -> int:
        """Print the figures; return the exit code: 1 where an aim is missed, or none was there to miss."""
        made = table(f"figures (load of the host {os.getloadavg()[0]:.1f})", *_COLUMNS)
        for one in self.taken:
            near = one.reference if one.reference is not None else one.at_most or one.at_least
            made.add_row(
                one.name,
                f"{one.value:.4g} {one.unit}".strip(),
                one.aim,
                "–" if one.reference is None else f"{one.reference:g}",
                f"{one.value / near:.2f}" if near else "–",
                "missed" if one.missed else "held" if one.aim != "–" else "",
            )
        show(made)
        aimed = [one for one in self.taken if one.aim != "–"]
        return 0 if aimed and not any(one.missed for one in aimed) else 1


_COLUMNS = ("figure", ">ours", ">aim", ">reference", ">ratio", "")


def table(title: str, *columns: str) -> Table:
    """Return an empty table; names of columns of numbers begin with `>`."""
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return made


def show(*parts: RenderableType, width: int = WIDTH) -> None:
    """Print tables and lines on so many columns."""
    console = Console(width=width, highlight=False)
    for part in parts:
        console.print(part)


def csv_folder(text: str) -> Path:
    """Return the folder of an argument. Raises ArgumentTypeError for one without CSVs."""
    if not any(Path(text).glob("*.csv")):
        raise argparse.ArgumentTypeError(f"no CSV in {text}")
    return Path(text)


def chosen(named: Iterable[str], sections: Iterable[str]) -> list[str]:
    """Return the sections to run: the named ones, without any all. Raises SystemExit for an unknown one."""
    known, wanted = list(sections), [name for name in named if not name.startswith("-")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"no section {', '.join(unknown)}; there are: {', '.join(known)}")
    return wanted or known

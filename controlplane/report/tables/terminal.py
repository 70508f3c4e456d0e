"""Tables with one header style, and tables and texts as plain lines, where they fit.

rich takes two thirds of a second for 1,000 rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from controlplane.report.words import printable

WIDTH = 200
_GAP = "  "
_RIGHT = ">"
_WRAPS = "~"
_FOR_RICH = "[]\n"
"""A cell with one of these characters may be markup or several lines, which rich must lay out."""


def table_of(headers: str, rows: Iterable[Iterable[RenderableType]] = ()) -> Table:
    """Return a table; `headers` are separated by commas.

    Those of numbers begin with `>`, those of texts that may take several lines with `~`.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers.split(", "):
        right = header.startswith(_RIGHT)
        table.add_column(
            header.lstrip(_RIGHT + _WRAPS),
            justify="right" if right else "left",
            no_wrap=not header.startswith(_WRAPS),
        )
    for row in rows:
        table.add_row(*row)
    return table


def plain(renderable: RenderableType) -> str:
    """Return what rich prints on `WIDTH` columns, without colours and trailing spaces."""
    return "\n".join(line.rstrip() for line in _lines(renderable))


def show(renderable: RenderableType) -> None:
    """Print to stdout; where stdout is not a terminal, without a limit on the width."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(Printable(renderable))
    else:
        print(printable(plain(renderable)))


@dataclass(frozen=True, slots=True)
class Printable:
    """What a terminal shows of a table or text: its colours, and no sequence that a name in it holds."""

    renderable: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich's protocol."""
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def _lines(renderable: RenderableType) -> Iterator[str]:
    if isinstance(renderable, Group):
        for part in renderable.renderables:
            yield from _lines(part)
    elif isinstance(renderable, Table) and (columns := _columns(renderable)) is not None:
        yield from map(_GAP.join, zip(*columns, strict=True))
    elif (
        isinstance(renderable, Text) and "\n" not in renderable.plain and cell_len(renderable.plain) <= WIDTH
    ):
        yield renderable.plain
    else:
        console = Console(highlight=False, width=WIDTH)
        with console.capture() as written:
            console.print(renderable)
        yield from written.get().removesuffix("\n").split("\n")


def _columns(table: Table) -> list[list[str]] | None:
    """Return each column's cells, header first, padded to one width; None if rich must lay the table out."""
    if table.box is not None or table.pad_edge or table.title or table.expand or not table.columns:
        return None
    columns, wide = [], len(_GAP) * (len(table.columns) - 1)
    for column in table.columns:
        cells = [column.header] * table.show_header + list(column.cells)
        texts = [cell for cell in cells if isinstance(cell, str) and not set(_FOR_RICH) & set(cell)]
        if len(texts) < len(cells) or column.justify not in ("left", "right"):
            return None
        sizes = [cell_len(text) for text in texts]
        width = max(sizes, default=0)
        spaces = [" " * (width - size) for size in sizes]
        right = column.justify == "right"
        columns.append([s + t if right else t + s for s, t in zip(spaces, texts, strict=True)])
        wide += width
    return columns if wide <= WIDTH else None

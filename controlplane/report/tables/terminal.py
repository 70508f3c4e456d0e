"""Tables with one header style, and tables and texts as plain lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table

from controlplane.report.words import printable

WIDTH = 200
_RIGHT = ">"
_WRAPS = "~"


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
    console = Console(highlight=False, width=WIDTH)
    with console.capture() as written:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in written.get().removesuffix("\n").split("\n"))


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

"""Tables with one header style."""

from __future__ import annotations

from rich.table import Table

_RIGHT = ">"


def table_of(headers: str) -> Table:
    """Return an empty table; `headers` are separated by commas, and those of numbers begin with `>`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers.split(", "):
        right = header.startswith(_RIGHT)
        table.add_column(header.removeprefix(_RIGHT), justify="right" if right else "left", no_wrap=True)
    return table

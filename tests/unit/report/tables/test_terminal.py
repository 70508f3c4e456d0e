from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.report.tables.terminal import WIDTH, Printable, plain, table_of
from controlplane.report.words import printable


def table(*rows: tuple[str, str, str], header: bool = True) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", show_header=header)
    made.add_column("workload", no_wrap=True)
    made.add_column("ms", justify="right", no_wrap=True)
    made.add_column("where", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def by_rich(renderable: RenderableType) -> str:
    console = Console(highlight=False, width=WIDTH)
    with console.capture() as written:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in written.get().removesuffix("\n").split("\n"))


SHORT = ("a", "1.5", "–"), ("a longer name", "12.25", ""), ("画像", "3", "gpu 1")
LONG = ("a", "1", "word " * 80)


@pytest.mark.parametrize(
    "renderable",
    [
        table(*SHORT),
        table(*SHORT, header=False),
        table(),
        table(LONG),
        table(("a", "1", "[red]x[/red]")),
        table(("a", "1", "two\nlines")),
        Text("red", style="red"),
        Text("word " * 80),
        Group(table(*SHORT), Text(), table(LONG), Text("the end")),
    ],
)
def test_plain_lines_are_those_of_rich(renderable: RenderableType) -> None:
    assert plain(renderable) == by_rich(renderable)


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_printed_and_holds_no_control_character(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert printable(shown) == shown


def test_a_table_on_a_terminal_keeps_its_own_colours_alone() -> None:
    table = table_of("model")
    table.add_row("\x1b]0;title\x07name")
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=80)
    console.print(Printable(Group(table, Text("red", style="red"))))
    assert "\x1b[31mred" in out.getvalue()
    assert "\x1b]0;" not in out.getvalue()

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.text import Text

from controlplane.report.tables.terminal import Printable, table_of
from controlplane.report.words import printable


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

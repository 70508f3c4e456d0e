import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.text import Text

from controlplane.report import progress
from controlplane.report.progress import Bar
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


def test_a_log_has_the_time_left_at_once_and_then_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    said: list[str] = []
    with Bar(said.append) as bar:
        for done in range(30):
            now_s = float(done)
            bar.advance("m", done, 30, 30.0 - done)
    assert [line.split(":")[1].split()[0] for line in said] == ["0", "10", "20"]
    assert said[0] == "m: 0 of 30, about 30 s left"


def test_a_short_run_of_unknown_length_and_a_quiet_one_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    Bar(said.append).advance("m", 0, 3, None)
    Bar(said.append, shown=False).advance("m", 0, 3, 60.0)
    assert said == []

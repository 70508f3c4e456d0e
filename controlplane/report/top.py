"""A fleet in a terminal (`ctl top`): a row and two sparklines for each workload, problems and events."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, RichLog, Static

from controlplane.domain.errors import TrisectError
from controlplane.domain.fleet import ServerState
from controlplane.domain.observation import Event
from controlplane.report.tables.status_table import Status, WorkloadRow, is_late, problems
from controlplane.report.words import counted, number

KEPT = 16
"""Looks in a sparkline."""
_BARS = "▁▂▃▄▅▆▇█"
_UNKNOWN = " "


class Order(StrEnum):
    """Orders of the rows; the most urgent workload comes first."""

    SPEC = "as in the plan"
    P99 = "P99 against SLO"
    RATE = "rate"
    ERRORS = "errors"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Row:
    """One workload as it was `seen` now, and its figures of the last looks, oldest first."""

    seen: WorkloadRow
    served_by: str
    guard: str
    rates: tuple[float | None, ...]
    p99s: tuple[float | None, ...]


def rows(status: Status, before: Sequence[Row]) -> tuple[Row, ...]:
    """Return the workloads of a status in its order; `before` has the rows of the last look."""
    last = {row.seen.workload: row for row in before}
    return tuple(_row(status, workload, last.get(workload.workload)) for workload in status.workloads)


def _row(status: Status, seen: WorkloadRow, before: Row | None) -> Row:
    rates, p99s = ((), ()) if before is None else (before.rates, before.p99s)
    serving = []
    for server in status.servers:
        if server.routed and seen.endpoint in server.endpoints:
            state = "" if server.state == ServerState.RUNNING else f", {server.state}"
            serving.append(f"{server.partition} {server.percent:g} % of {server.device}{state}")
    mine = [row for row in status.guard if row.partition in seen.partitions]
    phases = dict.fromkeys(row.phase or "not watched" for row in mine)
    return Row(
        seen,
        served_by="; ".join(serving) or "no server",
        guard=", ".join(phases) or "–",
        rates=(*rates, seen.rate_rps)[-KEPT:],
        p99s=(*p99s, seen.p99_ms)[-KEPT:],
    )


_KEYS: Mapping[Order, Callable[[WorkloadRow], tuple[float, str]]] = {
    Order.P99: lambda seen: (-(seen.p99_ms or 0.0) / seen.slo_ms, seen.workload),
    Order.RATE: lambda seen: (-(seen.rate_rps or 0.0), seen.workload),
    Order.ERRORS: lambda seen: (-(seen.errors or 0), seen.workload),
    Order.NAME: lambda seen: (0.0, seen.workload),
}


def ordered(found: Sequence[Row], order: Order) -> tuple[Row, ...]:
    """Return the rows in an order."""
    key = _KEYS.get(order)
    return tuple(found if key is None else sorted(found, key=lambda row: key(row.seen)))


def sparkline(values: Sequence[float | None], top: float) -> str:
    """Draw values between 0 and `top` as bars, the newest last; a larger one has the full height."""
    heights = [None if value is None else int(value / top * len(_BARS)) if top > 0 else 0 for value in values]
    bars = (_UNKNOWN if height is None else _BARS[min(len(_BARS) - 1, max(0, height))] for height in heights)
    return "".join(bars).rjust(KEPT, _UNKNOWN)


def companions(status: Status, workload: str) -> tuple[str, ...]:
    """Return the other workloads that a redirect of this one moves too: they share its partitions."""
    partitions = {p for row in status.workloads if row.workload == workload for p in row.partitions}
    sharing = (row.workload for row in status.workloads if partitions & set(row.partitions))
    return tuple(name for name in sharing if name != workload)


_SHOWN_PROBLEMS = 3
_COLUMNS = (
    ("workload", 14),
    ("rate/s", 7),
    ("planned", 7),
    ("P99 ms", 8),
    ("SLO ms", 7),
    ("P99 up to SLO", KEPT),
    ("errors", 6),
    ("rate", KEPT),
    ("guard", 11),
    ("served by", 30),
)
"""Titles and widths."""
_STYLES = {"warning": "yellow", "critical": "bold red"}


class Look(NamedTuple):
    """A fleet at one moment: its status and its newest events, oldest first."""

    status: Status
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """A fleet for the screen. `look` and `redirect` may take a while and raise a TrisectError.

    `redirect` moves a workload to its shadow, or back, and returns what it did.
    """

    name: str
    look: Callable[[], Look]
    redirect: Callable[[str], str]
    every_s: float = 1.0


class _Question(ModalScreen[bool]):
    """A question that `y` answers with yes, and `n` or Escape with no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
    ]
    CSS = """
    _Question { align: center middle; }
    _Question Static { width: 70; max-width: 90%; padding: 1 2; border: round $primary; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(f"{self._text}\n\ny: yes    n: no", markup=False)


class Top(App[signal.Signals]):
    """A fleet on the whole terminal. Its result is the signal that ended it, None after `q`."""

    CSS = """
    #head { height: auto; padding: 0 1; }
    #workloads { height: 1fr; }
    #events { height: 9; border-top: solid $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("r", "redirect", "Redirect"),
        Binding("e", "events", "Events"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", "Interrupt", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, fleet: Watched) -> None:
        super().__init__()
        self._fleet = fleet
        self._head = Static(f"fleet {fleet.name}: reading", id="head", markup=False)
        self._table = DataTable[Text](id="workloads", cursor_type="row", zebra_stripes=True)
        self._happened = RichLog(id="events", wrap=True, max_lines=500)
        self._order = Order.SPEC
        self._rows: tuple[Row, ...] = ()
        self._status: Status | None = None
        self._shown: tuple[str, ...] = ()
        self._selected: str | None = None
        self._newest_s = 0.0

    def compose(self) -> ComposeResult:
        """Lay out the head, the workloads, the events and the keys."""
        yield self._head
        with Vertical():
            yield self._table
            yield self._happened
        yield Footer()

    def on_mount(self) -> None:
        """Make the columns and begin to look."""
        for title, width in _COLUMNS:
            self._table.add_column(title, width=width)
        for sent in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(sent, self.exit, sent)
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        while True:
            await self._renew()
            await asyncio.sleep(self._fleet.every_s)

    async def _renew(self) -> None:
        try:
            look = await asyncio.to_thread(self._fleet.look)
        except TrisectError as error:  # the last figures stay
            self._head.update(f"fleet {self._fleet.name} cannot be read: {error}")
            return
        self._status = look.status
        self._rows = rows(look.status, self._rows)
        self._show(look.status)
        self._tell(look.events)

    def _show(self, status: Status) -> None:
        self._head.update(_head(self._fleet.name, status, self._order))
        found = ordered(self._rows, self._order)
        names = tuple(row.seen.workload for row in found)
        table = self._table
        with self.batch_update():
            if len(names) != table.row_count:
                table.clear()
                table.add_rows(_cells(row) for row in found)
            else:
                for line, row in enumerate(found):
                    for column, cell in enumerate(_cells(row)):
                        table.update_cell_at(Coordinate(line, column), cell)
            moved, self._shown = names != self._shown, names
            if moved and self._selected in names:  # the cursor follows its workload
                table.move_cursor(row=names.index(self._selected))

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.at_s > self._newest_s:
                at = datetime.fromtimestamp(event.at_s).strftime("%H:%M:%S")
                line = f"{at}  {event.kind:8}  {event.subject}: {event.reason}"
                self._happened.write(Text(line, style=_STYLES.get(event.level, "")))
        self._newest_s = max((self._newest_s, *(event.at_s for event in events)))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Keep the workload under the cursor."""
        if event.cursor_row < len(self._shown):
            self._selected = self._shown[event.cursor_row]

    def action_sort(self) -> None:
        """Change the order of the workloads."""
        every = list(Order)
        self._order = every[(every.index(self._order) + 1) % len(every)]
        if self._status is not None:
            self._show(self._status)

    def action_events(self) -> None:
        """Hide the events, or show them again."""
        self._happened.display = not self._happened.display

    def action_redirect(self) -> None:
        """Ask, then move the selected workload to its shadow, or back."""
        workload = self._selected
        if workload is None or self._status is None:
            return
        others = companions(self._status, workload)
        also = f" {', '.join(others)} in the same partition would move too." if others else ""

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._redirect(workload))

        self.push_screen(_Question(f"Move {workload} to its shadow, or back?{also}"), answered)

    async def _redirect(self, workload: str) -> None:
        try:
            done = await asyncio.to_thread(self._fleet.redirect, workload)
        except TrisectError as error:
            self.notify(str(error), title="Not redirected", severity="error", markup=False)
            return
        self.notify(done, title="Redirected", markup=False)
        await self._renew()

    def action_interrupt(self) -> None:
        """End as Ctrl-C ends every command."""
        self.exit(signal.SIGINT)


def _head(name: str, status: Status, order: Order) -> Text:
    """Return the fleet's state in a few lines."""
    controller = "no controller" if status.controller is None else "controller runs"
    text = Text(f"fleet {name}: {counted(len(status.workloads), 'workload')}, {controller}; order: {order}")
    found = problems(status)
    for problem in found[:_SHOWN_PROBLEMS]:
        text.append(f"\n! {problem}", style="red")
    if len(found) > _SHOWN_PROBLEMS:
        text.append(f"\n! and {counted(len(found) - _SHOWN_PROBLEMS, 'more problem')}", style="red")
    return text


def _cells(row: Row) -> tuple[Text, ...]:
    seen = row.seen
    mark, late = (" !", "red") if is_late(seen) else ("", "")
    return (
        Text(seen.workload),
        _right(number(seen.rate_rps)),
        _right(number(seen.planned_rps)),
        _right(f"{number(seen.p99_ms)}{mark}", late),
        _right(number(seen.slo_ms)),
        Text(sparkline(row.p99s, seen.slo_ms), style=late),
        _right("–" if seen.errors is None else str(seen.errors), "red" if seen.errors else ""),
        Text(sparkline(row.rates, max((seen.planned_rps, *(rate or 0.0 for rate in row.rates))))),
        Text(row.guard),
        Text(row.served_by),
    )


def _right(text: str, style: str = "") -> Text:
    return Text(text, style=style, justify="right")

"""The screen of `ctl top`, driven by keys without a terminal."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static

from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.observation import Event
from controlplane.report.tables.status_table import GuardRow, Status, StatusRow, WorkloadRow
from controlplane.report.top import Look, Order, Top, Watched

pytestmark = pytest.mark.slow

EVENT = Event(1.0, "warning", "redirect", "P", "slow server")
STATUS = Status(
    (StatusRow("P", "active", "running", "v100-0", 50.0, "MPS", ("search", "ads"), True, "a", "b"),),
    (
        WorkloadRow("search", "search", ("P",), 40.0, 100.0, 30.0, 90.0, 0),
        WorkloadRow("ads", "ads", ("P",), 40.0, 100.0, 80.0, 99.0, 2),
    ),
    (GuardRow("P", "guarded", 3.0),),
    7,
)


class Fleet:
    """A fleet whose status and redirects a test sets."""

    def __init__(self) -> None:
        self.status = STATUS
        self.broken: EngineError | None = None
        self.refused: InputError | None = None
        self.events: tuple[Event, ...] = (EVENT,)
        self.redirected: list[str] = []

    def look(self) -> Look:
        if self.broken is not None:
            raise self.broken
        return Look(self.status, self.events)

    def redirect(self, workload: str) -> str:
        if self.refused is not None:
            raise self.refused
        self.redirected.append(workload)
        return f"{workload} -> shadow"


class NotedTop(Top):
    """The screen, which remembers what it notifies of."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self.notes: list[tuple[str, str]] = []

    def notify(self, message: str, *, title: str = "", **how: Any) -> None:
        self.notes.append((title, message))
        super().notify(message, title=title, **how)


class Screen:
    """The screen of a fleet, as a person sees it."""

    def __init__(self, pilot: Pilot[signal.Signals]) -> None:
        self.pilot = pilot
        self.app = pilot.app

    def names(self) -> list[str]:
        table = self.app.screen_stack[0].query_one("#workloads", DataTable)
        return [str(table.get_row_at(line)[0]) for line in range(table.row_count)]

    def cells(self, name: str) -> list[str]:
        table = self.app.screen_stack[0].query_one("#workloads", DataTable)
        return [str(cell) for cell in table.get_row_at(self.names().index(name))]

    def head(self) -> str:
        return str(self.app.query_one("#head", Static).render())

    def log(self) -> list[str]:
        return [line.text for line in self.app.query_one("#events", RichLog).lines]

    def notes(self) -> list[tuple[str, str]]:
        return self.app.notes

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30.0):
            while not condition():
                await self.pilot.pause(0.01)


def play(fleet: Fleet, scene: Callable[[Screen], Awaitable[None]]) -> signal.Signals | None:
    """Run the screen while a scene is played; return its result."""
    app = NotedTop(Watched("shop", fleet.look, fleet.redirect, every_s=0.2))

    async def played() -> None:
        async with app.run_test(size=(200, 40)) as pilot:
            screen = Screen(pilot)
            await screen.until(lambda: len(screen.names()) == 2)
            await scene(screen)

    asyncio.run(played())
    return app.return_value


def test_it_shows_workloads_problems_and_events() -> None:
    async def scene(screen: Screen) -> None:
        assert screen.names() == ["search", "ads"]
        assert screen.cells("ads")[3] == "80.0 !"
        assert screen.cells("search")[-1] == "P 50 % of v100-0"
        assert "2 workloads, controller runs" in screen.head()
        assert "! workload ads: P99 80.0 ms is above its SLO of 40.0 ms" in screen.head()
        await screen.until(lambda: any("slow server" in line for line in screen.log()))

    play(Fleet(), scene)


def test_it_renews_its_figures_and_shows_each_event_once() -> None:
    fleet = Fleet()

    async def scene(screen: Screen) -> None:
        await screen.until(lambda: len(screen.log()) == 1)
        busy = replace(STATUS.workloads[0], rate_rps=95.0)
        fleet.events = (EVENT, Event(2.0, "info", "apply", "shop", "new plan"))
        fleet.status = replace(STATUS, workloads=(busy, STATUS.workloads[1]))
        await screen.until(lambda: screen.cells("search")[1] == "95.0")
        await screen.until(lambda: len(screen.log()) == 2)

    play(fleet, scene)


def test_s_sorts_and_the_cursor_stays_with_its_workload() -> None:
    async def scene(screen: Screen) -> None:
        table = screen.app.query_one("#workloads", DataTable)
        assert table.cursor_row == 0
        await screen.pilot.press("s")
        await screen.until(lambda: screen.names() == ["ads", "search"])
        await screen.until(lambda: table.cursor_row == 1)
        assert "order: P99 against SLO" in screen.head()
        await screen.pilot.press(*"s" * (len(Order) - 1))
        await screen.until(lambda: screen.names() == ["search", "ads"])
        assert f"order: {Order.SPEC}" in screen.head(), "after the last order comes the first"

    play(Fleet(), scene)


def test_r_asks_names_what_moves_too_and_redirects() -> None:
    fleet = Fleet()

    async def scene(screen: Screen) -> None:
        await screen.pilot.press("down", "r")
        question = str(screen.app.screen.query_one(Static).render())
        assert "Move ads to its shadow, or back? search in the same partition would move too." in question
        await screen.pilot.press("n")
        assert fleet.redirected == []
        await screen.pilot.press("r", "y")
        await screen.until(lambda: screen.notes() == [("Redirected", "ads -> shadow")])

    play(fleet, scene)
    assert fleet.redirected == ["ads"]


def test_a_redirect_that_is_refused_says_why() -> None:
    fleet = Fleet()
    fleet.refused = InputError("has no hot shadow", field="search")

    async def scene(screen: Screen) -> None:
        await screen.pilot.press("r", "y")
        await screen.until(lambda: screen.notes() == [("Not redirected", "search: has no hot shadow")])

    play(fleet, scene)


def test_figures_stay_while_a_fleet_cannot_be_read_and_are_renewed_under_a_question() -> None:
    fleet = Fleet()

    async def scene(screen: Screen) -> None:
        fleet.broken = EngineError("the engine does not answer")
        await screen.until(lambda: "the engine does not answer" in screen.head())
        assert screen.names() == ["search", "ads"]
        fleet.broken = None
        await screen.until(lambda: "2 workloads" in screen.head())
        await screen.pilot.press("r")
        fleet.status = replace(STATUS, workloads=(replace(STATUS.workloads[0], rate_rps=95.0),))
        await screen.until(lambda: screen.names() == ["search"])
        assert screen.cells("search")[1] == "95.0"

    play(fleet, scene)


def test_e_hides_the_events_and_shows_them_again() -> None:
    async def scene(screen: Screen) -> None:
        log = screen.app.query_one("#events", RichLog)
        await screen.pilot.press("e")
        assert not log.display
        await screen.pilot.press("e")
        assert log.display

    play(Fleet(), scene)


@pytest.mark.parametrize(("key", "result"), [("q", None), ("ctrl+c", signal.SIGINT)])
def test_its_end_is_a_wish_or_an_interruption(key: str, result: signal.Signals | None) -> None:
    async def scene(screen: Screen) -> None:
        await screen.pilot.press(key)

    assert play(Fleet(), scene) is result

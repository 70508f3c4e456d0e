"""What a command does between the controller's look and its act: no real command can be timed to do it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest

from controlplane.control.desired import NamedRoute
from controlplane.control.guard_state import GuardState, Limits
from controlplane.domain.fleet import Backend, Route, Routes, Server
from controlplane.domain.observation import News
from controlplane.files.fleets import FleetFiles
from controlplane.monitor.records import Record
from controlplane.runtime.clock import SystemClock
from controlplane.runtime.controller import Adopted, Controller
from controlplane.runtime.fleet import Fleet
from controlplane.runtime.history import History

pytestmark = pytest.mark.unit

OLD = Backend("old", "127.0.0.1", 1, 2, 3)
NEW = Backend("new", "127.0.0.1", 4, 5, 6)


class Gateway:
    """Routes that another command may have replaced since."""

    def __init__(self, routes: Routes) -> None:
        self.present = dict(routes)
        self.committed: list[Routes] = []

    def routes(self) -> Routes:
        return self.present

    def commit(self, routes: Routes) -> None:
        self.committed.append(routes)


class Launcher:
    def servers(self, fleet: str) -> tuple[Server, ...]:
        return ()

    def watch(self, fleet: str) -> Launcher:
        return self

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        return ()

    def close(self) -> None:
        pass


class NoRequests:
    heard_since_s = 0.0

    def take(self) -> list[Record]:
        return []


@pytest.mark.parametrize(("found", "commits"), [(OLD, 1), (NEW, 0)])
def test_what_another_command_left_meanwhile_is_not_undone(
    tmp_path: Path, found: Backend, commits: int
) -> None:
    gateway = Gateway({"w": Route((found,), None)})
    files = FleetFiles(tmp_path, "f")
    fleet = Fleet(files, cast(Any, Launcher()), cast(Any, gateway), SystemClock(), lambda line: None)
    controller = Controller(fleet, NoRequests(), History(files.history), lambda event: None, Limits())
    try:
        # It knows the old server; its next look would route elsewhere, here to nobody.
        adopted = Adopted(
            GuardState({}), {}, {}, frozenset(), {"w": NamedRoute(("old",), None)}, {"old": OLD}
        )
        adopted.plan_mark = files.planned_s()
        controller._adopted = adopted
        controller._looked_s = float("inf")
        controller.step()
    finally:
        controller.close()
    assert len(gateway.committed) == commits
    assert (controller.state is None) == (commits == 0), "what the command left is adopted anew"

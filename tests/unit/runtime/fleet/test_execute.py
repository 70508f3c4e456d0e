"""What an apply asks of the launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from build import spec
from fake_host import GatewayInMemory

from controlplane.control.converge.actions import Actual, SetBatches, Start
from controlplane.control.converge.desired import NamedRoute
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Batches, Server, ServerSpec, ServerState
from controlplane.files.fleets import FleetFiles
from controlplane.ports import GivesWay
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet.execute import Executor, Say
from controlplane.runtime.fleet.fleet import Fleet


class Starts:
    """A launcher whose servers are ready at once; it notes which of them gave way."""

    def __init__(self) -> None:
        self.gave_way: dict[str, bool] = {}

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        self.gave_way[spec.labels.partition] = gives_way()
        return Server("1", spec, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)

    def set_batches(self, server: Server, batches: Batches) -> None:
        raise EngineError("the batch of w1 cannot be changed")


def executor(state: Path, launcher: Starts, say: Say = lambda line: None) -> Executor:
    gateway = cast(Any, GatewayInMemory())
    return Executor(Fleet(FleetFiles(state, "f"), cast(Any, launcher), gateway, SystemClock(), say))


def test_a_server_gives_way_where_its_requests_are_served_meanwhile(tmp_path: Path) -> None:
    served, first = spec("W1", models=("w1",)), spec("W2", models=("w2",))
    launcher = Starts()
    actual = Actual((), {"w1": NamedRoute(("old",))})
    executor(tmp_path, launcher).run([Start(served), Start(first)], actual)
    assert launcher.gave_way == {"W1": True, "W2": False}


def test_a_server_whose_batches_cannot_be_changed_serves_on_and_fails_no_apply(tmp_path: Path) -> None:
    running = Starts().start(spec("W1", models=("w1",)), deadline_s=1, gives_way=lambda: True)
    said: list[str] = []
    change = SetBatches(running.name, (("w1", 2),))
    executor(tmp_path, Starts(), said.append).run([change], Actual((running,), {}))
    (warning,) = (line for line in said if line.startswith("warning"))
    assert running.name in warning

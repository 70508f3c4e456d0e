"""What an apply asks of the launcher."""

from __future__ import annotations

from typing import Any, cast

from build import spec
from fake_host import GatewayInMemory

from controlplane.control.converge.actions import Actual, Start
from controlplane.control.converge.desired import NamedRoute
from controlplane.domain.fleet import Server, ServerSpec, ServerState
from controlplane.ports import GivesWay
from controlplane.runtime.fleet.execute import Executor


class Starts:
    """A launcher whose servers are ready at once; it notes which of them gave way."""

    def __init__(self) -> None:
        self.gave_way: dict[str, bool] = {}

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        self.gave_way[spec.labels.partition] = gives_way()
        return Server("1", spec, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)


def test_a_server_gives_way_where_its_requests_are_served_meanwhile() -> None:
    served, first = spec("W1", models=("w1",)), spec("W2", models=("w2",))
    launcher = Starts()
    executor = Executor(cast(Any, launcher), GatewayInMemory(), lambda *_, **__: None, say=lambda line: None)
    executor.run([Start(served), Start(first)], Actual((), {"w1": NamedRoute(("old",))}))
    assert launcher.gave_way == {"W1": True, "W2": False}

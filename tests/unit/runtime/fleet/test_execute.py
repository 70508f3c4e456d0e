"""What an apply asks of the launcher."""

from __future__ import annotations

from typing import Any, cast

from build import spec
from fake_host import GatewayInMemory

from controlplane.control.converge.actions import Actual, SetBatches, Start
from controlplane.control.converge.desired import NamedRoute
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Batches, Server, ServerSpec, ServerState
from controlplane.ports import GivesWay
from controlplane.runtime.fleet.execute import Executor


class Starts:
    """A launcher whose servers are ready at once; it notes which of them gave way."""

    def __init__(self) -> None:
        self.gave_way: dict[str, bool] = {}

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay) -> Server:
        self.gave_way[spec.labels.partition] = gives_way()
        return Server("1", spec, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)

    def set_batches(self, server: Server, batches: Batches) -> None:
        raise EngineError("the batch of w1 cannot be changed")


def nothing(*_: object, **__: object) -> None:
    pass


def test_a_server_gives_way_where_its_requests_are_served_meanwhile() -> None:
    served, first = spec("W1", models=("w1",)), spec("W2", models=("w2",))
    launcher = Starts()
    executor = Executor(
        cast(Any, launcher),
        GatewayInMemory(),
        lambda *_, **__: None,
        note=lambda *_: None,
        say=lambda line: None,
    )
    executor.run([Start(served), Start(first)], Actual((), {"w1": NamedRoute(("old",))}))
    assert launcher.gave_way == {"W1": True, "W2": False}


def test_a_server_whose_batches_cannot_be_changed_serves_on_and_fails_no_apply() -> None:
    running = Starts().start(spec("W1", models=("w1",)), deadline_s=1, gives_way=lambda: True)
    said: list[str] = []
    executor = Executor(cast(Any, Starts()), GatewayInMemory(), nothing, note=nothing, say=said.append)
    executor.run([SetBatches(running.name, (("w1", 2),))], Actual((running,), {}))
    (warning,) = (line for line in said if line.startswith("warning"))
    assert running.name in warning

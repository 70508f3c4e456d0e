"""Routes over several replicas, with real control ports and no HAProxy."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_server import in_thread

from controlplane.domain.errors import GatewayError, InputError
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, Backend, GatewayConfig, InFlight, Route, Routes
from controlplane.domain.observation import Entry
from controlplane.domain.serving import Precedence
from controlplane.gateway.replicas import control_port
from controlplane.gateway.replicas.agent import ControlServer, Replica
from controlplane.gateway.replicas.control_port import Table, monitor_stream
from controlplane.gateway.replicas.gateway import ReplicatedGateway

TOKEN = "the-token"
ONE, TWO = (Backend(f"f.p{i}.active.r", "10.0.0.1", 1000 + i, 1100 + i, 1200 + i) for i in range(2))
ROUTES: Routes = {"a": Route((ONE,), TWO), "b": Route((ONE, TWO))}


@dataclass
class FakeGateway:
    """Remembers what a replica's gateway would route."""

    committed: list[Routes] = field(default_factory=list)
    refuses: bool = False
    discounts: list[tuple[str, list[Entry] | None]] = field(default_factory=list)

    def discount(self, server: str, counters: list[Entry] | None) -> None:
        self.discounts.append((server, counters))

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        pass

    def commit(self, routes: Routes) -> None:
        if self.refuses:
            raise GatewayError("all slots are in use")
        self.committed.append(routes)

    def in_flight(self, backend: Backend) -> InFlight:
        return InFlight(1, 0, 1) if backend == ONE else NOTHING_IN_FLIGHT


class Running:
    """A replica with its control port."""

    def __init__(self, monitor: Path) -> None:
        self.gateway = FakeGateway()
        gateway: Any = self.gateway
        self.replica = Replica(gateway, GatewayConfig(), monitor)
        self.server = ControlServer(self.replica, ("127.0.0.1", 0), TOKEN)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self._serving = contextlib.ExitStack()
        self._serving.enter_context(in_thread(self.server))

    def get(self, path: str) -> int:
        return httpx.get(f"http://{self.address}{path}", trust_env=False).status_code

    def end(self) -> None:
        self._serving.close()


@pytest.fixture
def replicas(nearby: Path) -> Iterator[list[Running]]:
    made = [Running(nearby / f"monitor-{number}") for number in range(2)]
    try:
        yield made
    finally:
        for one in made:
            one.end()


def over(replicas: list[Running], token: str = TOKEN, term: int | None = None) -> ReplicatedGateway:
    return ReplicatedGateway(lambda: [one.address for one in replicas], token, term)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"generation": -1, "routes": {}}', b'{"generation": 1}'])
def test_a_malformed_document_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        control_port.TABLE.validate_json(text)


def test_a_commit_reaches_every_replica(replicas: list[Running]) -> None:
    gateway = over(replicas)
    gateway.start(GatewayConfig())
    gateway.commit(ROUTES)
    assert [one.gateway.committed for one in replicas] == [[ROUTES], [ROUTES]]
    assert over(replicas).routes() == ROUTES


def test_the_fleets_own_inferences_are_left_out_at_every_replica(replicas: list[Running]) -> None:
    gateway, counted = over(replicas), {"name": "m", "version": "1", "inference_count": 1}
    gateway.discount("s", [counted])
    replicas.pop().end()
    gateway.discount("s", None)
    assert replicas[0].gateway.discounts == [("s", [counted]), ("s", None)]


@pytest.mark.parametrize("routes", [ROUTES, {}], ids=["some", "none"])
def test_a_replica_is_ready_once_it_has_routes(replicas: list[Running], routes: Routes) -> None:
    first, second = replicas
    over([first]).commit(routes)
    assert (first.get(control_port.READY), second.get(control_port.READY)) == (200, 503)
    assert over(replicas).routes() == routes
    assert second.get(control_port.READY) == 200
    assert second.gateway.committed == [routes]


def test_the_newest_routes_win(replicas: list[Running]) -> None:
    first, second = replicas
    over([first]).commit(ROUTES)
    for routes in ({}, {"a": Route((TWO,))}):
        over([second]).commit(routes)
    assert over(replicas).routes() == {"a": Route((TWO,))}
    assert first.gateway.committed[-1] == {"a": Route((TWO,))}


def test_a_replica_that_is_gone_stops_no_commit_and_its_servers_are_busy(replicas: list[Running]) -> None:
    gone = Running(Path("none"))
    gone.end()
    gateway = over([gone, *replicas])
    gateway.commit(ROUTES)
    assert gateway.routes() == ROUTES
    assert over(replicas).in_flight(ONE) == InFlight(2, 0, 2)
    with pytest.raises(GatewayError, match="does not answer"):
        gateway.in_flight(TWO)


def test_no_replica_is_no_gateway_and_a_start_does_not_wait_for_one() -> None:
    assert over([]).routes() == {}
    with pytest.raises(GatewayError, match="no replica"):
        over([]).commit(ROUTES)
    with pytest.raises(GatewayError, match="no replica"):
        over([]).start(GatewayConfig())


def test_a_refusal_of_all_is_an_error(replicas: list[Running]) -> None:
    for one in replicas:
        one.gateway.refuses = True
    with pytest.raises(GatewayError, match="all slots are in use"):
        over(replicas).commit(ROUTES)
    assert over(replicas).routes() == {}


def test_a_wrong_token_changes_and_reads_nothing(replicas: list[Running]) -> None:
    with pytest.raises(GatewayError, match="refuses the token"):
        over(replicas, "another").commit(ROUTES)
    assert replicas[0].gateway.committed == []
    assert replicas[0].get(control_port.ROUTES) == 401
    assert monitor_stream(replicas[0].address, "another", '{"follow": true}') is None


def test_older_routes_are_refused(replicas: list[Running]) -> None:
    replica = replicas[0].replica
    assert replica.take(Table(5, dict(ROUTES)))
    assert not replica.take(Table(5, {}))
    assert replica.table == Table(5, dict(ROUTES))


def test_routes_of_an_earlier_leader_are_refused(replicas: list[Running]) -> None:
    earlier, later = over(replicas, term=1), over(replicas, term=2)
    earlier.commit(ROUTES)
    later.commit({})
    with pytest.raises(GatewayError, match="no longer leads"):
        earlier.commit(ROUTES)
    assert later.routes() == {}
    later.commit(ROUTES)
    over(replicas).commit({})  # a command goes with the present term
    assert later.routes() == {}


@pytest.mark.parametrize("others", [1, 99])
def test_a_commit_that_another_program_came_before_is_tried_again_a_few_times(
    replicas: list[Running], monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    replica, take, before = replicas[0].replica, replicas[0].replica.take, [Route((TWO,))] * others

    def taken_after_another(table: Table) -> bool:
        if before:
            take(Table(table.generation, {"another": before.pop()}))
        return take(table)

    monkeypatch.setattr(replica, "take", taken_after_another)
    gives_up = others > 1
    with pytest.raises(GatewayError, match="try again") if gives_up else contextlib.nullcontext():
        over(replicas).commit(ROUTES)
    assert replica.table.routes == ({"another": Route((TWO,))} if gives_up else ROUTES)


def test_an_order_that_replicas_would_not_keep_is_refused() -> None:
    gateway = over([])
    gateway.arrange({})
    with pytest.raises(InputError, match="rank: the plan relies on the order in which requests for a leave"):
        gateway.arrange({"a": Precedence("P", 0, 1, 1, 1)})

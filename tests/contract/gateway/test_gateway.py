"""What every Gateway promises, whatever it is made of. Servers need not run: routing is about names."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import gateway_rig as rig
import pytest
from host_ports import free_ports

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Backend, Route, Routes
from controlplane.gateway import haproxy
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.ports import Gateway

pytestmark = pytest.mark.e2e

ONE, TWO, THREE = (Backend(f"f.p{i}.active.r", rig.HOST, 1000 + i, 1100 + i, 1200 + i) for i in range(3))
Make = Callable[[], Gateway]


def _haproxy(directory: Path) -> Make:
    return lambda: HaproxyGateway(directory / "gateway")


@pytest.fixture(scope="module", params=[_haproxy])
def make(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Make, rig.Ports]]:
    ports = rig.Ports(*free_ports(3))
    made: Make = request.param(tmp_path_factory.mktemp("gateway"))
    try:
        yield made, ports
    finally:
        made().stop()


def listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((rig.HOST, port)) == 0


def test_a_gateway_from_start_to_stop(make: tuple[Make, rig.Ports], monkeypatch: pytest.MonkeyPatch) -> None:
    new, ports = make
    # A facade that the host holds up for a second is waited for, and no error.
    monkeypatch.setattr(haproxy, "_OPEN_DEADLINE_S", 60.0)
    gateway = new()
    assert gateway.routes() == {}
    with pytest.raises(GatewayError):
        gateway.commit({"a": Route((ONE,))})

    gateway.start(rig.options(ports))
    gateway.start(rig.options(ports))
    assert all(listening(port) for port in (ports.http, ports.grpc, ports.metrics))
    assert gateway.routes() == {}

    # Exactly what was committed is routed, and every other object sees it.
    steps: list[Routes] = [
        {"a": Route((ONE,))},
        {"a": Route((ONE,), TWO), "b": Route((ONE, TWO))},
        {"a": Route((TWO,), ONE), "b": Route((ONE, TWO)), "c": Route((THREE,))},
        {"c": Route((THREE,))},
        {f"m{i}": Route((ONE,)) for i in range(40)},
        {f"m{i}": Route((TWO,)) for i in range(40)},
        {},
    ]
    for routes in steps:
        gateway.commit(routes)
        assert gateway.routes() == routes
        assert new().routes() == routes
        gateway.commit(routes)

    # What cannot be routed changes nothing.
    gateway.commit({"a": Route((ONE,))})
    for bad in ({"a": Route(())}, {"a": Route((TWO,)), "b c": Route((ONE,))}):
        with pytest.raises(GatewayError):
            gateway.commit(bad)
        assert gateway.routes() == {"a": Route((ONE,))}

    assert gateway.in_flight(ONE).total == gateway.in_flight(THREE).total == 0

    # Commits from several places at once are put in order: one of them is the last.
    choices: list[Routes] = [{"a": Route((ONE,)), f"x{i}": Route((TWO,))} for i in range(4)]
    threads = [threading.Thread(target=new().commit, args=(routes,)) for routes in choices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gateway.routes() in choices

    gateway.stop()
    gateway.stop()
    assert not any(listening(port) for port in (ports.http, ports.grpc, ports.metrics))
    assert gateway.routes() == {}


def test_a_gateway_that_was_stopped_starts_empty(make: tuple[Make, rig.Ports]) -> None:
    new, ports = make
    new().start(rig.options(ports))
    new().commit({"a": Route((ONE,))})
    new().stop()
    new().start(rig.options(ports))
    assert new().routes() == {}
    new().stop()

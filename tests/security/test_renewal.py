"""Tokens and certificates that change under open connections."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self

import gateway_rig as rig
from background import meanwhile, until
from gateway_clients import BODY, inference
from tls_network import INFER, Code, Network, status_of

from controlplane.files.gateway.access import Client


class Callers:
    """A client's calls of `first` over connections that are kept, and over new ones."""

    def __init__(self, network: Network, token: str) -> None:
        self._network = network
        self._token = token
        self._kept = http.client.HTTPSConnection(
            rig.HOST, network.ports.http, timeout=60, context=network.context()
        )
        self._channel = network.channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()
        self._channel.close()

    def calls(self) -> dict[str, Callable[[], object]]:
        """Each returns HTTP's status or gRPC's code."""
        return {
            "HTTP, kept": self._over_http,
            "HTTP, new": lambda: self._network.http("POST", INFER, self._token, body=BODY)[0],
            "gRPC, kept": self._over_grpc,
            "gRPC, new": lambda: self._network.grpc("ModelInfer", inference("first"), self._token),
        }

    def _over_http(self) -> int:
        self._kept.request("POST", INFER, BODY, {"Authorization": f"Bearer {self._token}"})
        answer = self._kept.getresponse()
        answer.read()
        return answer.status

    def _over_grpc(self) -> Code:
        return status_of(self._channel, "ModelInfer", inference("first"), self._token)


def outcomes(callers: Callers) -> dict[str, object]:
    return {name: call() for name, call in callers.calls().items()}


@contextlib.contextmanager
def calling(callers: Callers) -> Iterator[dict[str, list[object]]]:
    """Each of a client's calls again and again, inside the context; yields their outcomes."""
    found: dict[str, list[object]] = {name: [] for name in callers.calls()}

    def run(name: str, call: Callable[[], object], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                found[name].append(call())
            except (OSError, http.client.HTTPException) as error:
                found[name].append(repr(error))

    with meanwhile(*(partial(run, *one) for one in callers.calls().items())):
        yield found


def test_tokens_come_and_go_and_certificates_are_renewed_without_a_lost_request(
    network: Network, token: str
) -> None:
    def served(port: int) -> str:
        with (
            socket.create_connection((rig.HOST, port), 60) as plain,
            network.context().wrap_socket(plain, server_hostname=rig.HOST) as secure,
        ):
            return str(secure.getpeercert())

    with Callers(network, token) as entitled, calling(entitled) as found:
        for turn in range(5):
            before = served(network.ports.http)
            given = network.clients.create(Client(f"guest-{turn}", ("first",)))
            assert given is not None
            with Callers(network, given) as guest:
                assert set(outcomes(guest).values()) == {200, Code.OK}, "at once"
                network.authority.sign("gateway", into=network.server)
                network.gateway.start(rig.options(network.ports, protection=network.protection))
                for port in (network.ports.http, network.ports.grpc, network.ports.metrics):
                    until(lambda port=port, before=before: served(port) != before)  # type: ignore[misc]
                assert set(outcomes(guest).values()) == {200, Code.OK}
                network.clients.revoke(f"guest-{turn}")
                assert set(outcomes(guest).values()) == {401, Code.UNAUTHENTICATED}, "from the next call on"
    assert {name: set(each) for name, each in found.items()} == {
        "HTTP, kept": {200},
        "HTTP, new": {200},
        "gRPC, kept": {Code.OK},
        "gRPC, new": {Code.OK},
    }

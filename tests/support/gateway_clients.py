"""What tests of the gateway's clients share: raw HTTP, tensors, streams taken singly, the log of requests."""

import contextlib
import queue
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import gateway_rig as rig
import numpy as np
import pytest
from background import until
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from controlplane.domain.fleet import Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.monitor.client import RequestLog, local
from controlplane.monitor.records import Record

SERVICE = "/inference.GRPCInferenceService/"
BODY = b'{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1], "data": [5]}]}'
_PAUSE_S = 0.002


def http_call(
    address: str,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    token: str | None = None,
    context: ssl.SSLContext | None = None,
    **more: Any,
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers in lower case, on a connection of its own; over TLS with a context."""
    connection = (
        HTTPConnection(address, timeout=60)
        if context is None
        else HTTPSConnection(address, timeout=60, context=context)
    )
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    with contextlib.closing(connection):
        connection.request(method, path, body, {**bearer, **(headers or {})}, **more)
        answer = connection.getresponse()
        return answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()}


def connected(address: str, timeout_s: float = 60.0, source: str = rig.HOST) -> socket.socket:
    """A raw connection, which may come from another address of the host."""
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout_s, (source, 0))


def sent(address: str, request: bytes, pause_at: int | None = None, answer_s: float = 0.05) -> bytes:
    """All that comes back until the connection ends. Raises TimeoutError for a hang.

    A whole request is answered within `answer_s`.
    After the pause, an intermediary may have passed on the first part already.
    """
    found = b""
    with connected(address) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(request[:pause_at])
        if pause_at is not None:
            time.sleep(_PAUSE_S)
            connection.sendall(request[pause_at:])
        # A client that closes its side has left. What is not answered by then may be half a request.
        select.select([connection], [], [], answer_s)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            found += part
    return found


@dataclass(frozen=True)
class Target:
    """Where a client is pointed, and the folder of the model `slow` behind it (`gateway_rig.noted`)."""

    http: str
    grpc: str
    slow: Path

    def raw(self, method: str, path: str, *what: Any, **how: Any) -> tuple[int, bytes, dict[str, str]]:
        """`http_call` of it."""
        return http_call(self.http, method, path, *what, **how)


@dataclass(frozen=True)
class Served:
    """A gateway in front of one Triton."""

    gateway: HaproxyGateway
    ports: rig.Ports
    places: GatewayPaths
    triton: rig.Triton

    @property
    def target(self) -> Target:
        http, grpc = (f"{rig.HOST}:{port}" for port in (self.ports.http, self.ports.grpc))
        return Target(http, grpc, self.triton.slow)


@contextlib.contextmanager
def served(here: Path, models: Mapping[str, str], **options: Any) -> Iterator[Served]:
    """A gateway with these options that leads to a Triton with these models."""
    with rig.tritons(here, one=models) as running, rig.a_gateway(here, **options) as (gateway, ports):
        gateway.commit({name: Route((running["one"].backend,)) for name in models})
        yield Served(gateway, ports, GatewayPaths.of(here / "gateway"), running["one"])


@contextlib.contextmanager
def request_log(gateway: HaproxyGateway) -> Iterator[RequestLog]:
    """The gateway's log from now on: until the first line has been received."""
    log = RequestLog(partial(local, gateway.telemetry_socket))
    try:
        until(lambda: not log.take() and log.heard_since_s < time.monotonic() - rig.NOTICED_S)
        yield log
    finally:
        log.close()


def taken(log: RequestLog, count: int) -> list[Record]:
    """The next lines of a log, as many."""
    found: list[Record] = []
    until(lambda: len(found.extend(log.take()) or found) == count)
    return found


def inference(endpoint: str, value: float = 5.0, *, count: int = 1, name: str = "") -> bytes:
    """An inference's message for gRPC."""
    request = service_pb2.ModelInferRequest(model_name=endpoint, id=name)
    tensor = request.inputs.add(name="INPUT", datatype="FP32", shape=[count])
    tensor.contents.fp32_contents.extend([value] * count)
    return bytes(request.SerializeToString())


def tensor(module: Any, values: np.ndarray[Any, Any], datatype: str = "FP32", **how: Any) -> list[Any]:
    """The inputs of a model with one input."""
    made = module.InferInput("INPUT", list(values.shape), datatype)
    made.set_data_from_numpy(values, **how)
    return [made]


def floats(*values: float) -> np.ndarray[Any, Any]:
    """A vector."""
    return np.array(values, dtype=np.float32)


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """Status and words of a call that must fail."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    return str(caught.value.status()), str(caught.value.message())


class Talk:
    """A stream whose answers are taken one by one."""

    def __init__(self, client: Any, **how: Any) -> None:
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client = client
        client.start_stream(lambda result, error: self.answers.put((result, error)), **how)

    def take(self) -> Any:
        """The next answer, which must be no error."""
        result, error = self.answers.get(timeout=60)
        assert error is None, error
        return result

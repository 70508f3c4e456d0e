"""What one client can take from the others: time, memory, connections."""

import contextlib
import http.client
import select
import time
from collections.abc import Iterator

import pytest
from gateway_clients import Served, Target, connected, served
from raw_http2 import call

from controlplane.files.gateway import read_settings
from controlplane.gateway import store
from controlplane.render.haproxy import LARGEST_BODY_BYTES

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
BODY = b'{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [2], "data": [5, 6]}]}'
INFER = "/v2/models/echo/infer"
BEGUN = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n".encode()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("limits"), {"echo": "echo"}) as made:
        yield made


@pytest.fixture
def target(made: Served) -> Target:
    return made.target


def test_a_connection_that_does_not_say_what_it_wants_is_closed(target: Target) -> None:
    begun = {
        "silent HTTP": (target.http, b""),
        "half a header": (target.http, b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nX-"),
        "silent gRPC": (target.grpc, b""),
        "no call": (target.grpc, PREFACE),
        "half a frame": (target.grpc, PREFACE + b"\x00\x00\x40\x01\x04\x00\x00\x00\x01\x00"),
    }
    with contextlib.ExitStack() as opened:
        waiting = {}
        for name, (address, sent) in begun.items():
            connection = opened.enter_context(connected(address))
            connection.sendall(sent)
            waiting[connection] = name
        deadline = time.monotonic() + 60
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], deadline - time.monotonic())
            assert ready, f"still open after a minute: {sorted(waiting.values())}"
            for connection in ready:
                with contextlib.suppress(ConnectionError):
                    if connection.recv(4096):
                        continue
                del waiting[connection]


def test_a_body_that_is_announced_too_large_is_refused_unread(target: Target) -> None:
    connection = http.client.HTTPConnection(target.http, timeout=60)
    try:
        connection.putrequest("POST", INFER)
        connection.putheader("Content-Length", str(LARGEST_BODY_BYTES + 1))
        connection.endheaders()
        assert connection.getresponse().status == 413
    finally:
        connection.close()


@pytest.mark.parametrize("length", [2**30, 2**32 - 1])
def test_a_message_that_is_announced_too_large_is_refused_unread(target: Target, length: int) -> None:
    begin = b"\x00" + length.to_bytes(4, "big") + b"\x0a\x04echo" + bytes(2000)
    assert call(target.grpc, "ModelInfer", begin) is None


def test_a_body_of_unknown_length_is_counted_and_served(target: Target) -> None:
    parts = (BODY[at : at + 10] for at in range(0, len(BODY), 10))
    status, answer, _ = target.raw("POST", INFER, parts, encode_chunked=True)
    assert (status, b"OUTPUT" in answer) == (200, True)


def test_one_source_leaves_connections_to_the_others(made: Served) -> None:
    places, target = made.places, made.target
    settings = read_settings(places.settings)
    limit = store.maxconn(20_000, settings) // 2
    with contextlib.ExitStack() as opened:
        for _ in range(limit):
            connection = opened.enter_context(connected(target.http, source="127.0.0.2"))
            # One that says nothing would be closed before a slow host has opened them all.
            connection.sendall(BEGUN)
        assert _refused(target.http, source="127.0.0.2")
        status, _, _ = target.raw("POST", INFER, BODY)
        assert status == 200


def _refused(address: str, source: str) -> bool:
    try:
        with connected(address, source=source) as connection:
            return connection.recv(1) == b""
    except ConnectionResetError:
        return True

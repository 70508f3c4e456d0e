from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.triton.client import TritonClient


class Closing(BaseHTTPRequestHandler):
    """Answers GET /v2, anything else with 400, and closes the connection without a word of it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = self.path == "/v2"
        body = b'{"version": "2.51.0"}' if known else b"no such model"
        self.send_response(200 if known else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def server_at(port: int) -> Server:
    spec = ServerSpec(Labels("f", "plan", "a", Role.ACTIVE, "r"), "/models", ("m",), "cpu-0", 10.0)
    return Server("1", spec, ServerState.RUNNING, "127.0.0.1", port, 0, 0)


@pytest.fixture
def client() -> Iterator[TritonClient]:
    listening = HTTPServer(("127.0.0.1", 0), Closing)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    with TritonClient(server_at(listening.server_port)) as found:
        yield found
    listening.shutdown()
    listening.server_close()
    thread.join()


def test_a_connection_that_the_server_has_closed_is_opened_again(client: TritonClient) -> None:
    assert [client.version() for _ in range(3)] == ["2.51.0"] * 3


def test_a_refusal_is_an_error_with_the_servers_reason(client: TritonClient) -> None:
    with pytest.raises(EngineError, match="no such model"):
        client.statistics("m")
    assert client.version() == "2.51.0"


def test_a_server_that_is_gone_is_an_error() -> None:
    with TritonClient(server_at(1)) as gone, pytest.raises(EngineError, match="refused"):
        gone.version()

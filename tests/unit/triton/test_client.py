from collections.abc import Iterator

import pytest
from http_server import Quiet, serving

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.triton.client import TritonClient


class Closing(Quiet):
    """Answers GET /v2, anything else with 400, and closes the connection without a word of it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = self.path == "/v2"
        body = b'{"version": "2.51.0"}' if known else b"no such model"
        self.answer(body, 200 if known else 400)
        self.close_connection = True


def server_at(port: int) -> Server:
    spec = ServerSpec(Labels("f", "plan", "a", Role.ACTIVE, "r"), "/models", ("m",), "cpu-0", 10.0)
    return Server("1", spec, ServerState.RUNNING, "127.0.0.1", port, 0, 0)


@pytest.fixture
def client() -> Iterator[TritonClient]:
    with serving(Closing) as port, TritonClient(server_at(port)) as found:
        yield found


def test_a_connection_that_the_server_has_closed_is_opened_again(client: TritonClient) -> None:
    assert [client.version() for _ in range(3)] == ["2.51.0"] * 3


def test_a_refusal_is_an_error_with_the_servers_reason(client: TritonClient) -> None:
    with pytest.raises(EngineError, match="no such model"):
        client.statistics("m")
    assert client.version() == "2.51.0"


def test_a_server_that_is_gone_is_an_error() -> None:
    with TritonClient(server_at(1)) as gone, pytest.raises(EngineError, match="refused"):
        gone.version()

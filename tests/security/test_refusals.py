"""What a refused client sees: an answer with its status, while it still sends a large body."""

import collections
import contextlib
import http.client
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, cast

import gateway_rig as rig
import grpc
import httpx
import pytest
from background import until
from gateway_clients import SERVICE, http_call, inference, served
from raw_http2 import call, frame_of

from controlplane.domain.fleet import AccessConfig
from controlplane.files.gateway.access import Client, Limit
from controlplane.gateway.security.registry import ClientRegistry

TRIES = int(os.environ.get("TRISECT_TRIES", "10"))
LARGE = 5_000_000
Code = grpc.StatusCode


@dataclass(frozen=True)
class Refusal:
    """A request that is refused, and how."""

    status: int
    code: Code
    client: str | None
    endpoint: str = "echo"
    header: str = ""


REFUSALS = {
    "unknown client": Refusal(401, Code.UNAUTHENTICATED, None),
    "endpoint that is not granted": Refusal(403, Code.PERMISSION_DENIED, "plain", "other"),
    "body beyond the client's limit": Refusal(413, Code.RESOURCE_EXHAUSTED, "small"),
    "client beyond its limit": Refusal(429, Code.RESOURCE_EXHAUSTED, "busy"),
    "long header": Refusal(431, Code.RESOURCE_EXHAUSTED, "plain", header="a" * 9000),
}
CLIENTS = {
    "plain": Limit(),
    "small": Limit(max_body_bytes=1000),
    "busy": Limit(max_requests=1),
}


@dataclass(frozen=True)
class Guarded:
    ports: rig.Ports
    triton: rig.Triton
    tokens: dict[str | None, str]

    @property
    def url(self) -> str:
        return f"http://{rig.HOST}:{self.ports.http}"

    def headers(self, refusal: Refusal) -> dict[str, str]:
        token = self.tokens.get(refusal.client)
        long = {"x-long": refusal.header} if refusal.header else {}
        return long if token is None else {"authorization": f"Bearer {token}", **long}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    here = tmp_path_factory.mktemp("refused")
    models = {"echo": "echo", "other": "echo", "slow": "slow"}
    with served(here, models, protection=AccessConfig(tokens=True)) as made:
        registry = ClientRegistry(made.places.state)
        tokens: dict[str | None, str] = {}
        for name, limit in CLIENTS.items():
            token = registry.create(Client(name, ("echo", "slow"), **asdict(limit)))
            assert token is not None
            tokens[name] = token
        yield Guarded(made.ports, made.triton, tokens)


@pytest.fixture(scope="module")
def busy(guarded: Guarded) -> Iterator[None]:
    """The client of this name has a request under way."""
    metadata = [("authorization", f"Bearer {guarded.tokens['busy']}")]
    with (
        grpc.insecure_channel(f"{rig.HOST}:{guarded.ports.grpc}") as channel,
        rig.held(guarded.triton),
    ):
        begun = rig.noted(guarded.triton.slow, "begun")
        method = channel.unary_unary(f"{SERVICE}ModelInfer")
        under_way = method.future(inference("slow", rig.HELD), metadata=metadata)
        until(lambda: rig.noted(guarded.triton.slow, "begun") > begun)
        yield
    del under_way


def over_http_client(url: str, headers: dict[str, str], size: int) -> int:
    address, _, path = url.removeprefix("http://").partition("/")
    return http_call(address, "POST", f"/{path}", b"x" * size, headers)[0]


def over_httpx(url: str, headers: dict[str, str], size: int) -> int:
    with httpx.Client(http1=False, http2=True, timeout=60) as client:
        return client.post(url, content=b"x" * size, headers=headers).status_code


def over_curl(*options: str) -> Callable[[str, dict[str, str], int], str]:
    def post(url: str, headers: dict[str, str], size: int) -> str:
        given = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
        command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", "@-", *options]
        done = subprocess.run(
            [*command, *given, url], input=b"x" * size, capture_output=True, timeout=60, check=False
        )
        return (done.stdout + done.stderr).decode()

    return post


HTTP: dict[str, Callable[[str, dict[str, str], int], object]] = {
    "http.client": over_http_client,
    "httpx, HTTP/2": over_httpx,
    "curl": over_curl(),
    "curl without Expect": over_curl("-H", "Expect:"),
    "curl, HTTP/2": over_curl("--http2-prior-knowledge"),
}


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("client", HTTP)
@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("size", [3_000, LARGE])
def test_a_refused_client_reads_its_status_over_http(
    guarded: Guarded, client: str, why: str, size: int
) -> None:
    refusal = REFUSALS[why]
    seen: collections.Counter[object] = collections.Counter()
    for _ in range(TRIES):
        url = f"{guarded.url}/v2/models/{refusal.endpoint}/infer"
        try:
            seen[str(HTTP[client](url, guarded.headers(refusal), size))] += 1
        except (OSError, httpx.HTTPError, http.client.HTTPException) as error:
            seen[type(error).__name__] += 1
    assert seen == {str(refusal.status): TRIES}


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("size", [2_000, LARGE])
def test_a_refused_client_reads_its_status_over_grpc(
    guarded: Guarded, streamed: bool, why: str, size: int
) -> None:
    refusal = REFUSALS[why]
    if streamed and refusal.status in (403, 413):
        return  # of a stream, each message is checked, by the facade
    seen: collections.Counter[object] = collections.Counter()
    for _ in range(TRIES):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"{rig.HOST}:{guarded.ports.grpc}", options) as channel:
            given = list(guarded.headers(refusal).items())
            body = inference(refusal.endpoint, name="x" * size)
            try:
                if streamed:
                    method = channel.stream_stream(f"{SERVICE}ModelStreamInfer")
                    next(method(iter([body]), timeout=60, metadata=given))
                else:
                    channel.unary_unary(f"{SERVICE}ModelInfer")(body, timeout=60, metadata=given)
            except grpc.RpcError as error:
                seen[cast(Any, error).code()] += 1
    assert seen == {refusal.code: TRIES}


def test_a_client_that_expects_to_be_asked_sends_no_refused_body(guarded: Guarded) -> None:
    with socket.create_connection((rig.HOST, guarded.ports.http), 60) as connection:
        head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n"
        connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_long_target_is_refused_and_the_longest_is_served(guarded: Guarded) -> None:
    headers = guarded.headers(REFUSALS["endpoint that is not granted"])
    path = f"{guarded.url}/v2/models/echo/ready?"
    statuses = {}
    for length in (8170, 8180, 9_000):
        target = path.removeprefix(guarded.url)
        statuses[length] = httpx.get(path + "a" * (length - len(target)), headers=headers).status_code
    assert statuses == {8170: 200, 8180: 200, 9_000: 414}


@pytest.mark.parametrize("count", [1, 3])
def test_headers_up_to_the_limit_reach_the_server(guarded: Guarded, count: int) -> None:
    headers = guarded.headers(REFUSALS["endpoint that is not granted"])
    url = f"{guarded.url}/v2/models/echo/ready"
    for length, status in ((8_180, 200), (8_200, 431)):
        more = {f"x-{number}": "a" * length for number in range(count)}
        assert httpx.get(url, headers={**headers, **more}).status_code == status
    # So long that HAProxy cannot read them.
    assert httpx.get(url, headers={"x-a": "a" * 60_000}).status_code in (400, 431)


def test_metadata_up_to_the_limit_reaches_the_server(guarded: Guarded) -> None:
    token = ("authorization", f"Bearer {guarded.tokens['plain']}")
    seen = {}
    for length in (7_500, 8_200, 20_000, 29_000):
        with grpc.insecure_channel(f"{rig.HOST}:{guarded.ports.grpc}") as channel:
            method = channel.unary_unary(f"{SERVICE}ModelInfer")
            try:
                method(inference("echo"), timeout=60, metadata=[token, ("x-long", "a" * length)])
                seen[length] = Code.OK
            except grpc.RpcError as error:
                seen[length] = cast(Any, error).code()
    exhausted = Code.RESOURCE_EXHAUSTED
    assert seen == {7_500: Code.OK, 8_200: exhausted, 20_000: exhausted, 29_000: exhausted}


def test_refused_requests_that_never_end_leave_others_alone(guarded: Guarded) -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx"
    with contextlib.ExitStack() as opened:
        for _ in range(1_100):
            connection = opened.enter_context(socket.create_connection((rig.HOST, guarded.ports.http), 60))
            connection.sendall(head)
            assert connection.recv(4096).split()[1] in (b"401", b"429")
        assert call(f"{rig.HOST}:{guarded.ports.grpc}", "ModelInfer", frame_of(inference("echo"))) is None
        headers = guarded.headers(REFUSALS["endpoint that is not granted"])
        assert httpx.get(f"{guarded.url}/v2/models/echo/ready", headers=headers).status_code == 200

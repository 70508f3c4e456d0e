"""Mutated HTTP requests on raw sockets: no crash, no hang, no wrong server, well-formed answers."""

import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

import gateway_rig as rig
import mutations
import pytest
from gateway_clients import BODY, connected, sent
from mutations import Corpus

from controlplane.domain.fleet import Route
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes

SERVER_OF = {"first": "left", "second": "right"}
MODELS = dict.fromkeys(SERVER_OF, "echo")
CASES = [
    1000,
    pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(6 * 3600)]),
]


@dataclass(frozen=True)
class Fuzzed:
    http: str
    directory: Path
    tritons: dict[str, rig.Triton]

    def alive(self) -> tuple[object, ...]:
        """All processes of the gateway, and the servers' exit codes."""
        places = GatewayPaths.of(self.directory / "gateway")
        found = tuple(processes.find(places, role) for role in processes.ALL)
        return (*found, *(triton.process.poll() for triton in self.tritons.values()))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    here = tmp_path_factory.mktemp("fuzzed")
    with (
        rig.tritons(here, left=MODELS, right=MODELS) as running,
        rig.a_gateway(here, fleet_wide_calls=False) as (gateway, ports),
    ):
        gateway.commit({name: Route((running[server].backend,)) for name, server in SERVER_OF.items()})
        rig.only(GatewayPaths.of(here / "gateway"), processes.HAPROXY)  # a first one may have been replaced
        yield Fuzzed(f"{rig.HOST}:{ports.http}", here, running)


@pytest.fixture(autouse=True)
def unharmed(fuzzed: Fuzzed) -> Iterator[None]:
    """No process has ended, and honest requests are answered by the right server."""
    before = fuzzed.alive()
    yield
    assert fuzzed.alive() == before
    for name, server in SERVER_OF.items():
        head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
        ((status, body),) = _answers_of(sent(fuzzed.http, head.encode() + BODY, answer_s=60.0))
        assert status == 200
        assert _served(body) == (name, server)


@pytest.mark.parametrize("cases", CASES)
def test_mutated_http_requests_end_in_well_formed_answers(fuzzed: Fuzzed, cases: int) -> None:
    corpus = Corpus(random.Random(5), list(_requests()))
    for _ in range(cases):
        request = mutations.text(corpus.chance, corpus.choose(), corpus.inputs)
        pause_at = corpus.chance.choice([None, corpus.chance.randrange(len(request) + 1)])
        try:
            found = _answers_of(sent(fuzzed.http, request, pause_at))
        except TimeoutError:
            pytest.fail(f"no answer to {request!r}, sent with a pause at {pause_at}")
        for status, body in found:
            if status == 200 and b'"model_name"' in body:
                assert _served(body) in SERVER_OF.items(), request
                name = _served(body)[0]
                assert name.encode() in unquote_to_bytes(request), request
        corpus.learn(request, tuple((status, body[:20]) for status, body in found))


@pytest.mark.parametrize("trailer", [b"Con<tent: 5", b"Content-Length: 5"])
def test_malformed_trailers_of_a_request_are_refused_at_once(fuzzed: Fuzzed, trailer: bytes) -> None:
    head = b"POST /v2/models/first/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    with connected(fuzzed.http, 20) as connection:
        connection.sendall(head + b"Expect: 100-continue\r\n\r\n")
        # Once the request's head is processed.
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(BODY), BODY, trailer))
        assert connection.recv(1000).split()[1] == b"400"


def _requests() -> Iterator[bytes]:
    paths = ("/infer", "/versions/1/infer", "/generate", "/ready", "/stats")
    for name, path in itertools.product(SERVER_OF, paths):
        method, body = ("POST", BODY) if "infer" in path or "generate" in path else ("GET", b"")
        head = f"{method} /v2/models/{name}{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        yield head.encode() + body
    chunked = b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    yield b"POST /v2/models/first/infer HTTP/1.1\r\n" + chunked
    for path in ("/v2", "/v2/health/ready", "/v2/models/stats", "/v2/repository/index"):
        yield f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def _answers_of(found: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer; every byte belongs to one."""
    read = []
    while found:
        head, _, found = found.partition(b"\r\n\r\n")
        opening, *lines = head.split(b"\r\n")
        status = re.fullmatch(rb"HTTP/1\.[01] (\d{3}) [ -~]*", opening)
        assert status is not None, head[:200]
        headers = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            assert colon
            assert re.fullmatch(rb"[A-Za-z0-9-]+", name), head[:200]
            headers[name.lower()] = value.strip()
        body, found = _body_of(headers, found)
        if headers.get(b"content-type", b"").startswith(b"application/json") and body:
            # A Triton repeats bytes of the request in its errors as they are.
            json.loads(body.decode("latin1"), strict=False)
        read.append((int(status[1]), body))
    return read


def _body_of(headers: dict[bytes, bytes], found: bytes) -> tuple[bytes, bytes]:
    if (length := headers.get(b"content-length")) is not None:
        # The answer to HEAD has the length of the body that it leaves out.
        return found[: int(length)], found[int(length) :]
    if headers.get(b"transfer-encoding") != b"chunked":
        return found, b""
    body = b""
    while True:
        size, _, found = found.partition(b"\r\n")
        if int(size, 16) == 0:
            return body, found.removeprefix(b"\r\n")
        body += found[: int(size, 16)]
        assert found[int(size, 16) :][:2] == b"\r\n"
        found = found[int(size, 16) + 2 :]


def _served(body: bytes) -> tuple[str, str]:
    """Model and server; tensors may follow the JSON as bytes."""
    answer, end = json.JSONDecoder().raw_decode(body.decode("latin1"))
    outputs = {one["name"]: one["data"][0] for one in answer.get("outputs", ()) if one.get("data")}
    if end < len(body):
        outputs["SERVER"] = re.sub(rb"[^a-z]", b"", body[end:])[-5:].decode().removeprefix("t")
    return answer["model_name"], outputs.get("SERVER", answer.get("SERVER"))

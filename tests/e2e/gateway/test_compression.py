"""Servers neither compress nor decompress: the gateway does it, or answers uncompressed."""

import contextlib
import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gateway_rig as rig
import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as tg
import tritonclient.http as th
from background import running, until
from gateway_clients import SERVICE, Talk, Target, floats, refusal, tensor
from host_ports import free_ports

from controlplane.domain.fleet import Backend, Route
from controlplane.gateway.facade.bodies import LARGEST_BYTES

BODY = b'{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [2], "data": [5, 6]}]}'
_MEMBER = gzip.compress(bytes(2**20))
BOMB = _MEMBER * (LARGEST_BYTES // 2**20 + 1)
VALUES = np.arange(50_000, dtype=np.float32)
_RULES = """
  http-request set-var(txn.path) path
  http-request set-var(txn.http) req.fhdr(accept-encoding)
  http-request set-var(txn.used) req.fhdr(content-encoding)
  http-request set-var(txn.grpc) req.fhdr(grpc-accept-encoding)
"""
_CONFIG = """
global
  log stdout format raw local0
defaults
  mode http
  log global
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  log-format "%[var(txn.path)] %[var(txn.http)] %[var(txn.used)] %[var(txn.grpc)] %[var(txn.flag)]"
frontend http
  bind {host}:{http}
  {rules}
  default_backend http
frontend grpc
  bind {host}:{grpc} proto h2
  {rules}
  http-request wait-for-body time 10s at-least 5
  http-request set-var(txn.flag) req.body,bytes(0,1),hex
  default_backend grpc
backend http
  server triton {host}:{triton.http_port}
backend grpc
  server triton {host}:{triton.grpc_port} proto h2
"""


@dataclass(frozen=True)
class Seen:
    """What one inference request said of encodings; "-" where it did not.

    `flag` is the first byte of a gRPC call's first message: "01" where it is compressed.
    """

    accepted: str
    used: str
    grpc_accepted: str
    flag: str


@dataclass(frozen=True)
class HeaderLog:
    """The address that stands for the Triton, and what came over it."""

    backend: Backend
    path: Path

    def inferences(self, count: int) -> list[Seen]:
        """All inference requests so far, once there are `count`."""
        until(lambda: len(self._seen()) >= count)
        return self._seen()

    def _seen(self) -> list[Seen]:
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [Seen(*rest) for path, *rest in lines if path.endswith(("nfer", "/generate"))]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((rig.HOST, port)) == 0


@contextlib.contextmanager
def header_log(directory: Path, triton: rig.Triton) -> Iterator[HeaderLog]:
    """A HAProxy in front of a Triton that logs which encodings requests accept and use."""
    http, grpc = free_ports(2)
    config, log = directory / "header_log.cfg", directory / "header_log.txt"
    config.write_text(_CONFIG.format(host=rig.HOST, rules=_RULES, http=http, grpc=grpc, triton=triton))
    with log.open("wb") as out, running(["/usr/sbin/haproxy", "-db", "-f", str(config)], stdout=out):
        until(lambda: all(map(_listens, (http, grpc))))
        yield HeaderLog(Backend(triton.name, rig.HOST, http, grpc, triton.metrics_port), log)


UNENCODED = [Seen("-", "-", "-", "-"), Seen("-", "-", "-", "00"), Seen("-", "-", "identity", "00")]
"""HTTP, gRPC through HAProxy, gRPC through the facade, whose channel always sends the header."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeaderLog]:
    """A Triton that would compress every gRPC answer for a client that accepts it."""
    here = tmp_path_factory.mktemp("tritons")
    models = {"echo": "echo", "repeat": "repeat", "total": "total"}
    flags = ("--grpc-infer-response-compression-level=high",)
    with rig.tritons(here, flags, one=models) as running, header_log(here, running["one"]) as made:
        yield made


def _target(directory: Path, log: HeaderLog, *, compress_answers: bool) -> Iterator[Target]:
    with rig.a_gateway(directory, compress_answers=compress_answers) as (gateway, ports):
        dead = Backend("dead", rig.HOST, *free_ports(3))
        gateway.commit(
            {
                **{name: Route((log.backend,)) for name in ("echo", "repeat", "total")},
                "lame": Route((dead,), backup=log.backend),
            }
        )
        yield Target(f"{rig.HOST}:{ports.http}", f"{rig.HOST}:{ports.grpc}", directory)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, log: HeaderLog) -> Iterator[Target]:
    """A gateway as it is by default."""
    yield from _target(tmp_path_factory.mktemp("plain"), log, compress_answers=False)


@pytest.fixture(scope="module")
def compressing(tmp_path_factory: pytest.TempPathFactory, log: HeaderLog) -> Iterator[Target]:
    """A gateway that compresses answers."""
    yield from _target(tmp_path_factory.mktemp("compressing"), log, compress_answers=True)


def with_requests(target: Target) -> np.ndarray[Any, Any]:
    answer = requests.post(f"http://{target.http}/v2/models/echo/infer", _json(VALUES), timeout=60)
    return np.array(answer.json()["outputs"][0]["data"], dtype=np.float32)


def with_http(target: Target, **how: Any) -> np.ndarray[Any, Any]:
    with th.InferenceServerClient(target.http) as client:
        found: np.ndarray[Any, Any] = client.infer("echo", tensor(th, VALUES), **how).as_numpy("OUTPUT")
        return found


def with_grpc(target: Target, algorithm: str | None) -> np.ndarray[Any, Any]:
    with tg.InferenceServerClient(target.grpc) as client:
        result = client.infer("echo", tensor(tg, VALUES), compression_algorithm=algorithm)
        found: np.ndarray[Any, Any] = result.as_numpy("OUTPUT")
        return found


def with_stream(target: Target, algorithm: str | None) -> np.ndarray[Any, Any]:
    with tg.InferenceServerClient(target.grpc) as client:
        talk = Talk(client, compression_algorithm=algorithm)
        client.async_stream_infer("echo", tensor(tg, VALUES))
        found: np.ndarray[Any, Any] = talk.take().as_numpy("OUTPUT")
        client.stop_stream()
        return found


_BOTH = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}
CLIENTS: dict[str, Callable[[Target], np.ndarray[Any, Any]]] = {
    "requests": with_requests,
    "tritonclient.http": with_http,
    "tritonclient.http, answers": lambda t: with_http(t, response_compression_algorithm="deflate"),
    "tritonclient.http, gzip": lambda t: with_http(t, **_BOTH),
    "tritonclient.http, deflate": lambda t: with_http(t, request_compression_algorithm="deflate"),
    "tritonclient.grpc": lambda t: with_grpc(t, None),
    "tritonclient.grpc, gzip": lambda t: with_grpc(t, "gzip"),
    "tritonclient.grpc, deflate": lambda t: with_grpc(t, "deflate"),
    "stream": lambda t: with_stream(t, None),
    "stream, gzip": lambda t: with_stream(t, "gzip"),
    "stream, deflate": lambda t: with_stream(t, "deflate"),
}


@pytest.mark.parametrize("gateway", ["plain", "compressing"])
@pytest.mark.parametrize("client", CLIENTS)
def test_no_encoding_reaches_a_server(
    client: str, gateway: str, log: HeaderLog, request: pytest.FixtureRequest
) -> None:
    target: Target = request.getfixturevalue(gateway)
    before = len(log.inferences(0))
    np.testing.assert_array_equal(CLIENTS[client](target), VALUES)
    (seen,) = log.inferences(before + 1)[before:]
    assert seen in UNENCODED


@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate", "*", "identity;q=0", "br", "gzip;q=0", ""])
def test_by_default_no_answer_is_compressed(plain: Target, accepted: str) -> None:
    status, answer, headers = _infer(plain, BODY, {"Accept-Encoding": accepted})
    assert (status, headers.get("content-encoding")) == (200, None)
    assert json.loads(answer)["outputs"]


@pytest.mark.parametrize(
    ("accepted", "used"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate;q=0.5, gzip;q=0.7", "gzip"),
        ("gzip;q=0.1, deflate", "deflate"),
        ("gzip, deflate;q=0", "gzip"),
        ("identity", None),
        ("gzip;q=0", None),
        ("identity;q=0", None),
        ("br", None),
        ("", None),
    ],
)
def test_a_compressing_gateway_uses_what_the_client_accepts(
    compressing: Target, log: HeaderLog, accepted: str, used: str | None
) -> None:
    before = len(log.inferences(0))
    status, answer, headers = _infer(compressing, BODY, {"Accept-Encoding": accepted})
    assert (status, headers.get("content-encoding")) == (200, used)
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[used]
    assert json.loads(unpack(answer))["model_name"] == "echo"
    assert log.inferences(before + 1)[-1] in UNENCODED


def test_an_old_browser_gets_no_compressed_answer(compressing: Target, log: HeaderLog) -> None:
    before = len(log.inferences(0))
    headers = {"Accept-Encoding": "gzip", "User-Agent": "Mozilla/4.0 (compatible)"}
    assert "content-encoding" not in _infer(compressing, BODY, headers)[2]
    assert log.inferences(before + 1)[-1] in UNENCODED


def test_a_stream_of_events_is_not_held_up_by_compression(compressing: Target) -> None:
    path = "/v2/models/repeat/generate_stream"
    _, answer, headers = compressing.raw("POST", path, b'{"INPUT": [3, 0.05]}', {"Accept-Encoding": "gzip"})
    assert "content-encoding" not in headers
    assert answer.count(b"data: ") == 3


@pytest.mark.parametrize(
    ("encoding", "body", "status", "words"),
    [
        ("gzip", b"not gzip", 400, "cannot be decompressed"),
        ("gzip", gzip.compress(BODY)[:-9], 400, "ends early"),
        ("gzip", gzip.compress(BODY)[:-8] + bytes(8), 400, "cannot be decompressed"),
        ("deflate", b"", 400, "nothing to be decompressed"),
        ("br", BODY, 501, "Unsupported compression type"),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), 501, "Unsupported compression type"),
        ("gzip", gzip.compress(b"{bad"), 500, "failed to parse the request JSON buffer"),
        ("gzip", BOMB, 413, "larger than"),
    ],
    ids=("garbage", "early end", "bad sum", "empty", "br", "twice", "bad JSON", "bomb"),
)
def test_unreadable_bodies_are_refused(
    plain: Target, encoding: str, body: bytes, status: int, words: str
) -> None:
    refused, answer, headers = _infer(plain, body, {"Content-Encoding": encoding})
    assert refused == status
    assert words in json.loads(answer)["error"]
    assert headers.get("accept-encoding") == ("gzip, deflate" if status == 501 else None)


def test_a_compressed_request_passes_over_a_dead_server(plain: Target) -> None:
    headers = {"Content-Encoding": "gzip"}
    status, body, _ = plain.raw("POST", "/v2/models/lame/infer", gzip.compress(BODY), headers)
    # The server behind answered that it has no model of that name, as one does that has unloaded it.
    assert (status, "is ending" in str(json.loads(body)["error"])) == (503, True)


@pytest.mark.parametrize("call", ["unary", "stream"])
def test_a_grpc_message_that_grows_beyond_the_limit_is_refused(plain: Target, call: str) -> None:
    def send(channel: grpc.Channel) -> None:
        message = bytes(LARGEST_BYTES + 1)
        if call == "unary":
            channel.unary_unary(SERVICE + "ModelInfer")(message, compression=grpc.Compression.Gzip)
        else:
            method = channel.stream_stream(SERVICE + "ModelStreamInfer")
            next(method(iter([message]), compression=grpc.Compression.Gzip))

    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(plain.grpc, options=options) as channel:
        # Compressing may take longer than a new connection may be silent.
        channel.unary_unary(SERVICE + "ServerLive")(b"")
        with pytest.raises(grpc.RpcError) as caught:
            send(channel)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    with tg.InferenceServerClient(plain.grpc) as client:
        assert refusal(lambda: client.infer("nope", tensor(tg, floats(1))))[0] == "StatusCode.NOT_FOUND"


def _infer(target: Target, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
    return target.raw("POST", "/v2/models/echo/infer", body, headers)


def _json(values: np.ndarray[Any, Any]) -> bytes:
    tensors = [{"name": "INPUT", "datatype": "FP32", "shape": values.shape, "data": values.tolist()}]
    return json.dumps({"inputs": tensors, "outputs": [{"name": "OUTPUT"}]}).encode()

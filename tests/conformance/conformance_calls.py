"""Calls that are made of a plain Triton and of a fleet, each a function of the target that returns what came.

`CASES` has them in the order in which they are made. A case with a `row` must differ, and that row is in
docs/compatibility.md; all others must be equal, in status, headers, metadata, body and order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import itertools
import json
import queue
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as tg
import tritonclient.grpc.aio as tga
import tritonclient.http as th
import tritonclient.http.aio as tha
import tritonclient.utils.shared_memory as shm
from conformance_zoo import DATATYPES, INNER, MODELS
from google.protobuf import json_format
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

_LONG_S = 60.0
_MANY = 10_000
"""Values that are compared by their hash."""
CLIENTS = {"http": th, "grpc": tg, "http-aio": tha, "grpc-aio": tga}


@dataclass(frozen=True)
class Target:
    """Where clients are pointed. `middle` is called in the middle of a case: a fleet is redirected then."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    middle: Callable[[], None]

    def address(self, kind: str) -> str:
        return f"{self.host}:{self.http_port if kind.startswith('http') else self.grpc_port}"

    def raw(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Any:
        """Status, headers and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.http_port, timeout=_LONG_S)
        try:
            connection.request(method, path, body, dict(headers or {}), **more)
            answer = connection.getresponse()
            return answer.status, sorted(answer.getheaders()), answer.read()
        except (OSError, http.client.HTTPException):
            return "no answer"
        finally:
            connection.close()

    def rpc(self, method: str, message: bytes = b"", **how: Any) -> Any:
        """Message or status of one call, by the method's whole name."""
        with grpc.insecure_channel(self.address("grpc")) as channel:
            try:
                return channel.unary_unary(method)(message, timeout=_LONG_S, **how)
            except grpc.RpcError as error:
                return error.code().name, error.details()


Call = Callable[[Target], Any]


@dataclass(frozen=True)
class Case:
    """A call by name; `row` names the difference that it shows."""

    name: str
    call: Call
    row: str | None = None
    slow: bool = False


CASES: list[Case] = []


def case(name: str, row: str | None = None, *, slow: bool = False) -> Callable[[Call], Call]:
    """Add a function to the cases."""

    def add(call: Call) -> Call:
        CASES.append(Case(name, call, row, slow))
        return call

    return add


def _add(name: str, call: Call, row: str | None = None) -> None:
    CASES.append(Case(name, call, row))


def refusal(error: InferenceServerException) -> tuple[str, str]:
    """Status and words."""
    return str(error.status()), str(error.message())


def _seen(result: Any) -> Any:
    """An answer as its client reads it, with what its message says."""
    said = result.get_response()
    if not isinstance(said, dict):
        said = json_format.MessageToDict(said)
        said.pop("rawOutputContents", None)
    names = [output["name"] for output in said.get("outputs", ())]
    return said, {name: _listed(result.as_numpy(name)) for name in names}


def _listed(values: Any) -> Any:
    if values is None:
        return None
    content = values.tolist() if values.size < _MANY else hash(values.tobytes())
    return str(values.dtype), values.shape, content


Tensors = Mapping[str, tuple[str, Any]]
"""Input -> datatype and values."""


def _inputs(module: Any, tensors: Tensors) -> list[Any]:
    made = []
    for name, (datatype, values) in tensors.items():
        array = np.array(values, dtype=np.float32 if datatype == "BF16" else triton_to_np_dtype(datatype))
        tensor = module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def _x(*values: float, shape: tuple[int, ...] | None = None) -> Tensors:
    return {"X": ("FP32", np.array(values, dtype=np.float32).reshape(shape or (len(values),)))}


def _infer(
    target: Target, kind: str, model: str, tensors: Tensors, wanted: Mapping[str, int] | None, how: Any
) -> Any:
    module = CLIENTS[kind]
    inputs = _inputs(module, tensors)
    if wanted is not None:
        how = {**how, "outputs": [module.InferRequestedOutput(n, class_count=c) for n, c in wanted.items()]}

    async def run() -> Any:
        async with module.InferenceServerClient(target.address(kind)) as client:
            return await client.infer(model, inputs, **how)

    try:
        if kind.endswith("aio"):
            return _seen(asyncio.run(run()))
        with module.InferenceServerClient(target.address(kind)) as client:
            return _seen(client.infer(model, inputs, **how))
    except InferenceServerException as error:
        return refusal(error)


# Of endpoints; first, since a metric is a server's: what is counted before a redirect is another one's.
@case("metrics: no call is none")
def _(target: Target) -> Any:
    names = "request_success|count|exec_count|queue_duration_us|compute_infer_duration_us"
    counted = rf'^(nv_inference_(?:{names})\{{model="(?!warmed|twin|step)[^"]*").* (.+)$'
    return sorted(set(re.findall(counted, _metrics(target), re.MULTILINE)))


_TYPED = {
    "X" + (str(i) if i else ""): (t, [b"a", b""] if t == "BYTES" else [1, 0]) for i, t in enumerate(DATATYPES)
}
_ONE = _x(1, shape=(1, 1))
_INFERENCES: list[tuple[str, str, Tensors, Mapping[str, int] | None, dict[str, Any]]] = [
    ("no batching", "plain", _x(1, 2, 3), None, {}),
    ("no values", "plain", _x(), None, {}),
    ("an id", "plain", _x(1), None, {"request_id": "mine"}),
    ("a wrong type", "plain", {"X": ("INT32", [1])}, None, {}),
    ("a wrong shape", "plain", _x(1, shape=(1, 1)), None, {}),
    ("a wrong input", "plain", {"Z": ("FP32", [1])}, None, {}),
    ("no input", "plain", {}, None, {}),
    ("an unknown output", "plain", _x(1), {"Z": 0}, {}),
    ("an unknown model", "nosuch", _x(1), None, {}),
    ("a shared queue", "twin", _x(1, 2), None, {}),
    ("a batch of two", "batched", _x(1, 2, 3, 4, shape=(2, 2)), None, {}),
    ("a batch too large", "batched", _x(*range(9), shape=(9, 1)), None, {}),
    ("all datatypes", "types", _TYPED, None, {}),
    ("some outputs", "types", _TYPED, {"Y1": 0, "Y3": 0}, {}),
    ("reshape", "reshaped", _x(1, 2, 3, 4), None, {}),
    ("an optional input", "optional", {**_ONE, "X1": ("FP32", [[2]])}, None, {}),
    ("no optional input", "optional", _ONE, None, {}),
    ("ragged", "ragged", _x(1, 2, 3, shape=(1, 3)), None, {}),
    ("classification", "labelled", _x(1, 9, 3, shape=(1, 3)), {"Y": 2}, {}),
    ("nested ensembles", "nested", _x(4, shape=(1, 1)), None, {}),
    ("a model that calls another", "calls", _x(5, shape=(1, 1)), None, {}),
    ("warmup", "warmed", _ONE, None, {}),
    ("instances", "twice", _ONE, None, {}),
    ("the latest version", "versioned", _x(1), None, {}),
    ("a version", "versioned", _x(1), None, {"model_version": "1"}),
    ("a version that is not there", "versioned", _x(1), None, {"model_version": "2"}),
    ("an error of the model", "slow", _x(-1), None, {}),
    ("a version that the policy leaves out", "latest", _x(1), None, {"model_version": "1"}),
    ("a specific version", "specific", _x(1), None, {}),
    ("a response cache", "cached", _ONE, None, {}),
    ("the same for a response cache", "cached", _ONE, None, {}),
    ("an order that is preserved", "ordered", _x(0, 0, shape=(2, 1)), None, {}),
    ("an iterative sequence", "iterative", _x(1), None, {}),
    ("no start of a sequence", "direct", _ONE, None, {"sequence_id": 7}),
    ("a decoupled model", "ticks", _x(1), None, {}),
    ("an ensemble with a decoupled step", "streamed", _x(1), None, {}),
    (
        "parameters",
        "about",
        _x(1),
        None,
        {
            "request_id": "r",
            "priority": 1,
            "timeout": 900_000_000,
            "parameters": {"a": 1, "b": "c", "d": True},
        },
    ),
    *((f"priority {level}", "ranked", _ONE, None, {"priority": level}) for level in (1, 3, 4)),
]
for _kind in CLIENTS:
    for _name, _model, _tensors, _wanted, _how in _INFERENCES:
        _add(
            f"{_kind}: {_name}",
            partial(_infer, kind=_kind, model=_model, tensors=_tensors, wanted=_wanted, how=_how),
            "shared-queue" if _model == "twin" else None,
        )
for _algorithm in ("gzip", "deflate"):
    for _kind in CLIENTS:
        _option = "request_compression_algorithm" if _kind.startswith("http") else "compression_algorithm"
        _add(
            f"{_kind}: {_algorithm}",
            partial(
                _infer,
                kind=_kind,
                model="batched",
                tensors=_x(*range(500), shape=(1, 500)),
                wanted=None,
                how={_option: _algorithm},
            ),
        )


def _stepped(target: Target, kind: str, model: str) -> Any:
    """A sequence with a redirect in its middle."""
    steps = []
    for number in range(4):
        flags = {"sequence_id": 21, "sequence_start": number == 0, "sequence_end": number == 3}
        steps.append(_infer(target, kind, model, _x(number + 1, shape=(1, 1)), None, flags))
        if number == 1:
            target.middle()
    return steps


for _kind in ("http", "grpc"):
    for _model in ("direct", "oldest"):
        _add(f"{_kind}: a sequence of {_model}, redirected", partial(_stepped, kind=_kind, model=_model))


class _Stream:
    """A stream whose answers are taken one by one."""

    def __init__(self, target: Target, **how: Any) -> None:
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = tg.InferenceServerClient(target.address("grpc"))
        self._client.start_stream(lambda result, error: self._answers.put((result, error)), **how)

    def send(self, model: str, tensors: Tensors, **how: Any) -> None:
        self._client.async_stream_infer(model, _inputs(tg, tensors), **how)

    def take(self, count: int) -> list[Any]:
        found = []
        for _ in range(count):
            result, error = self._answers.get(timeout=_LONG_S)
            found.append(_seen(result) if error is None else refusal(error))
        return found


@contextlib.contextmanager
def _stream(target: Target, **how: Any) -> Iterator[_Stream]:
    made = _Stream(target, **how)
    try:
        yield made
    finally:
        made._client.stop_stream()
        made._client.close()


@case("stream: the order of requests to several models, redirected")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        found = []
        for half in (range(10), range(10, 20)):
            for i in half:
                model, tensors = (("plain", _x(i)), ("batched", _x(i, shape=(1, 1))), ("slow", _x(0.01)))[
                    i % 3
                ]
                stream.send(model, tensors, request_id=str(i))
            found += stream.take(10)
            if half.start == 0:
                target.middle()
        return found


@case("stream: decoupled answers, redirected")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("ticks", _x(5), request_id="a", enable_empty_final_response=True)
        found = stream.take(6)
        target.middle()
        stream.send("ticks", _x(3), request_id="b")
        return [*found, *stream.take(3)]


@case("stream: answers of an ensemble with a decoupled step")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("streamed", _x(4), enable_empty_final_response=True)
        found = stream.take(4)
        stream.send("streamed", _x(0), enable_empty_final_response=True)
        return [*found, *stream.take(1)]


@case("stream: a sequence, redirected")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        found = []
        for i in range(4):
            flags = {"sequence_id": 33, "sequence_start": i == 0, "sequence_end": i == 3}
            stream.send("oldest", _x(i + 1, shape=(1, 1)), **flags)
            found += stream.take(1)
            if i == 1:
                target.middle()
        return found


@case("stream: an iterative sequence")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("iterative", _x(4))
        return stream.take(4)


@case("stream: cancelled, which leaves its model free")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("slow", _x(30))
        time.sleep(0.3)  # until it executes: nothing that a client sees says so
        stream._client.stop_stream(cancel_requests=True)
        found = stream.take(1)
    return found, _infer(target, "grpc", "slow", _x(0), None, {})


@case("stream: errors do not end it")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        for model, tensors in (
            ("nosuch", _x(1)),
            ("plain", {"X": ("INT32", [1])}),
            ("slow", _x(-1)),
            ("plain", _x(3)),
        ):
            stream.send(model, tensors)
        return stream.take(4)


@case("stream: an error of a decoupled model")
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("ticks", _x(-2))
        return stream.take(3)


@case("stream: compressed")
def _(target: Target) -> Any:
    with _stream(target, compression_algorithm="gzip") as stream:
        stream.send("plain", _x(*range(500)))
        return stream.take(1)


@case("grpc-aio: a stream")
def _(target: Target) -> Any:
    async def run() -> Any:
        async def messages() -> Any:
            for i in range(5):
                yield {"model_name": "plain", "inputs": _inputs(tga, _x(i)), "request_id": str(i)}

        async with tga.InferenceServerClient(target.address("grpc-aio")) as client:
            return [_seen(result) async for result, _ in client.stream_infer(messages())]

    return asyncio.run(run())


_CANCELLED = "StatusCode.CANCELLED"


@case("grpc: a deadline")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        try:
            client.infer("slow", _inputs(tg, _x(30)), client_timeout=0.3)
        except InferenceServerException as error:
            return refusal(error)[0]


@case("grpc: a cancelled call leaves its model free")
def _(target: Target) -> Any:
    ended: queue.Queue[Any] = queue.Queue()
    with tg.InferenceServerClient(target.address("grpc")) as client:
        call = client.async_infer("slow", _inputs(tg, _x(30)), lambda result, error: ended.put(error))
        time.sleep(0.3)  # until it executes
        call.cancel()
        status = ended.get(timeout=_LONG_S).status()
        began = time.monotonic()
        client.infer("slow", _inputs(tg, _x(0)))
        return status, time.monotonic() - began < 20


def _queued(
    target: Target, model: str, requests: Iterable[tuple[str, dict[str, Any]]], most: int
) -> list[Any]:
    """Ends in their order, of requests that come while the model is busy with one."""
    ends: queue.Queue[Any] = queue.Queue()
    with tg.InferenceServerClient(target.address("grpc")) as client:

        def send(name: str, seconds: float, how: dict[str, Any]) -> None:
            inputs = _inputs(tg, _x(seconds, shape=(1, 1)))
            client.async_infer(
                model, inputs, lambda result, error: ends.put((name, error and refusal(error))), **how
            )

        send("busy", 1.5, {})
        time.sleep(0.3)  # until it executes: nothing that a client sees says so
        for name, how in requests:
            send(name, 0, how)
            time.sleep(0.05)  # in this order
        return [ends.get(timeout=_LONG_S) for _ in range(most)]


@case("queue: priorities")
def _(target: Target) -> Any:
    return _queued(target, "ranked", [(f"p{n}", {"priority": n}) for n in (3, 2, 1, 3)], 5)


@case("queue: a request's own time limit")
def _(target: Target) -> Any:
    return _queued(target, "ranked", [("late", {"timeout": 1000}), ("patient", {})], 3)


@case("queue: its size")
def _(target: Target) -> Any:
    return sorted(_queued(target, "short", [("a", {}), ("b", {}), ("c", {})], 4), key=str)


@case("queue: a request beside a long one of another model", "turns")
def _(target: Target) -> Any:
    ends: queue.Queue[str] = queue.Queue()
    with tg.InferenceServerClient(target.address("grpc")) as client:
        client.async_infer("slow", _inputs(tg, _x(1.5)), lambda result, error: ends.put("the long one"))
        time.sleep(0.3)  # until it executes: nothing that a client sees says so
        client.async_infer("plain", _inputs(tg, _x(1)), lambda result, error: ends.put("the short one"))
        return [ends.get(timeout=_LONG_S) for _ in range(2)]


_SINGLE = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[5]}]}'
_BODY = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[2],"data":[5,6]}]}'
_DEEP = b'{"parameters":' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"," + _BODY[1:]
_PATHS = (
    *(
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/repository/index",
        "/v2/logging",
        "/v2/trace/setting",
    ),
    *(
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/status",
        "/v2/systemsharedmemory/region/x/status",
    ),
    *("/", "/v2/nothing", "/v2/models", "/metrics", "/v2/models/%70lain/config"),
    *("/v2/models/plain/versions/x", "/v2/models/plain/versions/9", "/v2/models/versioned/versions/3"),
    *(f"/v2/models/{m}{s}" for m in ("plain", "nosuch") for s in ("", "/ready", "/infer", "/generate")),
    *("/v2/models/nosuch/config", "/v2/models/nosuch/stats", "/v2/models/nosuch/trace/setting"),
    *("/v2/models/nosuch/generate_stream", "/v2/models/plain/trace/setting"),
)
for _method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
    for _path in _PATHS:
        if (_method, _path) != ("POST", "/v2/repository/index"):
            _add(f"http: {_method} {_path}", lambda t, m=_method, p=_path: t.raw(m, p))


def _posted(
    name: str,
    path: str,
    body: Any,
    headers: Mapping[str, str] | None = None,
    row: str | None = None,
    **more: Any,
) -> None:
    _add(f"http: {name}", lambda t: t.raw("POST", path, body, headers, **more), row)


_PLAIN = "/v2/models/plain/infer"
_posted("JSON", _PLAIN, _BODY)
_posted(
    "JSON of all datatypes",
    "/v2/models/types/infer",
    json.dumps(
        {
            "inputs": [
                {
                    "name": n,
                    "datatype": t,
                    "shape": [2],
                    "data": [str(v, "ascii") for v in values]
                    if t == "BYTES"
                    else [bool(v) for v in values]
                    if t == "BOOL"
                    else values,
                }
                for n, (t, values) in _TYPED.items()
                if t != "FP16"
            ]
        }
    ).encode(),
)
_posted("no JSON", _PLAIN, b"{bad")
_posted("no body", _PLAIN, b"")
_posted("a gzipped body", _PLAIN, gzip.compress(_BODY), {"Content-Encoding": "gzip"})
_posted("an unknown encoding", _PLAIN, _BODY, {"Content-Encoding": "br"})
_posted("an encoding in capitals", _PLAIN, gzip.compress(_BODY), {"Content-Encoding": "GZIP"})
_posted("a body that is not gzipped", _PLAIN, _BODY, {"Content-Encoding": "gzip"}, row="broken-compression")
_posted(
    "a client that accepts compressed answers",
    _PLAIN,
    _BODY,
    {"Accept-Encoding": "gzip"},
    row="answers-uncompressed",
)
_posted("Expect", _PLAIN, _BODY, {"Expect": "100-continue"})
_posted("1,000 headers", _PLAIN, _BODY, {f"y-{i}": "v" for i in range(1000)})
_posted("a long header", _PLAIN, _BODY, {"y": "v" * 8192}, row="long-headers")
_posted("deep JSON", _PLAIN, _DEEP, row="deep-json")
_posted("a wrong length of the JSON", _PLAIN, _BODY, {"Inference-Header-Content-Length": "900"})
_posted("generate", "/v2/models/plain/generate", b'{"X":[7]}')
_posted("generate, without its input", "/v2/models/plain/generate", b"{}")
_posted("generate of a decoupled model", "/v2/models/ticks/generate", b'{"X":[2]}')
_posted("server-sent events", "/v2/models/ticks/generate_stream", b'{"X":[4]}')
_posted("server-sent events of a plain model", "/v2/models/plain/generate_stream", b'{"X":[4]}')
_posted("an error among server-sent events", "/v2/models/ticks/generate_stream", b'{"X":[-1]}')
_posted(
    "forwarded headers",
    "/v2/models/about/infer",
    _SINGLE,
    {"x-user": "u1"},
)
_posted(
    "forwarded headers in capitals",
    "/v2/models/about/infer",
    _SINGLE,
    {"X-User": "u1"},
    row="header-case",
)
_posted(
    "blanks behind a forwarded header",
    "/v2/models/about/infer",
    _SINGLE,
    {"x-user": "u1  "},
    row="header-blanks",
)
for _body in (
    b'{"ready":3}',
    b'{"ready":"yes"}',
    b'{"ready":null}',
    b"null",
    b"[1]",
    b"3",
    b'{"ready":false}',
):
    _add(f"http: index {_body!r}", lambda t, b=_body: _index(t.raw("POST", "/v2/repository/index", b)))
_posted("index of broken JSON", "/v2/repository/index", b"{", row="index-words")
_add("http: the index of a repository", lambda t: _index(t.raw("POST", "/v2/repository/x/index")))
_posted("loading from a repository", "/v2/repository/x/models/plain/load", b"")
_posted("loading", "/v2/repository/models/plain/load", b"", row="loading")


@case("http: chunked")
def _(target: Target) -> Any:
    parts = (_BODY[i : i + 10] for i in range(0, len(_BODY), 10))
    return target.raw("POST", _PLAIN, parts, encode_chunked=True)


def _written(target: Target, head: str, body: bytes) -> Any:
    """What comes of a request as it stands here, until its connection is closed; headers in any order."""
    lines = f"{head}\nConnection: close\n\n".replace("\n", "\r\n")
    with socket.create_connection((target.host, target.http_port), _LONG_S) as connection:
        connection.sendall(lines.encode() + body)
        with connection.makefile("rb") as answer:
            found, _, content = answer.read().partition(b"\r\n\r\n")
    return sorted(found.split(b"\r\n")), content


_SIZED = f"POST {_PLAIN} HTTP/1.1\nHost: x\nContent-Length: {len(_BODY)}"
for _name, _head, _body, _row in (
    ("of a Triton, as they stand", "GET /v2/models/plain HTTP/1.1\nHost: x", b"", None),
    ("of the facade, as they stand", "GET /v2 HTTP/1.1\nHost: x", b"", None),
    ("without a host", "GET /v2 HTTP/1.1", b"", None),
    ("of an unknown method", "FOO /v2 HTTP/1.1\nHost: x", b"", None),
    ("of HTTP/1.0", f"POST {_PLAIN} HTTP/1.0\nContent-Length: {len(_BODY)}", _BODY, None),
    ("for a range", "GET /v2/models/plain HTTP/1.1\nHost: x\nRange: bytes=0-3", b"", None),
    ("with a query", _SIZED.replace(" HTTP", "?a=b HTTP"), _BODY, None),
    ("of one that expects", f"{_SIZED}\nExpect: 100-continue", _BODY, None),
    ("with a header twice", f"{_SIZED}\nx-user: 1\nx-user: 2".replace("plain", "about"), _BODY, None),
    (
        "with an extended chunk",
        f"POST {_PLAIN} HTTP/1.1\nHost: x\nTransfer-Encoding: chunked",
        b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY),
        "malformed-http",
    ),
    ("with two lengths", f"{_SIZED}\nContent-Length: 3", _BODY, "malformed-http"),
):
    _add(f"http: answers {_name}", partial(_written, head=_head, body=_body), _row)


@case("http: requests of one connection")
def _(target: Target) -> Any:
    connection = http.client.HTTPConnection(target.host, target.http_port, timeout=_LONG_S)
    found = []
    for path in (_PLAIN, "/v2/models/nosuch/infer", "/v2/models/plain/versions/1/infer") * 3:
        connection.request("POST", path, _BODY)
        answer = connection.getresponse()
        found.append((answer.status, sorted(answer.getheaders()), answer.read()))
    connection.close()
    return found


def _index(answer: Any) -> Any:
    """Without models that only others call, which are no endpoints of a fleet; a server's order is none."""
    status, headers, body = answer
    if status != 200:
        return answer
    entries = [one for one in json.loads(body) if one["name"] not in INNER]
    return status, [h for h in headers if h[0] != "Content-Length"], sorted(entries, key=str)


@case("http: a client that closes its side after its request", "half-closed")
def _(target: Target) -> Any:
    # A second's work: its answer does not overtake the end of the client's side.
    body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}'
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((target.host, target.http_port), _LONG_S) as connection:
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(len("HTTP/1.1 200"))


@case("http: models that only others call", "composing-models")
def _(target: Target) -> Any:
    return target.raw("GET", "/v2/models/step")[0]


@case("grpc: what a model's code sees of others", "own-server")
def _(target: Target) -> Any:
    return _infer(target, "grpc", "sees", _x(1), None, {})


@case("grpc: index")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        said = client.get_model_repository_index(as_json=True)["models"]
        return sorted((one for one in said if one["name"] not in INNER), key=str)


for _method in (
    *("grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch", "inference.GRPCInferenceService/Nothing"),
    *(
        f"inference.GRPCInferenceService/{m}"
        for m in ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady")
    ),
    *(f"inference.GRPCInferenceService/{m}" for m in ("ModelMetadata", "ModelInfer")),
    *(f"inference.GRPCInferenceService/{k}SharedMemoryStatus" for k in ("System", "Cuda")),
    "a.B/C",
):
    _add(f"grpc: {_method}", lambda t, m=_method: t.rpc(f"/{m}"))
_add("grpc: a service's health", lambda t: t.rpc("/grpc.health.v1.Health/Check", b"\x0a\x04nope"))
_add(
    "grpc: a message that is none",
    lambda t: t.rpc("/inference.GRPCInferenceService/ModelInfer", b"\xff\xff")[0],
    "malformed-messages",
)
_add(
    "grpc: forwarded metadata",
    lambda t: _infer(t, "grpc", "about", _x(1), None, {"headers": {"x-user": "u1"}}),
)


def _raised(target: Target) -> Any:
    """What a client reads of an exception in a model's code, which cannot decode this."""
    request = service_pb2.ModelInferRequest(model_name="about", raw_input_contents=[bytes(4)])
    request.inputs.add(name="X", datatype="FP32", shape=[1])
    method, metadata = "/inference.GRPCInferenceService/ModelInfer", [("x-a-bin", b"\xff")]
    return target.rpc(method, request.SerializeToString(), metadata=metadata)


_add("grpc: an exception of a model", lambda t: re.sub(r"/\S+(?=/about/1/)", "", str(_raised(t))))
_add("grpc: the files of a traceback", _raised, "tracebacks")


def _without(config: Any, *keys: str) -> Any:
    return {key: value for key, value in config.items() if key not in keys}


_PLANNED = ("instance_group", "dynamic_batching", "max_batch_size")
for _model in MODELS:
    if _model not in INNER:
        _add(f"http: metadata of {_model}", lambda t, m=_model: t.raw("GET", f"/v2/models/{m}"))
        _add(
            f"http: configuration of {_model}",
            lambda t, m=_model: _without(json.loads(t.raw("GET", f"/v2/models/{m}/config")[2]), *_PLANNED),
        )


@case("http: planned batches and instances", "planned-configuration")
def _(target: Target) -> Any:
    config = json.loads(target.raw("GET", "/v2/models/batched/config")[2])
    return {key: config.get(key) for key in _PLANNED}


@case("http: the platform of a shared queue", "shared-queue")
def _(target: Target) -> Any:
    return json.loads(target.raw("GET", "/v2/models/twin")[2])["platform"]


_BF16 = np.array([1, -2], dtype=np.float32).view(np.uint32).__rshift__(16).astype(np.uint16).tobytes()


@case("http: BF16")
def _(target: Target) -> Any:
    parameters = {"binary_data_size": len(_BF16)}
    given = {"name": "X", "datatype": "BF16", "shape": [2], "parameters": parameters}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    return target.raw("POST", "/v2/models/bf16/infer", head + _BF16, length)


@case("grpc: BF16")
def _(target: Target) -> Any:
    request = service_pb2.ModelInferRequest(model_name="bf16", raw_input_contents=[_BF16])
    request.inputs.add(name="X", datatype="BF16", shape=[2])
    return target.rpc("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString())


@case("grpc: values that are not raw")
def _(target: Target) -> Any:
    request = service_pb2.ModelInferRequest(model_name="plain")
    request.inputs.add(name="X", datatype="FP32", shape=[2]).contents.fp32_contents.extend([3, 4])
    return target.rpc("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString())


for _kind in ("http", "grpc"):
    _large = partial(_infer, kind=_kind, model="plain", wanted={"Y": 0}, how={})
    _add(f"{_kind}: 20 MB", partial(_large, tensors={"X": ("FP32", np.arange(5 * 2**20))}))


@case("http: at once over one client")
def _(target: Target) -> Any:
    with th.InferenceServerClient(target.address("http"), concurrency=4) as client:
        pending = [client.async_infer("plain", _inputs(th, _x(i)), request_id=str(i)) for i in range(8)]
        return [_seen(one.get_result()) for one in pending]


@case("grpc: pings")
def _(target: Target) -> Any:
    options = tg.KeepAliveOptions(
        keepalive_time_ms=100, keepalive_permit_without_calls=True, http2_max_pings_without_data=0
    )
    with tg.InferenceServerClient(target.address("grpc"), keepalive_options=options) as client:
        found = []
        for _ in range(2):
            found.append(_seen(client.infer("plain", _inputs(tg, _x(1)))))
            time.sleep(0.5)  # some pings pass meanwhile
        return found


def _region(target: Target, kind: str) -> Any:
    """A region's life: registered, used, twice, unregistered."""
    module = CLIENTS[kind]
    key = f"/conformance-{time.monotonic_ns()}"
    region = shm.create_shared_memory_region("region", key, 32)
    Path(f"/dev/shm{key}").chmod(0o666)  # a container's user is another one where tests run as root
    found: list[Any] = []

    def attempt(call: Callable[[], Any]) -> None:
        try:
            found.append(call())
        except InferenceServerException as error:
            found.append(refusal(error))

    def infer() -> Any:
        given = module.InferInput("X", [4], "FP32")
        given.set_shared_memory("region", 16)
        wanted = module.InferRequestedOutput("Y")
        wanted.set_shared_memory("region", 16, offset=16)
        client.infer("plain", [given], outputs=[wanted])
        return shm.get_contents_as_numpy(region, np.float32, [4], offset=16).tolist()

    try:
        shm.set_shared_memory_region(region, [np.arange(4, dtype=np.float32)])
        with module.InferenceServerClient(target.address(kind)) as client:
            attempt(lambda: client.register_system_shared_memory("region", key, 32))
            attempt(infer)
            attempt(lambda: client.register_system_shared_memory("region", key, 32))
            target.middle()
            attempt(infer)
            attempt(lambda: client.unregister_system_shared_memory("region"))
            attempt(infer)
            attempt(lambda: client.register_system_shared_memory("x", "/not-there", 8))
            attempt(lambda: client.get_system_shared_memory_status("x"))
            attempt(lambda: client.unregister_system_shared_memory())
        return found
    finally:
        shm.destroy_shared_memory_region(region)


for _kind in ("http", "grpc"):
    _add(f"{_kind}: shared memory, redirected", partial(_region, kind=_kind))


@case("grpc: a region without a name", "region-names")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        try:
            client.register_cuda_shared_memory("", b"", 0, 0)
        except InferenceServerException as error:
            return refusal(error)


@case("http: trace settings")
def _(target: Target) -> Any:
    with th.InferenceServerClient(target.address("http")) as client:
        found = [
            client.update_trace_settings("plain", {"trace_rate": "55"}),
            client.get_trace_settings("batched"),
        ]
        found.append(client.update_trace_settings("plain", {"trace_rate": None}))
        for settings in ({"trace_rate": "many"}, {"no": "such"}):
            try:
                found.append(client.update_trace_settings(settings=settings))
            except InferenceServerException as error:
                found.append(refusal(error))
        return found


@case("grpc: log settings")
def _(target: Target) -> Any:
    with tg.InferenceServerClient(target.address("grpc")) as client:
        found = [client.update_log_settings({"log_verbose_level": level}, as_json=True) for level in (1, 0)]
        try:
            client.update_log_settings({"log_format": "nonsense"})
        except InferenceServerException as error:
            found.append(refusal(error))
        return found


@case("metrics: names, types and the labels of models")
def _(target: Target) -> Any:
    page = _metrics(target)
    heads = {line for line in page.splitlines() if line.startswith("# TYPE nv_") and "summary" not in line}
    names = set(re.findall(r'^(nv_inference\w*)\{model="plain"', page, re.MULTILINE))
    return heads, {name for name in names if "summary" not in name}


@case("metrics: a model's own")
def _(target: Target) -> Any:
    _infer(target, "http", "counts", _x(1), None, {})
    lines = (line for line in _metrics(target).splitlines() if "own_requests" in line)
    return [re.sub(r",(partition|role)=.*?(?=[,}])", "", line) for line in lines if "shadow" not in line]


@case("metrics: every path with every method")
def _(target: Target) -> Any:
    found = []
    for method, path in itertools.product(("GET", "HEAD", "POST"), ("/", "/metrics", "/metrics/", "/x")):
        connection = http.client.HTTPConnection(target.host, target.metrics_port, timeout=_LONG_S)
        connection.request(method, path)
        found.append((method, path, connection.getresponse().status))
        connection.close()
    return found


@case("metrics: labels of the fleet", "metric-labels")
def _(target: Target) -> Any:
    return re.findall(r"^nv_inference_request_success\{.*?(partition)=", _metrics(target), re.MULTILINE)


def _metrics(target: Target) -> str:
    with urllib.request.urlopen(
        f"http://{target.host}:{target.metrics_port}/metrics", timeout=_LONG_S
    ) as page:
        text: str = page.read().decode()
        return text


@case("statistics: what counts")
def _(target: Target) -> Any:
    return {model: _counted(target, model) for model in ("ticks", "nested", "types", "versioned", "oldest")}


@case("statistics: warm-ups", "warmup-statistics")
def _(target: Target) -> Any:
    return _counted(target, "warmed")


def _counted(target: Target, model: str) -> Any:
    """Return all counters of a model but those of times."""
    models = json.loads(target.raw("GET", f"/v2/models/{model}/stats")[2])["model_stats"]
    return json.loads(json.dumps(models), object_hook=_without_times)


def _without_times(counters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in counters.items() if key not in ("ns", "last_inference")}


@case("grpc: a message of 300 MiB in a stream", "large-messages", slow=True)
def _(target: Target) -> Any:
    with _stream(target) as stream:
        stream.send("plain", {"X": ("FP32", np.zeros(75 * 2**20))})
        return [one[0] for one in stream.take(1)]


# Last, since a plain 2.51 may crash of it a moment later.
@case("stream: errors as statuses", slow=True)
def _(target: Target) -> Any:
    with _stream(target, headers={"triton_grpc_error": "true"}) as stream:
        stream.send("slow", _x(-1))
        return stream.take(1)

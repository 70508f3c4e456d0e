"""Blocking calls of one Triton, by the standard library's client, which takes a quarter of httpx's time.

Readiness is no proof: a model whose Python process died still reports that it is ready. So a server is proven
by real inferences.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.parse
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from controlplane.domain.errors import EngineError, server_words
from controlplane.domain.fleet import RELOAD_HEADER, Backend, Server, ServerState
from controlplane.domain.observation import Entry, ModelStatistics
from controlplane.sockets import connect
from controlplane.triton.samples import SampleRequest
from controlplane.triton.statistics import parse_statistics

_VERSION_S = 2.0
_VERSIONS_AT_ONCE = 8


def timed_out(error: Exception) -> bool:
    """Return whether a call failed for want of an answer in time."""
    return isinstance(error.__cause__, TimeoutError)


class TritonClient:
    """Calls of one server, each answered within `deadline_s`. They raise EngineError from what went wrong.

    A connection is closed after a call, since an open one would delay the end of a Triton; inside `with` one
    connection serves all calls.
    """

    def __init__(self, server: Server | Backend, *, deadline_s: float = 5.0) -> None:
        self._server = server
        self._name = server.name if isinstance(server, Server) else server.server
        self._deadline_s = deadline_s
        self._connection = http.client.HTTPConnection("triton")
        self._keeps = False

    def __enter__(self) -> TritonClient:
        self._keeps = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeps = False
        self._connection.close()

    def allow(self, deadline_s: float) -> None:
        """Let each later call take so long."""
        self._deadline_s = deadline_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(deadline_s)

    def answer(self) -> None:
        """Make a call that runs no model."""
        self._call("GET", "/v2/health/live")

    def version(self) -> str:
        """Return Triton's version; empty where it does not say."""
        said = self._get("/v2")
        return str(said.get("version", "")) if isinstance(said, dict) else ""

    def config(self, model: str) -> Mapping[str, Any]:
        """Return the configuration with which the server serves a model."""
        return self._get(f"{_path(model)}/config")

    def statistics(self, model: str) -> ModelStatistics:
        """Return the counters of one model since it was loaded, summed over its versions."""
        return parse_statistics(model, self._get(f"{_path(model)}/stats"))

    def counters(self, model: str) -> list[Entry]:
        """Return the counters of each version of a model since it was loaded."""
        return list(self._get(f"{_path(model)}/stats").get("model_stats", ()))

    def infer(self, endpoint: str, request: SampleRequest) -> None:
        """Run one inference; of a decoupled model, wait for the first answer or the end of its stream."""
        if request.json_length is None:
            self._stream(request)
        else:
            headers = {"Inference-Header-Content-Length": str(request.json_length)}
            self._call("POST", f"{_path(endpoint)}/infer", request.body, headers)

    def change(self, model: str, verb: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Load or unload a model."""
        path = f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/{verb}"
        headers = {"Content-Type": "application/json", **headers}
        self._call("POST", path, json.dumps(body).encode(), headers)

    def _get(self, path: str) -> Mapping[str, Any]:
        try:
            text = self._call("GET", path)
            content: Mapping[str, Any] = json.loads(text)
        except EngineError as error:
            raise EngineError(f"{self._name}: GET {path}: {error}") from error.__cause__
        except ValueError as error:
            raise EngineError(f"{self._name}: GET {path}: {error!r}") from error
        return content

    def _call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        idle = self._connection.sock is not None
        sent = {**({} if self._keeps else {"Connection": "close"}), **(headers or {})}
        try:
            status, text = self._query(method, path, body, sent, again=idle and method == "GET")
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise EngineError(repr(error)) from error
        finally:
            if not self._keeps:
                self._connection.close()
        if status != http.client.OK:
            words = text.decode(errors="replace").strip()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                words = str(json.loads(words)["error"])
            raise EngineError(server_words(words))
        return text

    def _query(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], *, again: bool
    ) -> tuple[int, bytes]:
        if self._connection.sock is None:
            self._connection.sock = connect(self._server.host, self._server.http_port, self._deadline_s)
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except ConnectionError:
            if not again:
                raise
            self._connection.close()  # the server had closed it meanwhile
            return self._query(method, path, body, headers, again=False)

    def _stream(self, request: SampleRequest) -> None:
        import grpc
        from tritonclient.grpc import service_pb2

        with grpc.insecure_channel(f"{self._server.host}:{self._server.grpc_port}") as channel:
            call = channel.stream_stream(
                "/inference.GRPCInferenceService/ModelStreamInfer",
                response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
            )
            try:
                answers = call(iter((request.body,)), timeout=self._deadline_s)
                said = next((answer.error_message for answer in answers), "")
                answers.cancel()
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise EngineError(f"no answer within {self._deadline_s:g} s") from TimeoutError()
                raise EngineError(f"{error.code().name}: {error.details()}") from error
        if said:
            raise EngineError(said)


def unload(server: Server, model: str, *, deadline_s: float) -> None:
    """Unload a model, keeping its server up. Raises EngineError."""
    _change(server, model, "unload", deadline_s, {})


def load(server: Server, model: str, *, deadline_s: float, config: str | None = None) -> None:
    """Load a model that was unloaded, with a configuration (JSON) instead of its own. Raises EngineError."""
    _change(server, model, "load", deadline_s, {} if config is None else {"parameters": {"config": config}})


def versions(servers: Iterable[Server]) -> tuple[str, ...]:
    """Return the version of each running server that answers."""

    def version(server: Server) -> str:
        with contextlib.suppress(EngineError):
            return TritonClient(server, deadline_s=_VERSION_S).version()
        return ""

    running = [server for server in servers if server.state is ServerState.RUNNING]
    with ThreadPoolExecutor(_VERSIONS_AT_ONCE) as pool:
        return tuple(filter(None, pool.map(version, running)))


def _change(server: Server, model: str, verb: str, deadline_s: float, body: Mapping[str, Any]) -> None:
    key = {} if server.reload_key is None else {RELOAD_HEADER: server.reload_key}
    try:
        TritonClient(server, deadline_s=deadline_s).change(model, verb, body, key)
    except EngineError as error:
        reason = str(error)
        if timed_out(error):
            reason = (
                f"no answer within {deadline_s:g} s (load_timeout_s gives a load more); if the model's code "
                "ends its own process, Triton waits for ever"
            )
        raise EngineError(f"{server.name}: {verb} {model}: {reason}") from error.__cause__


def _path(model: str) -> str:
    return f"/v2/models/{urllib.parse.quote(model, safe='')}"

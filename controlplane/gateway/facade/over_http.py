"""The facade's HTTP: the fleet's own calls, and whatever HAProxy finds no slot for."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.bodies import (
    LARGEST_BYTES,
    BadBody,
    Counted,
    is_encoded,
    read_body,
    too_large,
)
from controlplane.gateway.facade.broadcast import Broadcast, HttpAnswer, HttpRefused, Refused
from controlplane.gateway.facade.fleet import Fleet, everyone
from controlplane.gateway.facade.kept import NotKept, region_key
from controlplane.gateway.facade.records import Records
from controlplane.gateway.facade.statistics import Statistics
from controlplane.gateway.facade.wire import Sequence as SequenceOf
from controlplane.render.haproxy import LARGEST_BODY_BYTES

_REFUSED = "models are loaded and unloaded by the control plane, not by clients"
DENIED = "this fleet allows no fleet-wide calls; `ctl apply --fleet-wide-calls` does, for a new fleet"
_NOBODY = "no server runs in this fleet"
_NOT_READY = "no server of this model is ready"
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"})
_ENCODINGS = frozenset({"accept-encoding", "content-encoding"})
_MODEL = "/v2/models/{name:[^/]+}"
_VERSION = r"/versions/{version:\d+}"
_INFERRING = ("/infer", "/generate", "/generate_stream")
_HEADER_LENGTH = "Inference-Header-Content-Length"


class Http:
    """Handlers; every one answers as a Triton would."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        broadcast: Broadcast,
        records: Records,
        statistics: Statistics,
    ) -> None:
        self._fleet = fleet
        self._statistics = statistics
        self._session = session
        self._broadcast = broadcast
        self._records = records

    def application(self, *, fleet_wide: bool) -> web.Application:
        """All paths. Calls that change every server are refused unless `fleet_wide`."""
        settings, memory_status = self._settings, self._memory
        register, unregister = self._register, self._unregister
        if not fleet_wide:
            settings = memory_status = register = unregister = self._deny
        app = web.Application(client_max_size=LARGEST_BYTES, middlewares=[_tritons_words])
        get, post, both = web.get, web.post, _get_and_post
        app.add_routes(
            [
                get("/v2", self._metadata),
                get("/v2/health/live", self._live),
                get("/v2/health/ready", self._ready),
                post("/v2/repository/index", self._index),
                post("/v2/repository/models/{name}/load", self._refuse),
                post("/v2/repository/models/{name}/unload", self._refuse),
                get("/v2/models/stats", self._fleet_statistics),
                *both("/v2/trace/setting", settings),
                *both(_MODEL + "/trace/setting", settings),
                *both("/v2/logging", settings),
            ]
        )
        for kind in ("system", "cuda"):
            memory = f"/v2/{kind}sharedmemory"
            for scope in (memory, memory + "/region/{name}"):
                app.router.add_get(scope + "/status", memory_status)
                app.router.add_post(scope + "/unregister", unregister)
            app.router.add_post(memory + "/region/{name}/register", register)
        for prefix in (_MODEL, _MODEL + _VERSION):
            for suffix in ("", "/ready", "/config", "/stats"):
                app.router.add_get(prefix + suffix, self._model)
            for suffix in _INFERRING:
                app.router.add_post(prefix + suffix, self._model)
        return app

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if await self._fleet.ready() else 400)

    async def _metadata(self, _: web.Request) -> web.Response:
        return web.json_response(await self._fleet.metadata())

    async def _fleet_statistics(self, _: web.Request) -> web.Response:
        return web.json_response(await self._statistics.of_fleet())

    async def _index(self, request: web.Request) -> web.Response:
        wanted = False
        if body := await read_body(request):
            try:
                wanted = bool(json.loads(body).get("ready", False))
            except (ValueError, AttributeError):
                return _error(500, "failed to parse the request JSON buffer")
        return web.json_response(await self._fleet.repository_index(wanted))

    async def _refuse(self, _: web.Request) -> web.Response:
        return _error(403, _REFUSED)

    async def _deny(self, request: web.Request) -> web.Response:
        return _error(403, DENIED)

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._fleet.routes:
            return _unknown(name, request.path)
        if request.path.endswith("/stats"):
            found = await self._statistics.of_endpoint(name, request.match_info.get("version", ""))
            if found is not None:
                return web.json_response(found)
        if self._fleet.traits(name).sequence_idle_us is None or not request.path.endswith(_INFERRING):
            return await self._stateless(request, name)
        body = await read_body(request)
        sequence = _sequence_of(body, request.headers)
        backend = self._fleet.choose_in_sequence((name, sequence.id), start=sequence.start)
        assert backend is not None  # the name is routed
        try:
            return await self._proxy(request, backend, name, body) or _error(503, _NOT_READY)
        finally:
            self._fleet.leave_sequence((name, sequence.id), end=sequence.end)

    async def _stateless(self, request: web.Request, name: str) -> web.StreamResponse:
        """A request that a lost server did not answer goes to another one where its body is at hand."""
        body = await read_body(request) if is_encoded(request) else Counted(request.content)
        tried: set[str] = set()
        while True:
            backend = self._fleet.choose(name)
            if backend is None or backend.server in tried:
                return _error(503, _NOT_READY)
            response = await self._proxy(request, backend, name, body)
            if response is not None:
                return response
            tried.add(backend.server)
            if not isinstance(body, bytes):
                return _error(503, _NOT_READY)

    async def _proxy(
        self, request: web.Request, backend: Backend, name: str, body: Counted | bytes
    ) -> web.StreamResponse | None:
        """The server's answer, passed on as it comes; None where it was lost before it answered."""
        started = time.monotonic()
        dropped = _HOP | _ENCODINGS
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in dropped)
        status, sent = 0, 0
        url = f"http://{backend.host}:{backend.http_port}{request.raw_path}"
        try:
            with self._fleet.call(backend):
                async with self._session.request(
                    request.method, url, data=body if request.body_exists else None, headers=headers
                ) as answer:
                    status = answer.status
                    kept = ((k, v) for k, v in answer.headers.items() if k.lower() not in _HOP)
                    response = web.StreamResponse(status=status, headers=CIMultiDict(kept))
                    response.content_length = answer.content_length
                    await response.prepare(request)
                    async for part in answer.content.iter_any():
                        sent += len(part)
                        await response.write(part)
                    await response.write_eof()
                    return response
        except aiohttp.ClientError:
            if isinstance(body, Counted) and body.exceeded:
                status = 413
                raise too_large(LARGEST_BODY_BYTES) from None
            if sent or status:
                raise
            status = 503
            self._fleet.lost(backend)
            return None
        finally:
            if request.path.endswith(_INFERRING):
                size = len(body) if isinstance(body, bytes) else request.content_length or 0
                self._records.request(name, backend, started, size, sent, http=status, grpc=None)

    async def _memory(self, request: web.Request) -> web.Response:
        return await self._first(request, self._fleet.servers())

    async def _first(self, request: web.Request, servers: Sequence[Backend]) -> web.Response:
        if not servers:
            return _error(503, _NOBODY)
        try:
            return _as_response(await self._broadcast.http(servers[0], request.method, _path(request), b""))
        except HttpRefused as refused:
            return _as_response(refused.answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            return _error(503, f"{servers[0].server} does not answer: {error}")

    async def _register(self, request: web.Request) -> web.Response:
        path = _path(request)
        kind, name = path.split("/")[2].removesuffix("sharedmemory"), path.split("/")[4]
        body = await read_body(request)
        region = _object(body)
        try:
            key = region_key(kind, name)
            self._broadcast.check(key, region)
        except NotKept as refusal:
            return _error(400, str(refusal))
        undo = path.removesuffix("register") + "unregister"
        response = await self._send(request, body, self._fleet.servers(), undo, b"")
        if response.status == 200:
            self._broadcast.keep(key, region)
        return response

    async def _unregister(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        response = await self._send(request, body, self._fleet.servers(), None, b"")
        if response.status == 200:
            whole = "name" not in request.match_info
            self._broadcast.forget(_path(request).removesuffix("unregister") + ("region/" if whole else ""))
        return response

    async def _settings(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name")
        if name is not None and name not in self._fleet.routes:
            return _error(400, f"Request for unknown model : {name}")
        targets = self._fleet.servers() if name is None else everyone(self._fleet.routes[name])
        if not targets:
            return _error(503, _NOBODY)
        body = await read_body(request)
        if request.method == "GET" or not body:
            return await self._first(request, targets)
        asked = _object(body)
        try:
            self._broadcast.check(_path(request), asked)
        except NotKept as refusal:
            return _error(400, str(refusal))
        status, before = await self._fleet.ask(targets[0], _path(request))
        old = {key: before[key] for key in asked if key in before} if status == 200 and before else {}
        response = await self._send(request, body, targets, _path(request), json.dumps(old).encode())
        if response.status == 200 and asked:
            self._broadcast.keep(_path(request), asked)
        return response

    async def _send(
        self,
        request: web.Request,
        body: bytes,
        targets: Sequence[Backend],
        undo_path: str | None,
        undo: bytes,
    ) -> web.Response:
        if not targets:
            return _error(503, _NOBODY)

        async def tell(backend: Backend) -> HttpAnswer:
            return await self._broadcast.http(backend, "POST", _path(request), body)

        async def take_back(backend: Backend) -> object:
            return await self._broadcast.http(backend, "POST", undo_path, undo) if undo_path else None

        try:
            return _as_response(await self._broadcast.send(targets, tell, take_back))
        except Refused as refused:
            if refused.first and isinstance(refused.cause, HttpRefused):
                return _as_response(refused.cause.answer)
            status = refused.cause.answer.status if isinstance(refused.cause, HttpRefused) else 503
            return _error(
                status, f"{refused.backend.server} refused: {refused}; nothing was changed anywhere"
            )


@web.middleware
async def _tritons_words(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refusals of aiohttp and of unreadable bodies, in a Triton's words."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except BadBody as bad:
        answer = _error(bad.status, str(bad))
        answer.headers.update(bad.headers)
        return answer
    except web.HTTPException as refusal:
        return _error(refusal.status, refusal.reason)


def _sequence_of(body: bytes, headers: Any) -> SequenceOf:
    length = headers.get(_HEADER_LENGTH)
    try:
        said = json.loads(body[: int(length)] if length else body).get("parameters", {})
        name = str(said.get("sequence_id", ""))
        return SequenceOf(
            "" if name == "0" else name, bool(said.get("sequence_start")), bool(said.get("sequence_end"))
        )
    except (ValueError, AttributeError):
        return SequenceOf("", False, False)  # the server will say what is wrong with it


def _path(request: web.Request) -> str:
    """As the client wrote it, without its query: a Triton looks at no query and decodes no escapes."""
    return request.rel_url.raw_path


def _object(body: bytes) -> dict[str, Any]:
    """A JSON object; empty where the body is none, which the servers will say."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _unknown(name: str, path: str) -> web.Response:
    """Triton's answer for a model it does not have."""
    if path.endswith("/ready"):
        return _error(400, "Model version not ready")
    if path.endswith("/stats"):
        return _error(400, f"requested model '{name}' is not available")
    return _error(404, f"Request for unknown model: '{name}' is not found")


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _as_response(answer: HttpAnswer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)


def _get_and_post(path: str, handler: Any) -> tuple[web.RouteDef, web.RouteDef]:
    return web.get(path, handler), web.post(path, handler)

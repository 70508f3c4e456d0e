"""The facade's HTTP: the fleet's own calls, and whatever HAProxy finds no slot for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.answers import Parts
from controlplane.gateway.facade.bodies import (
    HEADER_LENGTH,
    LARGEST_BYTES,
    Counted,
    check_plain,
    is_encoded,
    nesting_of,
    read_body,
)
from controlplane.gateway.facade.callers import CALLER, OWN_HEADERS
from controlplane.gateway.facade.fleet import Attempts
from controlplane.gateway.facade.fleet_wide.broadcast import HttpRefused, Refused
from controlplane.gateway.facade.fleet_wide.http_calls import HttpCalls, as_json, refusal
from controlplane.gateway.facade.records import ABANDONED, HELD, UNLOADED, UNREACHED
from controlplane.gateway.facade.refusals import (
    Refusal,
    ServerEnding,
    check_size,
    unchangeable,
    unknown_model,
)
from controlplane.gateway.facade.wire import Sequence
from controlplane.render.haproxy import LARGEST_BODY_BYTES
from controlplane.triton.sessions import TritonSessions

_NOT_READY = "no server of this model is ready"
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"})
_ENCODINGS = frozenset({"accept-encoding", "content-encoding"})
_MODEL = "/v2/models/{name:[^/]+}"
_VERSION = r"/versions/{version:\d+}"
_INFERRING = ("/infer", "/generate", "/generate_stream")
_IN_PLAIN = ("/infer", "/live", "/ready")
"""Errors of these have no type of their own in a Triton, whose HTTP library then says text/plain."""


class Http:
    """Handlers; every one answers as a Triton would."""

    def __init__(self, parts: Parts, sessions: TritonSessions) -> None:
        self._parts = parts
        self._fleet = parts.fleet
        self._sessions = sessions

    def application(self) -> web.Application:
        """Return all paths."""
        app = web.Application(client_max_size=LARGEST_BYTES, middlewares=[_tritons_words, self._identified])
        get, post = web.get, web.post
        app.add_routes(
            [
                get("/v2", self._metadata, allow_head=False),
                get("/v2/health/live", self._live, allow_head=False),
                get("/v2/health/ready", self._ready, allow_head=False),
                post("/v2/repository/index", self._index),
                post("/v2/repository/{repository}/index", self._index),
                post("/v2/repository/{repository}/models/{name}/{verb:load|unload}", self._one_repository),
                post("/v2/repository/models/{name}/load", self._refuse),
                post("/v2/repository/models/{name}/unload", self._refuse),
                get("/v2/models/stats", self._fleet_statistics, allow_head=False),
                *HttpCalls(self._fleet, self._parts.broadcast).routes(),
            ]
        )
        for prefix in (_MODEL, _MODEL + _VERSION):
            for suffix in ("", "/ready", "/config", "/stats"):
                app.router.add_get(prefix + suffix, self._model, allow_head=False)
            for suffix in _INFERRING:
                app.router.add_post(prefix + suffix, self._model)
        return app

    @web.middleware
    async def _identified(self, request: web.Request, handler: Any) -> web.StreamResponse:
        caller = request[CALLER] = self._parts.callers.of(request.headers)
        name = request.match_info.get("name")
        if name is not None and request.path.startswith("/v2/models/"):
            caller.check_call(name)
        response: web.StreamResponse = await handler(request)
        return response

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(content_type="text/plain")

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._fleet.served else 400, content_type="text/plain")

    async def _metadata(self, _: web.Request) -> web.Response:
        return as_json(await self._parts.answers.metadata())

    async def _fleet_statistics(self, request: web.Request) -> web.Response:
        return as_json(await self._parts.answers.statistics(request[CALLER].may_call))

    async def _index(self, request: web.Request) -> web.Response:
        wanted: Any = False
        if body := await read_body(request):
            try:
                said = json.loads(body)
            except (ValueError, RecursionError):
                return _error(500, "failed to parse the request JSON buffer")
            # What is no object names nothing, to a Triton too.
            wanted = said.get("ready", False) if isinstance(said, dict) else False
        if not isinstance(wanted, bool):
            return _error(500, "attempt to access JSON non-boolean as boolean")
        return as_json(await self._parts.answers.repository_index(wanted, request[CALLER].may_call))

    async def _one_repository(self, _: web.Request) -> web.Response:
        return _error(501, "'repository_name' specification is not supported")

    async def _refuse(self, _: web.Request) -> web.Response:
        raise unchangeable()

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._fleet.routes:
            return _unknown(name, request.path)
        check_plain(request)
        if request.path.endswith("/stats"):
            found = await self._parts.answers.statistics_of(name, request.match_info.get("version", ""))
            if found is not None:
                return as_json(found)
        if self._fleet.traits(name).sequence_idle_us is None or not request.path.endswith(_INFERRING):
            return await self._stateless(request, name)
        body = await read_body(request)
        check_size(len(body), *self._body_limits(request, name))
        sequence = _sequence_of(body, request.headers)
        backend = self._fleet.choose_in_sequence((name, sequence.id), start=sequence.start)
        assert backend is not None  # the name is routed
        try:
            response = await self._proxy(request, backend, name, body)
            return _unserved(response) if isinstance(response, str) else response
        finally:
            self._fleet.leave_sequence((name, sequence.id), end=sequence.end)

    async def _stateless(self, request: web.Request, name: str) -> web.StreamResponse:
        """A request that a lost server did not answer goes to another one where its body is at hand."""
        limits = self._body_limits(request, name)
        body: Counted | bytes
        if is_encoded(request):
            body = await read_body(request)
            check_size(len(body), *limits)
        else:
            body = Counted(
                request.content, min(limit or LARGEST_BODY_BYTES for limit in limits), nesting_of(request)
            )
        attempts, response = Attempts(self._fleet, name, request[CALLER].name), UNREACHED
        while (backend := attempts.next()) is not None:
            answer = await self._proxy(request, backend, name, body)
            if not isinstance(answer, str):
                return answer
            response = answer
            begun = not isinstance(body, bytes) and body.begun
            if begun or not attempts.lost(backend, held=response == HELD):
                break
        return _unserved(response)

    def _body_limits(self, request: web.Request, name: str) -> tuple[int | None, int | None]:
        """Return those of the endpoint and of the client, which hold for inferences."""
        if not request.path.endswith(_INFERRING):
            return None, None
        return self._fleet.limit(name).max_body_bytes, request[CALLER].max_body_bytes

    async def _proxy(
        self, request: web.Request, backend: Backend, name: str, body: Counted | bytes
    ) -> web.StreamResponse | str:
        """The server's answer, passed on as it comes; HELD, UNREACHED or UNLOADED where it has none."""
        started = time.monotonic()
        dropped = _HOP | _ENCODINGS | OWN_HEADERS
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in dropped)
        status, sent, flags, unloaded = 0, 0, "--", False
        if not request.raw_path.startswith("/"):
            return _error(400, "the target of the request must be a path")
        try:
            with self._fleet.call(name, backend):
                async with self._sessions.request(
                    (backend.host, backend.http_port),
                    request.method,
                    request.raw_path,
                    data=body if request.body_exists else None,
                    headers=headers,
                ) as answer:
                    status = answer.status
                    missing = await answer.read() if status == 404 else b""
                    if "version" not in request.match_info and _is_unknown(missing, name):
                        status, unloaded = 503, True
                        self._fleet.lost(backend, name)
                        return UNLOADED
                    kept = ((k, v) for k, v in answer.headers.items() if k.lower() not in _HOP)
                    response = web.StreamResponse(status=status, headers=CIMultiDict(kept))
                    response.content_length = answer.content_length
                    await response.prepare(request)
                    if missing:
                        await response.write(missing)
                    async for part in answer.content.iter_any():
                        sent += len(part)
                        await response.write(part)
                    await response.write_eof()
                    return response
        except asyncio.CancelledError:
            flags = ABANDONED
            raise
        except aiohttp.InvalidURL:
            status = 400
            return _error(status, "the target of the request is no URL")
        except aiohttp.ClientError as problem:
            if isinstance(body, Counted) and body.refusal is not None:
                status = body.refusal.http
                raise body.refusal from None
            if sent or status:
                raise
            status = 503
            flags = UNREACHED if isinstance(problem, aiohttp.ClientConnectorError) else HELD
            self._fleet.lost(backend, name)
            return flags
        finally:
            if request.path.endswith(_INFERRING):
                size = len(body) if isinstance(body, bytes) else request.content_length or 0
                client, sizes = request[CALLER].name, (size, sent)
                self._parts.records.request(
                    name, backend, started, sizes, http=status, flags=flags, unloaded=unloaded, client=client
                )


@web.middleware
async def _tritons_words(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except Refusal as refused:
        answer = _error(refused.http, str(refused), request.path)
        answer.headers.update(refused.headers)
        return answer
    except HttpRefused as refused_by_server:
        return refused_by_server.answer
    except Refused as refused_by_all:
        return refusal(refused_by_all)
    except web.HTTPException as failure:
        return _error(failure.status, failure.reason, "/infer" if failure.status == 404 else request.path)


def _sequence_of(body: bytes, headers: Any) -> Sequence:
    length = headers.get(HEADER_LENGTH)
    try:
        said = json.loads(body[: int(length)] if length else body).get("parameters", {})
        name = str(said.get("sequence_id", ""))
        return Sequence(
            "" if name == "0" else name, bool(said.get("sequence_start")), bool(said.get("sequence_end"))
        )
    except (ValueError, AttributeError):
        return Sequence("", False, False)  # the server will say what is wrong with it


def _unserved(why: str) -> web.Response:
    if why == UNLOADED:
        raise ServerEnding
    return _error(503, _NOT_READY)


def _is_unknown(answer: bytes, name: str) -> bool:
    with contextlib.suppress(ValueError, AttributeError):
        return bool(json.loads(answer).get("error") == unknown_model(name))
    return False


def _unknown(name: str, path: str) -> web.Response:
    """Triton's answer for a model it does not have."""
    if path.endswith("/ready"):
        return _error(400, "Model version not ready", path)
    if path.endswith("/stats"):
        return _error(400, f"requested model '{name}' is not available")
    return _error(404, unknown_model(name), path)


def _error(status: int, words: str, path: str = "") -> web.Response:
    """Return a refusal in a Triton's form, which depends on the path."""
    answer = as_json({"error": words}, status)
    if status == web.HTTPMethodNotAllowed.status_code:
        answer.set_status(status, "Not Allowed")
    if path.endswith(_IN_PLAIN):
        answer.content_type = "text/plain"
    return answer

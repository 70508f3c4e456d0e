"""The facade's HTTP: the fleet's own calls, and whatever HAProxy finds no slot for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.callers import CALLER, NO_OPERATOR, NOT_GRANTED, OWN_HEADERS, Callers
from controlplane.gateway.facade.fleet_wide.broadcast import Refused
from controlplane.gateway.facade.fleet_wide.http_calls import refusal
from controlplane.gateway.facade.fleet_wide.kept import NotKept
from controlplane.gateway.facade.fleet_wide.regions import NotOwned
from controlplane.gateway.facade.limits import TooLarge, check_size
from controlplane.gateway.facade.messages.answers import BadBody, error
from controlplane.gateway.facade.messages.bodies import (
    HEADER_LENGTH,
    LARGEST_BYTES,
    Counted,
    is_encoded,
    nesting_of,
    read_body,
)
from controlplane.gateway.facade.messages.wire import Sequence
from controlplane.gateway.facade.records import ABANDONED, HELD, UNREACHED, Records
from controlplane.gateway.facade.routing.fleet import Fleet
from controlplane.gateway.facade.routing.statistics import Statistics
from controlplane.render.haproxy import LARGEST_BODY_BYTES

_REFUSED = "models are loaded and unloaded by the control plane, not by clients"
_NOT_READY = "no server of this model is ready"
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"})
_ENCODINGS = frozenset({"accept-encoding", "content-encoding"})
_MODEL = "/v2/models/{name:[^/]+}"
_VERSION = r"/versions/{version:\d+}"
_INFERRING = ("/infer", "/generate", "/generate_stream")


class Http:
    """Handlers; every one answers as a Triton would."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        records: Records,
        statistics: Statistics,
        callers: Callers,
    ) -> None:
        self._fleet = fleet
        self._statistics = statistics
        self._session = session
        self._records = records
        self._callers = callers

    def application(self, fleet_wide_calls: Iterable[web.RouteDef]) -> web.Application:
        """Return all paths; those of fleet-wide calls are for operators."""
        app = web.Application(client_max_size=LARGEST_BYTES, middlewares=[_tritons_words, self._identified])
        get, post = web.get, web.post
        app.add_routes(
            [
                get("/v2", self._metadata),
                get("/v2/health/live", self._live),
                get("/v2/health/ready", self._ready),
                post("/v2/repository/index", self._index),
                post("/v2/repository/models/{name}/load", self._refuse),
                post("/v2/repository/models/{name}/unload", self._refuse),
                get("/v2/models/stats", self._fleet_statistics),
                *(web.route(r.method, r.path, _for_operators(r.handler)) for r in fleet_wide_calls),
            ]
        )
        for prefix in (_MODEL, _MODEL + _VERSION):
            for suffix in ("", "/ready", "/config", "/stats"):
                app.router.add_get(prefix + suffix, self._model)
            for suffix in _INFERRING:
                app.router.add_post(prefix + suffix, self._model)
        return app

    @web.middleware
    async def _identified(self, request: web.Request, handler: Any) -> web.StreamResponse:
        caller = self._callers.of(request.headers)
        if caller is None:
            return error(403, "requests reach this port through the gateway only")
        request[CALLER] = caller
        name = request.match_info.get("name")
        if name is not None and request.path.startswith("/v2/models/") and not caller.may_call(name):
            return error(403, NOT_GRANTED)
        response: web.StreamResponse = await handler(request)
        return response

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if await self._fleet.ready() else 400)

    async def _metadata(self, _: web.Request) -> web.Response:
        return web.json_response(await self._fleet.metadata())

    async def _fleet_statistics(self, request: web.Request) -> web.Response:
        return web.json_response(await self._statistics.of_fleet(request[CALLER].may_call))

    async def _index(self, request: web.Request) -> web.Response:
        wanted = False
        if body := await read_body(request):
            try:
                wanted = bool(json.loads(body).get("ready", False))
            except (ValueError, AttributeError):
                return error(500, "failed to parse the request JSON buffer")
        return web.json_response(await self._fleet.repository_index(wanted, request[CALLER].may_call))

    async def _refuse(self, _: web.Request) -> web.Response:
        return error(403, _REFUSED)

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
        check_size(len(body), *self._body_limits(request, name))
        sequence = _sequence_of(body, request.headers)
        backend = self._fleet.choose_in_sequence((name, sequence.id), start=sequence.start)
        assert backend is not None  # the name is routed
        try:
            response = await self._proxy(request, backend, name, body)
            return error(503, _NOT_READY) if isinstance(response, str) else response
        finally:
            self._fleet.leave_sequence((name, sequence.id), end=sequence.end)

    async def _stateless(self, request: web.Request, name: str) -> web.StreamResponse:
        """A request that a lost server did not answer goes to another one where its body is at hand.

        One that a lost server held goes to one more at most: it may be what ended the server.
        """
        limits = self._body_limits(request, name)
        body: Counted | bytes
        if is_encoded(request):
            body = await read_body(request)
            check_size(len(body), *limits)
        else:
            body = Counted(
                request.content, min(limit or LARGEST_BODY_BYTES for limit in limits), nesting_of(request)
            )
        tried: set[str] = set()
        resends = self._fleet.resends(name, request[CALLER].name)
        while True:
            backend = self._fleet.choose(name)
            if backend is None or backend.server in tried:
                return error(503, _NOT_READY)
            response = await self._proxy(request, backend, name, body)
            if not isinstance(response, str):
                return response
            tried.add(backend.server)
            if (not isinstance(body, bytes) and body.begun) or (response == HELD and not resends):
                return error(503, _NOT_READY)
            resends = resends and response != HELD

    def _body_limits(self, request: web.Request, name: str) -> tuple[int | None, int | None]:
        """Return those of the endpoint and of the client, which hold for inferences."""
        if not request.path.endswith(_INFERRING):
            return None, None
        return self._fleet.limit(name).max_body_bytes, request[CALLER].max_body_bytes

    async def _proxy(
        self, request: web.Request, backend: Backend, name: str, body: Counted | bytes
    ) -> web.StreamResponse | str:
        """The server's answer, passed on as it comes; HELD or UNREACHED where the server was lost."""
        started = time.monotonic()
        dropped = _HOP | _ENCODINGS | OWN_HEADERS
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in dropped)
        status, sent, flags = 0, 0, "--"
        if not request.raw_path.startswith("/"):
            return error(400, "the target of the request must be a path")
        url = f"http://{backend.host}:{backend.http_port}{request.raw_path}"
        try:
            with self._fleet.call(name, backend):
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
        except asyncio.CancelledError:
            flags = ABANDONED
            raise
        except aiohttp.InvalidURL:
            status = 400
            return error(status, "the target of the request is no URL")
        except aiohttp.ClientError as problem:
            if isinstance(body, Counted) and body.refusal is not None:
                status = body.refusal.status
                raise body.refusal from None
            if sent or status:
                raise
            status = 503
            flags = UNREACHED if isinstance(problem, aiohttp.ClientConnectorError) else HELD
            self._fleet.lost(backend)
            return flags
        finally:
            if request.path.endswith(_INFERRING):
                size = len(body) if isinstance(body, bytes) else request.content_length or 0
                client = request[CALLER].name
                self._records.request(
                    name, backend, started, size, sent, http=status, grpc=None, flags=flags, client=client
                )


def _for_operators(handler: Any) -> Any:
    async def handle(request: web.Request) -> web.StreamResponse:
        if not request[CALLER].may_operate:
            return error(403, NO_OPERATOR)
        response: web.StreamResponse = await handler(request)
        return response

    return handle


@web.middleware
async def _tritons_words(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answer refusals in a Triton's form."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except BadBody as bad:
        answer = error(bad.status, str(bad))
        answer.headers.update(bad.headers)
        return answer
    except NotKept as full:
        return error(400, str(full))
    except TooLarge as excess:
        return error(413, str(excess))
    except NotOwned as denied:
        return error(403, str(denied))
    except Refused as refused:
        return refusal(refused)
    except web.HTTPException as failure:
        return error(failure.status, failure.reason)


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


def _unknown(name: str, path: str) -> web.Response:
    """Triton's answer for a model it does not have."""
    if path.endswith("/ready"):
        return error(400, "Model version not ready")
    if path.endswith("/stats"):
        return error(400, f"requested model '{name}' is not available")
    return error(404, f"Request for unknown model: '{name}' is not found")

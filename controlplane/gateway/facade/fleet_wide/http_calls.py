"""Fleet-wide calls over HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.callers import CALLER
from controlplane.gateway.facade.fleet_wide.broadcast import (
    DENIED,
    Broadcast,
    Call,
    HttpAnswer,
    HttpRefused,
    Refused,
)
from controlplane.gateway.facade.fleet_wide.kept import Body, region_key
from controlplane.gateway.facade.fleet_wide.regions import ANY_REGION, Regions
from controlplane.gateway.facade.messages.answers import error
from controlplane.gateway.facade.messages.bodies import read_body
from controlplane.gateway.facade.routing.fleet import Fleet, everyone

_NO_SERVER = "no server runs in this fleet"


class HttpCalls:
    """Handlers of fleet-wide calls. They raise NotKept, NotOwned and Refused (`refusal` is its answer)."""

    def __init__(self, fleet: Fleet, broadcast: Broadcast) -> None:
        self._fleet = fleet
        self._broadcast = broadcast

    def routes(self, *, allowed: bool) -> list[web.RouteDef]:
        """Return the paths; unless `allowed`, each refuses."""
        found: list[tuple[str, str, Any]] = []
        for path in ("/v2/trace/setting", "/v2/models/{name:[^/]+}/trace/setting", "/v2/logging"):
            found += [("GET", path, self._settings), ("POST", path, self._settings)]
        for kind in ("system", "cuda"):
            memory = f"/v2/{kind}sharedmemory"
            for scope in (memory, memory + "/region/{name}"):
                found.append(("GET", scope + "/status", self._status))
                found.append(("POST", scope + "/unregister", self._unregister))
            found.append(("POST", memory + "/region/{name}/register", self._register))
        return [web.route(method, path, handler if allowed else _deny) for method, path, handler in found]

    async def _status(self, request: web.Request) -> web.Response:
        owned = _regions(request)
        if (name := request.match_info.get("name")) is not None:
            owned.check(name)
        answer = await self._first(request, self._fleet.servers())
        if answer.status != 200 or owned is ANY_REGION:
            return answer
        assert isinstance(answer.body, bytes)
        listed = json.loads(answer.body)
        return web.json_response([one for one in listed if owned.owns(one.get("name", ""))])

    async def _first(self, request: web.Request, servers: Sequence[Backend]) -> web.Response:
        if not servers:
            return error(503, _NO_SERVER)
        try:
            return _as_response(await self._broadcast.http(servers[0], request.method, _path(request), b""))
        except HttpRefused as refused:
            return _as_response(refused.answer)
        except (aiohttp.ClientError, TimeoutError) as silence:
            return error(503, f"{servers[0].server} does not answer: {silence}")

    async def _register(self, request: web.Request) -> web.Response:
        path = _path(request)
        kind, name = path.split("/")[2].removesuffix("sharedmemory"), path.split("/")[4]
        body = await read_body(request)
        key = str(_object(body).get("key", "")) if kind == "system" else None
        _regions(request).check(name, key)
        undo = path.removesuffix("register") + "unregister"
        call = Call(
            self._post(path, body), undo=self._post(undo, b""), keep=(region_key(kind, name), _object(body))
        )
        return await self._send(self._fleet.servers(), call)

    async def _unregister(self, request: web.Request) -> web.Response:
        path, owned = _path(request), _regions(request)
        scope = path.removesuffix("unregister")
        if (name := request.match_info.get("name")) is not None:
            owned.check(name)
        elif owned is not ANY_REGION:
            for one in filter(owned.owns, self._broadcast.regions(path.split("/")[2])):
                answer = await self._unregister_one(f"{scope}region/{one}/")
                if answer.status != 200:
                    return answer
            return web.Response()
        else:
            call = Call(self._post(path, await read_body(request)), forget=f"{scope}region/")
            return await self._send(self._fleet.servers(), call)
        return await self._unregister_one(scope)

    async def _unregister_one(self, region: str) -> web.Response:
        call = Call(self._post(f"{region}unregister", b""), forget=region)
        return await self._send(self._fleet.servers(), call)

    async def _settings(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name")
        if name is not None and name not in self._fleet.routes:
            return error(400, f"Request for unknown model : {name}")
        targets = self._fleet.servers() if name is None else everyone(self._fleet.routes[name])
        body = await read_body(request)
        if request.method == "GET" or not body or not targets:
            return await self._first(request, targets)
        path, wanted = _path(request), _object(body)
        status, before = await self._fleet.ask(targets[0], path)
        old = {key: before[key] for key in wanted if key in before} if status == 200 and before else {}
        keep: tuple[str, Body] | None = (path, wanted) if wanted else None
        call = Call(self._post(path, body), undo=self._post(path, json.dumps(old).encode()), keep=keep)
        return await self._send(targets, call)

    def _post(self, path: str, body: bytes) -> Any:
        return partial(self._broadcast.http, method="POST", path=path, body=body)

    async def _send(self, targets: Sequence[Backend], call: Call[HttpAnswer]) -> web.Response:
        if not targets:
            return error(503, _NO_SERVER)
        return _as_response(await self._broadcast.send(targets, call))


def refusal(refused: Refused) -> web.Response:
    """Return the answer for a call that a server refused: its own words where it was the first one."""
    answer = refused.cause.answer if isinstance(refused.cause, HttpRefused) else None
    if refused.first and answer is not None:
        return _as_response(answer)
    status = 503 if answer is None else answer.status
    return error(status, f"{refused.backend.server} refused: {refused}; nothing was changed anywhere")


async def _deny(_: web.Request) -> web.Response:
    return error(403, DENIED)


def _regions(request: web.Request) -> Regions:
    found: Regions = request[CALLER].regions
    return found


def _path(request: web.Request) -> str:
    """Return the path as written, without its query: a Triton reads no query and decodes no escapes."""
    return request.rel_url.raw_path


def _object(body: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else, which the servers will refuse."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _as_response(answer: HttpAnswer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)

"""Fleet-wide calls over HTTP."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web
from grpc import StatusCode

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.bodies import read_body
from controlplane.gateway.facade.callers import ANY_REGION, CALLER
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.facade.fleet_wide.broadcast import Broadcast, Call, HttpRefused, Refused, Region
from controlplane.gateway.facade.refusals import Refusal


class HttpCalls:
    """Handlers of fleet-wide calls. They raise Refusal, Refused and HttpRefused."""

    def __init__(self, fleet: Fleet, broadcast: Broadcast) -> None:
        self._fleet = fleet
        self._broadcast = broadcast

    def routes(self) -> list[web.RouteDef]:
        """Return the paths."""
        found = []
        for path in ("/v2/trace/setting", "/v2/models/{name:[^/]+}/trace/setting", "/v2/logging"):
            found += [web.get(path, self._settings, allow_head=False), web.post(path, self._settings)]
        for kind in ("system", "cuda"):
            memory = f"/v2/{kind}sharedmemory"
            for scope in (memory, memory + "/region/{name}"):
                found.append(web.get(scope + "/status", self._status, allow_head=False))
                found.append(web.post(scope + "/unregister", self._unregister))
            found.append(web.post(memory + "/region/{name}/register", self._register))
        return found

    async def _status(self, request: web.Request) -> web.Response:
        owned, region = self._broadcast.admit(request[CALLER]), _region(request)
        if region.name:
            owned.check(region.name)
        answer = await self._ask(request, self._fleet.all_servers()[0])
        if owned is ANY_REGION:
            return answer
        listed = json.loads(answer.text or "[]")
        return as_json([one for one in listed if owned.owns(one.get("name", ""))])

    async def _register(self, request: web.Request) -> web.Response:
        owned, region = self._broadcast.admit(request[CALLER]), _region(request)
        body = await read_body(request)
        kept = _object(body)
        owned.check(region.name, str(kept.get("key", "")) if region.kind == "system" else None)
        call = Call(
            self._post(_path(request), body),
            undo=self._post(f"{region.prefix}unregister", b""),
            keep=(region.key, kept),
        )
        return await self._broadcast.send(self._fleet.all_servers(), call)

    async def _unregister(self, request: web.Request) -> web.Response:
        owned, region = self._broadcast.admit(request[CALLER]), _region(request)
        body = b"" if region.name else await read_body(request)
        answer = web.Response()
        for one in self._broadcast.regions_to_remove(region, owned):
            path = f"{one.prefix}unregister" if one.name else _path(request)
            call = Call(self._post(path, b"" if one.name else body), forget=one.prefix)
            answer = await self._broadcast.send(self._fleet.all_servers(), call)
        return answer

    async def _settings(self, request: web.Request) -> web.Response:
        self._broadcast.admit(request[CALLER])
        name = request.match_info.get("name")
        targets = self._fleet.all_servers() if name is None else self._fleet.known(name).servers
        body = await read_body(request)
        if request.method == "GET" or not body:
            return await self._ask(request, targets[0])
        path, wanted = _path(request), _object(body)
        status, before = await self._fleet.ask(targets[0], path)
        old = {key: before[key] for key in wanted if key in before} if status == 200 and before else {}
        call = Call(
            self._post(path, body),
            undo=self._post(path, json.dumps(old).encode()),
            keep=(path, wanted) if wanted else None,
        )
        return await self._broadcast.send(targets, call)

    async def _ask(self, request: web.Request, server: Backend) -> web.Response:
        try:
            return await self._broadcast.http(server, request.method, _path(request))
        except (aiohttp.ClientError, TimeoutError) as silence:
            words = f"{server.server} does not answer: {silence}"
            raise Refusal(StatusCode.UNAVAILABLE, words) from silence

    def _post(self, path: str, body: bytes) -> Any:
        return partial(self._broadcast.http, method="POST", path=path, body=body)


def refusal(refused: Refused) -> web.Response:
    """Return the answer for a call that a server refused: its own words where it was the first one."""
    answer = refused.cause.answer if isinstance(refused.cause, HttpRefused) else None
    if refused.first and answer is not None:
        return answer
    status = 503 if answer is None else answer.status
    words = f"{refused.backend.server} refused: {refused}; nothing was changed anywhere"
    return as_json({"error": words}, status)


def as_json(content: object, status: int = 200) -> web.Response:
    """Return an answer as a Triton writes it: without spaces, in UTF-8, which its type does not say."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return web.Response(status=status, body=text.encode(), content_type="application/json")


def _path(request: web.Request) -> str:
    """Return the path as written, without its query: a Triton reads no query and decodes no escapes."""
    return request.rel_url.raw_path


def _region(request: web.Request) -> Region:
    parts = _path(request).split("/")
    return Region(parts[2].removesuffix("sharedmemory"), parts[4] if parts[3] == "region" else "")


def _object(body: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else, which the servers will refuse."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

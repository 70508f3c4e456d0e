"""The facade's view of the fleet: routes as last committed, and the calls it holds open."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp

from controlplane.domain.fleet import Backend, Route, Routes
from controlplane.gateway import store
from controlplane.gateway.places import Places

_ASK_TIMEOUT = aiohttp.ClientTimeout(total=2.0, connect=1.0)


class Fleet:
    """Which server answers for which endpoint, asked for every message."""

    def __init__(self, places: Places, session: aiohttp.ClientSession) -> None:
        self._places = places
        self._session = session
        self.routes: Routes = {}
        self.open: Counter[str] = Counter()

    def reload(self) -> None:
        """Take the routes from disk."""
        self.routes = store.load(self._places, store.settings_of(self._places))[1].routes()

    def choose(self, endpoint: str) -> Backend | None:
        """The member with the fewest of our calls open; None for an endpoint nobody serves."""
        route = self.routes.get(endpoint)
        return None if route is None else min(route.members, key=lambda member: self.open[member.server])

    def servers(self) -> tuple[Backend, ...]:
        """Every server of the fleet once, backups included."""
        found = {b.server: b for route in self.routes.values() for b in _all(route)}
        return tuple(found[name] for name in sorted(found))

    @contextlib.contextmanager
    def call(self, backend: Backend) -> Iterator[None]:
        """Counts a call as open on a server."""
        self.open[backend.server] += 1
        try:
            yield
        finally:
            self.open[backend.server] -= 1

    async def ask(self, backend: Backend, path: str, body: object | None = None) -> tuple[int, Any]:
        """A server's status and JSON; status 0 where it does not answer."""
        url = f"http://{backend.host}:{backend.http_port}{path}"
        method = "GET" if body is None else "POST"
        try:
            async with self._session.request(method, url, json=body, timeout=_ASK_TIMEOUT) as answer:
                text = await answer.read()
                if not text or answer.content_type != "application/json":
                    return answer.status, None
                return answer.status, await answer.json()
        except (TimeoutError, aiohttp.ClientError):
            return 0, None

    async def ready(self) -> bool:
        """Whether every endpoint has a server that says the endpoint is ready."""

        async def served(endpoint: str, route: Route) -> bool:
            answers = await asyncio.gather(
                *(self.ask(backend, f"/v2/models/{endpoint}/ready") for backend in _all(route))
            )
            return any(status == 200 for status, _ in answers)

        return all(await asyncio.gather(*(served(e, r) for e, r in self.routes.items())))

    async def metadata(self) -> Mapping[str, Any]:
        """As one server's: the version of the first that answers, the extensions all of them have."""
        answers = await asyncio.gather(*(self.ask(server, "/v2") for server in self.servers()))
        known = [content for status, content in answers if status == 200 and content]
        if not known:
            return {"name": "triton", "version": "", "extensions": []}
        shared = set.intersection(*(set(one.get("extensions", ())) for one in known))
        return {
            "name": "triton",
            "version": known[0].get("version", ""),
            "extensions": [name for name in known[0].get("extensions", ()) if name in shared],
        }

    async def repository_index(self, ready_only: bool) -> list[Mapping[str, Any]]:
        """One entry for each endpoint's version, from the first of its servers that answers."""

        async def entries(endpoint: str, route: Route) -> list[Mapping[str, Any]]:
            for backend in _all(route):
                status, content = await self.ask(backend, "/v2/repository/index", {"ready": ready_only})
                if status == 200 and content is not None:
                    return [entry for entry in content if entry.get("name") == endpoint]
            return [] if ready_only else [{"name": endpoint, "state": "UNAVAILABLE", "reason": "no answer"}]

        found = await asyncio.gather(*(entries(e, self.routes[e]) for e in sorted(self.routes)))
        return [entry for part in found for entry in part]


def _all(route: Route) -> tuple[Backend, ...]:
    return route.members if route.backup is None else (*route.members, route.backup)

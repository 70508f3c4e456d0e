"""The fleet's own answers, as one Triton gives them: metadata, index and statistics.

Servers come and go. A client takes differences of counters (perf_analyzer fails if one decreases), so the
last counters of a server stay in the sum after its requests go to another one. What the fleet itself asked of
a server is left out.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from controlplane.domain.fleet import Backend, Route
from controlplane.domain.observation import LATEST, Entry, combine, difference
from controlplane.files.gateway.discounts import read_discounts
from controlplane.gateway.facade.callers import Callers
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.facade.fleet_wide.broadcast import Broadcast
from controlplane.gateway.facade.records import Records

_OF_NOW = "memory_usage"
_SERVERS = 64
_DRAINED_S = 120.0
"""A server that requests left has none to finish after that."""
_LAST_S = 0.2
"""Between two readings of a server that requests left: what it answers after the last one is not counted."""


class Ledger:
    """The last counters of each model on each server. Pure."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], dict[str, Entry]] = {}
        self._counted: dict[tuple[str, str, str], int] = {}
        self._before: dict[tuple[str, str], Entry] = {}

    def note(self, server: str, entry: Entry, own: Entry | None = None) -> None:
        """Take a server's counters, of which `own` are the fleet's own inferences.

        Lower ones than before are those of a server that was started anew. One of `own` may be there before
        the server has counted it: then what was counted before stays.
        """
        model = (entry["name"], entry["version"])
        servers = self._said.setdefault(model, {})
        last = servers.pop(server, None)
        counted = self._counted.get((server, *model), 0)
        if last is not None and entry["inference_count"] < counted:
            self._put_away(model, last)
            last = None
        self._counted[server, *model] = entry["inference_count"]
        if own is not None:
            entry = _less(entry, own, last or {})
        servers[server] = entry
        if len(servers) > _SERVERS:
            # It answered longest ago: it has been gone for long.
            longest = next(iter(servers))
            del self._counted[longest, *model]
            self._put_away(model, servers.pop(longest))

    def total(self, endpoint: str, version: str, serving: Iterable[str]) -> list[Entry]:
        """One entry a version (only this one, unless it is empty), all servers' counters added up.

        Memory use is that of the `serving` servers alone.
        """
        totals = []
        for model, servers in self._said.items():
            if model[0] != endpoint or version not in ("", model[1]):
                continue
            entries = [
                entry if server in serving else _without_present(entry) for server, entry in servers.items()
            ]
            if model in self._before:
                entries.append(self._before[model])
            totals.append(functools.reduce(combine, reversed(entries)))
        return totals

    def _put_away(self, model: tuple[str, str], entry: Entry) -> None:
        self._before[model] = combine(self._before.get(model, {}), _without_present(entry))


class FleetAnswers:
    """Asks the servers; of statistics it keeps the ledger."""

    def __init__(self, fleet: Fleet, discounts: Path) -> None:
        self._fleet = fleet
        self._discounts = discounts
        self._ledger = Ledger()
        self._routes = fleet.routes
        self._left: dict[tuple[str, Backend], float] = {}
        self._moved = asyncio.Event()
        fleet.moved.add(self._note_moves)

    async def metadata(self) -> Mapping[str, Any]:
        """As one server's: the version of the first that answers, the extensions all of them have."""
        answers = await asyncio.gather(*(self._fleet.ask(server, "/v2") for server in self._fleet.servers()))
        known = [content for status, content in answers if status == 200 and content]
        if not known:
            return {"name": "triton", "version": "", "extensions": []}
        shared = set.intersection(*(set(one.get("extensions", ())) for one in known))
        return {
            "name": "triton",
            "version": known[0].get("version", ""),
            "extensions": [name for name in known[0].get("extensions", ()) if name in shared],
        }

    async def repository_index(
        self, ready_only: bool, visible: Callable[[str], bool]
    ) -> list[Mapping[str, Any]]:
        """Return an entry for each visible endpoint's version, from the first of its servers that answers."""

        async def entries(endpoint: str, route: Route) -> list[Mapping[str, Any]]:
            # A server's own index is locked: readiness and metadata say the same of one model.
            model = f"/v2/models/{quote(endpoint, safe='')}"
            for backend in route.servers:
                status, content = await self._fleet.ask(backend, model)
                if status == 200 and content is not None:
                    versions = content.get("versions", ())
                    return [{"name": endpoint, "version": v, "state": "READY"} for v in versions]
            return [] if ready_only else [{"name": endpoint, "state": "UNAVAILABLE", "reason": "no answer"}]

        endpoints = sorted(filter(visible, self._fleet.routes))
        found = await asyncio.gather(*(entries(e, self._fleet.routes[e]) for e in endpoints))
        return [entry for part in found for entry in part]

    async def statistics(self, visible: Callable[[str], bool]) -> dict[str, Any]:
        """Return those of every visible endpoint."""
        endpoints = sorted(filter(visible, self._fleet.routes))
        found = await asyncio.gather(*(self.statistics_of(endpoint, "") for endpoint in endpoints))
        return {"model_stats": [entry for one in found if one is not None for entry in one["model_stats"]]}

    async def statistics_of(self, endpoint: str, version: str) -> dict[str, Any] | None:
        """One routed endpoint's, of all versions where none is named; None where no member knows it."""
        route = self._fleet.routes[endpoint]
        left = (server for of, server in self._left if of == endpoint)
        asked = dict.fromkeys((*route.servers, *left))
        answered = await asyncio.gather(*(self._ask(server, endpoint, version) for server in asked))
        if not any(answered[: len(route.members)]):
            return None
        serving = {member.server for member in route.members}
        return {"model_stats": self._ledger.total(endpoint, version, serving)}

    async def read_last(self) -> None:
        """Read the counters of servers that requests left until they end. Never returns."""
        while True:
            await self._moved.wait()
            await asyncio.sleep(_LAST_S)
            for (endpoint, server), until_s in list(self._left.items()):
                if time.monotonic() > until_s or not await self._ask(server, endpoint, ""):
                    self._left.pop((endpoint, server), None)
            if not self._left:
                self._moved.clear()

    def _note_moves(self) -> None:
        """Remember the servers that an endpoint's requests left, which have some to finish."""
        before, self._routes = self._routes, self._fleet.routes
        if before is self._routes:
            return
        for endpoint, route in before.items():
            now = self._routes.get(endpoint)
            for server in route.servers:
                if now is None or server not in now.servers:
                    self._left[endpoint, server] = time.monotonic() + _DRAINED_S
                    self._moved.set()

    async def _ask(self, member: Backend, endpoint: str, version: str) -> bool:
        scope = f"/versions/{quote(version, safe='')}" if version else ""
        status, content = await self._fleet.ask(member, f"/v2/models/{quote(endpoint, safe='')}{scope}/stats")
        if status != 200 or not content:
            return False
        own = read_discounts(self._discounts, member.server)
        for entry in content["model_stats"]:
            self._ledger.note(member.server, entry, own.get((entry["name"], entry["version"])))
        return True


@dataclass(frozen=True, slots=True)
class Parts:
    """What both protocols of a facade use."""

    fleet: Fleet
    """The server of each message, and the open calls."""
    answers: FleetAnswers
    """The answers that no single Triton can give."""
    broadcast: Broadcast
    """Sends fleet-wide calls to every server."""
    records: Records
    """A line for each inference, for the monitor."""
    callers: Callers
    """The client of each request, and its permissions."""


def _without_present(entry: Entry) -> Entry:
    return {key: value for key, value in entry.items() if key != _OF_NOW}


def _less(entry: Entry, own: Entry, last: Entry) -> Entry:
    """Return a server's counters without the fleet's own inferences, none of them below the last ones."""
    clients = combine(difference(entry, own), _without_present(last), max)
    if clients["inference_count"] == last.get("inference_count", 0):
        clients[LATEST] = last.get(LATEST, 0)  # the later one is the fleet's own
    if "batch_stats" in clients:
        clients["batch_stats"] = [batch for batch in clients["batch_stats"] if _has_counted(batch)]
    if "response_stats" in clients:
        responses = clients["response_stats"].items()
        clients["response_stats"] = {place: found for place, found in responses if _has_counted(found)}
    return clients


def _has_counted(statistics: Entry) -> bool:
    return any(one["count"] for one in statistics.values() if isinstance(one, dict))

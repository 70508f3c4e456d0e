"""The fleet's own answers, as one Triton gives them: metadata, index and statistics.

Servers come and go. A client takes differences of counters (perf_analyzer fails if one decreases), so the
last counters of a server stay in the sum after its requests go to another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from controlplane.domain.fleet import Backend, Route
from controlplane.gateway.facade.fleet import Fleet

_LATEST = "last_inference"
_SAME = frozenset({"name", "version", "batch_size", "type", "id"})
_OF_NOW = "memory_usage"
_SERVERS = 64

Entry = dict[str, Any]
"""One model's version, as in Triton's `model_stats`."""


class Ledger:
    """The last counters of each model on each server. Pure."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], dict[str, Entry]] = {}
        self._before: dict[tuple[str, str], Entry] = {}

    def note(self, server: str, entry: Entry) -> None:
        """A server's counters now; lower ones than before are those of a server that was started anew."""
        model = (entry["name"], entry["version"])
        servers = self._said.setdefault(model, {})
        last = servers.pop(server, None)
        if last is not None and entry["inference_count"] < last["inference_count"]:
            self._put_away(model, last)
        servers[server] = entry
        if len(servers) > _SERVERS:
            # It answered longest ago: it has been gone for long.
            self._put_away(model, servers.pop(next(iter(servers))))

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
            total, *others = reversed(entries)
            for other in others:
                total = merge(total, other)
            totals.append(total)
        return totals

    def _put_away(self, model: tuple[str, str], entry: Entry) -> None:
        entry = _without_present(entry)
        before = self._before.get(model)
        self._before[model] = entry if before is None else merge(before, entry)


class FleetAnswers:
    """Asks the servers; of statistics it keeps the ledger."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ledger = Ledger()

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
        members = self._fleet.routes[endpoint].members
        if not any(await asyncio.gather(*(self._ask(member, endpoint, version) for member in members))):
            return None
        serving = {member.server for member in members}
        return {"model_stats": self._ledger.total(endpoint, version, serving)}

    async def _ask(self, member: Backend, endpoint: str, version: str) -> bool:
        scope = f"/versions/{quote(version, safe='')}" if version else ""
        status, content = await self._fleet.ask(member, f"/v2/models/{quote(endpoint, safe='')}{scope}/stats")
        if status != 200 or not content:
            return False
        for entry in content["model_stats"]:
            self._ledger.note(member.server, entry)
        return True


def _without_present(entry: Entry) -> Entry:
    return {key: value for key, value in entry.items() if key != _OF_NOW}


def merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two servers' counters of the same model, added; times of day are the later one."""
    merged = dict(one)
    for key, value in other.items():
        mine = merged.get(key)
        if mine is None or key in _SAME:
            merged[key] = value if mine is None else mine
        elif key == _LATEST:
            merged[key] = max(mine, value)
        elif isinstance(value, dict):
            merged[key] = merge(mine, value)
        elif isinstance(value, list):
            merged[key] = _by_batch(mine, value) if key == "batch_stats" else mine + value
        else:
            merged[key] = mine + value
    return merged


def _by_batch(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sizes = {entry["batch_size"]: entry for entry in one}
    for entry in other:
        size = entry["batch_size"]
        sizes[size] = merge(sizes[size], entry) if size in sizes else entry
    return [sizes[size] for size in sorted(sizes)]

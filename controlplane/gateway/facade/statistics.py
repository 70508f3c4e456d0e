"""The statistics of the fleet or of a pool, in the shape in which one Triton gives its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.fleet import Fleet

_LATEST = "last_inference"
_SAME = frozenset({"name", "version", "batch_size", "type", "id"})


async def fleet_statistics(fleet: Fleet) -> dict[str, Any]:
    """Every endpoint's, from its members; a pool's are added up."""
    wanted = [
        (member, f"/v2/models/{quote(endpoint, safe='')}/stats")
        for endpoint, route in sorted(fleet.routes.items())
        for member in route.members
    ]
    return await _added_up(fleet, wanted)


async def pool_statistics(fleet: Fleet, endpoint: str, version: str) -> dict[str, Any] | None:
    """One endpoint's, of all versions where none is named; None where one server serves it or none knows it.

    Then a server's own answer says more.
    """
    members = fleet.routes[endpoint].members
    if len(members) == 1:
        return None
    path = f"/v2/models/{quote(endpoint, safe='')}{f'/versions/{version}' if version else ''}/stats"
    found = await _added_up(fleet, [(member, path) for member in members])
    return found if found["model_stats"] else None


async def _added_up(fleet: Fleet, wanted: Sequence[tuple[Backend, str]]) -> dict[str, Any]:
    answers = await asyncio.gather(*(fleet.ask(member, path) for member, path in wanted))
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for status, content in answers:
        for entry in content.get("model_stats", ()) if status == 200 and content else ():
            key = (entry["name"], entry["version"])
            entries[key] = merge(entries[key], entry) if key in entries else entry
    return {"model_stats": list(entries.values())}


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

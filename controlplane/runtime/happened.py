"""All that happened to a fleet: its history, and what the gateway's supervisor wrote down by itself.

The supervisor needs no controller and knows of no history: what it writes is put in between by who asks.
"""

from __future__ import annotations

from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import read_restarts
from controlplane.gateway.places import Places
from controlplane.runtime.history import Event, History


def restarts(files: FleetFiles) -> tuple[Event, ...]:
    """The gateway's processes that died and were started again lately, oldest first."""
    told = read_restarts(Places.of(files.gateway).restarts)
    return tuple(Event(one.at_s, "warning", "restart", one.role, one.reason) for one in told)


def events(files: FleetFiles, *, since_s: float, limit: int) -> tuple[Event, ...]:
    """The newest `limit` events from `since_s` on, oldest first. Raises EngineError for a broken history."""
    told = History(files.history).events(since_s=since_s, limit=limit)
    again = (event for event in restarts(files) if event.at_s >= since_s)
    return tuple(sorted((*told, *again), key=lambda event: event.at_s)[-limit:])

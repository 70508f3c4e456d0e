"""A fleet's events: its history, and the restarts that the gateway's supervisor recorded.

The supervisor runs without a controller and does not write to the history, so readers merge its records.
A fleet's history outlives it, in a file beside its directory, until a fleet of that name ends again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from controlplane.domain.errors import EngineError
from controlplane.domain.observation import Event
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import read_restarts
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.runtime.fleet.history import History

if TYPE_CHECKING:
    from controlplane.runtime.fleet.fleet import Fleet, Outcome

_KEPT_EVENTS = 1000
_KEPT_FLEETS = 20
"""Histories of ended fleets."""


def restarts(files: FleetFiles) -> tuple[Event, ...]:
    """Return the gateway's recent restarts of processes that died, oldest first."""
    told = read_restarts(GatewayPaths.of(files.gateway).restarts)
    return tuple(Event(one.at_s, "warning", "restart", one.role, one.reason) for one in told)


def events(files: FleetFiles, *, since_s: float, limit: int) -> tuple[Event, ...]:
    """Return the newest `limit` events from `since_s` on, oldest first, also of a fleet that has ended.

    Raises EngineError for a broken history.
    """
    if not files.exists() and files.ended.exists():
        return History(files.ended).events(since_s=since_s, limit=limit)
    told = History(files.history).events(since_s=since_s, limit=limit)
    again = (event for event in restarts(files) if event.at_s >= since_s)
    return tuple(sorted((*told, *again), key=lambda event: event.at_s)[-limit:])


def destroy(fleet: Fleet) -> Outcome:
    """End a fleet and keep its history, including the end. Raises as `Fleet.destroy` does."""
    from controlplane.control.converge.actions import Stop
    from controlplane.report.words import counted

    known, told = fleet.files.exists(), tuple[Event, ...]()
    if known:
        with contextlib.suppress(EngineError):
            told = events(fleet.files, since_s=0.0, limit=_KEPT_EVENTS)
    outcome = fleet.destroy()
    if known or outcome.actions:
        stopped = counted(sum(isinstance(a, Stop) for a in outcome.actions), "server")
        end = Event(fleet.clock.wall(), "info", "destroy", fleet.name, f"by hand: {stopped} stopped")
        with contextlib.suppress(OSError):
            fleet.files.ended.unlink(missing_ok=True)
            History(fleet.files.ended).write(*told, end)
            kept = fleet.files.ended.parent.glob("*.sqlite")
            for old in sorted(kept, key=lambda path: path.stat().st_mtime)[:-_KEPT_FLEETS]:
                old.unlink()
    return outcome

"""What both protocols of the facade use."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.gateway.facade.answers import FleetAnswers
from controlplane.gateway.facade.callers import Callers
from controlplane.gateway.facade.fleet import Fleet
from controlplane.gateway.facade.fleet_wide.broadcast import Broadcast
from controlplane.gateway.facade.records import Records


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one facade."""

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

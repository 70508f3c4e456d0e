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
    answers: FleetAnswers
    broadcast: Broadcast
    records: Records
    callers: Callers

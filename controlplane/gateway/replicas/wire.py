"""What passes over a replica's control port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from controlplane.domain.fleet import Backend, InFlight, Route

ROUTES = "/routes"
READY = "/ready"
IN_FLIGHT = "/in-flight"
MONITOR = "/monitor"
"""A query of the replica's monitor, whose answer may have no end."""

TERM_BITS = 32
"""The bits of a generation below the leader's term, so that a later leader's routes are newer."""


@dataclass(frozen=True, slots=True)
class Table:
    """All routes of a replica. Every commit has a higher generation; 0 is a replica without routes yet."""

    generation: Annotated[int, Field(ge=0)]
    routes: dict[str, Route]


NOTHING = Table(0, {})

_TABLE = TypeAdapter(Table)
_BACKEND = TypeAdapter(Backend)
_IN_FLIGHT = TypeAdapter(InFlight)


def table_json(table: Table) -> bytes:
    """Return a table as JSON."""
    return _TABLE.dump_json(table)


def table_of(text: bytes) -> Table:
    """Return the table of a JSON text. Raises ValueError."""
    return _TABLE.validate_json(text)


def backend_json(backend: Backend) -> bytes:
    """Return a backend as JSON."""
    return _BACKEND.dump_json(backend)


def backend_of(text: bytes) -> Backend:
    """Return the backend of a JSON text. Raises ValueError."""
    return _BACKEND.validate_json(text)


def in_flight_json(found: InFlight) -> bytes:
    """Return the unanswered requests of a server as JSON."""
    return _IN_FLIGHT.dump_json(found)


def in_flight_of(text: bytes) -> InFlight:
    """Return the unanswered requests of a JSON text. Raises ValueError."""
    return _IN_FLIGHT.validate_json(text)

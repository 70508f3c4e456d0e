"""The gateway's file with the place of each endpoint's requests in the queue of its partition."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from controlplane.domain.order import Order, Precedence
from controlplane.files.documents import SCHEMA_VERSION, State, read
from controlplane.files.writing import write_json


class _Precedence(State):
    endpoint: str
    partition: str
    after_ms: int
    inside: int
    overloaded_at: int
    promised: int


class _Order(State):
    schema_version: int
    endpoints: list[_Precedence]


def write_order(path: Path, order: Order) -> None:
    """Replace the file in one step. Raises EngineError where the disk refuses."""
    endpoints = [{"endpoint": endpoint, **asdict(one)} for endpoint, one in sorted(order.items())]
    write_json(path, {"schema_version": SCHEMA_VERSION, "endpoints": endpoints})


def read_order(path: Path) -> Order:
    """Return the precedences by endpoint; none without a file. Raises InputError where it is broken."""
    if not path.exists():
        return {}
    return {
        one.endpoint: Precedence(one.partition, one.after_ms, one.inside, one.overloaded_at, one.promised)
        for one in read(path).parse(_Order).endpoints
    }

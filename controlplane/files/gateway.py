"""What the gateway keeps on disk: its settings and which slot serves which endpoint.

The processes of the data path read these files when they start, so they need no controller to come back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controlplane.domain.fleet import Backend, Route
from controlplane.files.documents import (
    SCHEMA_VERSION,
    Strict,
    read,
    to_json,
    write_derived,
    write_json,
    write_vital,
)

_RESTARTS_LIMIT_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Restart:
    """One of the gateway's processes ended and was started again; `at_s` is seconds since the epoch."""

    at_s: float
    role: str
    reason: str


@dataclass(frozen=True, slots=True)
class Traits:
    """What the gateway must know of a model beyond its name.

    A decoupled model answers a streamed message any number of times. `sequence_idle_us` is set for a model
    that keeps state between requests: how long a sequence may pause before its server forgets it. `executes`
    names the endpoint whose model does the work, another one where this is an alias; None where unknown.
    """

    decoupled: bool = False
    sequence_idle_us: int | None = None
    executes: str | None = None


def pooled(route: Route, traits: Traits) -> tuple[str, Route] | None:
    """What the endpoints that go through one slot have in common; None for one that goes through its own.

    HAProxy counts what a slot has in flight, and would choose a pool's servers blindly if each endpoint of
    its model were counted apart.
    """
    if traits.executes is None or len(route.members) < 2:
        return None
    return traits.executes, route


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """One slot in use. A draining one finishes what it has and gets nothing new."""

    index: int
    draining: bool
    endpoint: str
    route: Route
    traits: Traits


@dataclass(frozen=True, slots=True)
class SlotsRecord:
    """All slots in use. `generation` grows by one with every change."""

    generation: int
    slots: tuple[SlotRecord, ...]

    def carried(self) -> dict[int, tuple[str, ...]]:
        """Slot -> the endpoints whose requests go through it; none for those of a pool's other endpoints."""
        together: dict[tuple[str, Route, bool], list[str]] = {}
        first: dict[int, list[str]] = {}
        for slot in self.slots:
            key = pooled(slot.route, slot.traits)
            if key is None:
                first[slot.index] = [slot.endpoint]
                continue
            shared = together.setdefault((*key, slot.draining), [])
            # Which of the draining ones came first nobody remembers.
            first[slot.index] = shared if slot.draining or not shared else []
            if slot.endpoint not in shared:
                shared.append(slot.endpoint)
        return {index: tuple(endpoints) for index, endpoints in first.items()}


class GatewaySettings(Strict):
    """What the gateway was started with.

    Ports are TCP ports, but for the one that a line is sent to for every request (UDP): `log_port`. The
    facade's are on loopback, for HAProxy only.
    """

    schema_version: int = SCHEMA_VERSION
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    log_port: int
    facade_http_port: int
    facade_grpc_port: int
    slots: int
    members: int
    haproxy: str
    compress_answers: bool = False
    fleet_wide_calls: bool = False


class _Backend(Strict):
    server: str
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None

    def value(self) -> Backend:
        return Backend(self.server, self.host, self.http_port, self.grpc_port, self.metrics_port)


class _Slot(Strict):
    index: int
    draining: bool
    endpoint: str
    members: list[_Backend]
    backup: _Backend | None
    decoupled: bool
    sequence_idle_us: int | None
    executes: str | None = None


class _Slots(Strict):
    schema_version: int
    generation: int
    slots: list[_Slot]


def write_slots(path: Path, record: SlotsRecord) -> None:
    """Replace the file in one step. Raises EngineError where the disk refuses."""
    slots: list[dict[str, Any]] = [
        {
            "index": slot.index,
            "draining": slot.draining,
            "endpoint": slot.endpoint,
            "members": [asdict(member) for member in slot.route.members],
            "backup": None if slot.route.backup is None else asdict(slot.route.backup),
            **asdict(slot.traits),
        }
        for slot in record.slots
    ]
    content = {"schema_version": SCHEMA_VERSION, "generation": record.generation, "slots": slots}
    write_vital(path, to_json(content))


def read_slots(path: Path) -> SlotsRecord:
    """What `write_slots` wrote; nothing where there is no file. Raises InputError where it is broken."""
    if not path.exists():
        return SlotsRecord(0, ())
    content = read(path).parse(_Slots)
    return SlotsRecord(
        content.generation,
        tuple(
            SlotRecord(
                slot.index,
                slot.draining,
                slot.endpoint,
                Route(
                    tuple(member.value() for member in slot.members),
                    None if slot.backup is None else slot.backup.value(),
                ),
                Traits(slot.decoupled, slot.sequence_idle_us, slot.executes),
            )
            for slot in content.slots
        ),
    )


def append_restart(path: Path, restart: Restart) -> None:
    """One line more; the older half goes where the file is long. OSError, EngineError: a full disk."""
    if path.exists() and path.stat().st_size > _RESTARTS_LIMIT_BYTES:
        lines = path.read_text().splitlines(keepends=True)
        write_derived(path, "".join(lines[len(lines) // 2 :]))
    with path.open("a") as stream:
        stream.write(json.dumps(asdict(restart)) + "\n")


def read_restarts(path: Path) -> tuple[Restart, ...]:
    """What was appended lately, oldest first; a line cut short by a crash is left out."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            told = json.loads(line)
            found.append(Restart(float(told["at_s"]), str(told["role"]), str(told["reason"])))
        except (ValueError, KeyError, TypeError):
            continue
    return tuple(found)


def write_settings(path: Path, settings: GatewaySettings) -> None:
    """Replace the file in one step. Raises EngineError where the disk refuses."""
    write_json(path, settings.model_dump())


def read_settings(path: Path) -> GatewaySettings:
    """What `write_settings` wrote. Raises InputError where it is missing or broken."""
    return read(path).parse(GatewaySettings)

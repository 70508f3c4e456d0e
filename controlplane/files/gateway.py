"""The gateway's files: its settings, and the slot of each endpoint.

The processes of the data path read these files when they start, so they can restart without a controller.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from controlplane.domain.fleet import AccessConfig, Backend, Route
from controlplane.files.documents import SCHEMA_VERSION, State, read
from controlplane.files.writing import to_json, write_derived, write_json, write_vital

_RESTARTS_LIMIT_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart of one of the gateway's processes; `at_s` is seconds since the epoch."""

    at_s: float
    role: str
    reason: str


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a model that matter to the gateway.

    A decoupled model answers a streamed message any number of times. `sequence_idle_us` is set for a model
    that keeps state between requests: the longest pause within a sequence. `executes` is the endpoint whose
    model executes the requests, which differs from this one for an alias; None where unknown.
    """

    decoupled: bool = False
    sequence_idle_us: int | None = None
    executes: str | None = None

    @property
    def pauses(self) -> bool:
        """Whether open requests of this model may have no answer for long without a fault."""
        return self.decoupled or self.sequence_idle_us is not None


def pooled(route: Route, traits: Traits) -> tuple[str, Route] | None:
    """Return the key of the slot that a pool's endpoints share; None for an endpoint with its own slot.

    HAProxy balances a pool by the requests in flight in one slot, so all endpoints of a pool's model must go
    through the same slot.
    """
    if traits.executes is None or len(route.members) < 2:
        return None
    return traits.executes, route


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """One slot in use. A draining slot finishes its requests and gets no new ones."""

    index: int
    draining: bool
    endpoint: str
    route: Route
    traits: Traits


@dataclass(frozen=True, slots=True)
class SlotsRecord:
    """All slots in use. Every change increments `generation`.

    `count` is the number of slots in HAProxy, free ones included; None in files of earlier versions.
    """

    generation: int
    slots: tuple[SlotRecord, ...]
    count: int | None = None

    def carried(self) -> dict[int, tuple[str, ...]]:
        """Return the endpoints by the slot that carries their requests. A pool has one such slot."""
        together: dict[tuple[str, Route, bool], list[str]] = {}
        first: dict[int, list[str]] = {}
        for slot in self.slots:
            key = pooled(slot.route, slot.traits)
            if key is None:
                first[slot.index] = [slot.endpoint]
                continue
            shared = together.setdefault((*key, slot.draining), [])
            # The order of draining slots is not recorded.
            first[slot.index] = shared if slot.draining or not shared else []
            if slot.endpoint not in shared:
                shared.append(slot.endpoint)
        return {index: tuple(endpoints) for index, endpoints in first.items()}


class ProtectionFields(State):
    """The fields of `AccessConfig`."""

    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    tokens: bool = False
    plain_text: bool = False
    audit: bool = False
    max_connections: int | None = None

    def value(self) -> AccessConfig:
        """Return the value."""
        return AccessConfig(**self.model_dump())


class FormerFacade(State):
    """Whether the clients of a HAProxy that is being replaced need tokens."""

    tokens: bool


class GatewaySettings(State):
    """The settings with which the gateway was started. `slots` is what the next HAProxy gets.

    All ports are clients'; the gateway's processes reach each other over sockets in its folder. `former` is
    set while two HAProxies run with different options.
    """

    schema_version: int = SCHEMA_VERSION
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    slots: int
    members: int
    haproxy: str
    compress_answers: bool = False
    fleet_wide_calls: bool = False
    late_binding: bool = False
    trace_endpoint: str = ""
    former: FormerFacade | None = None
    protection: Annotated[ProtectionFields, Field(default_factory=ProtectionFields)]


class _Backend(State):
    server: str
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None

    def value(self) -> Backend:
        return Backend(self.server, self.host, self.http_port, self.grpc_port, self.metrics_port)


class _Slot(State):
    index: int
    draining: bool
    endpoint: str
    members: list[_Backend]
    backup: _Backend | None
    decoupled: bool
    sequence_idle_us: int | None
    executes: str | None = None


class _Slots(State):
    schema_version: int
    generation: int
    slots: list[_Slot]
    count: int | None = None


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
    content = {
        "schema_version": SCHEMA_VERSION,
        "generation": record.generation,
        "count": record.count,
        "slots": slots,
    }
    write_vital(path, to_json(content))


def read_slots(path: Path) -> SlotsRecord:
    """Read the file of `write_slots`; no slots without a file. Raises InputError if it is broken."""
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
        content.count,
    )


def append_restart(path: Path, restart: Restart) -> None:
    """Append a restart; drop the older half of a long file. Raises OSError, EngineError for a full disk."""
    if path.exists() and path.stat().st_size > _RESTARTS_LIMIT_BYTES:
        lines = path.read_text().splitlines(keepends=True)
        write_derived(path, "".join(lines[len(lines) // 2 :]))
    with path.open("a") as stream:
        stream.write(json.dumps(asdict(restart)) + "\n")


def read_restarts(path: Path) -> tuple[Restart, ...]:
    """Return the latest restarts, oldest first, without a line that a crash cut short."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            parsed = json.loads(line)
            found.append(Restart(float(parsed["at_s"]), str(parsed["role"]), str(parsed["reason"])))
        except (ValueError, KeyError, TypeError):
            continue
    return tuple(found)


def write_settings(path: Path, settings: GatewaySettings) -> None:
    """Replace the file in one step. Raises EngineError where the disk refuses."""
    write_json(path, settings.model_dump())


def read_settings(path: Path) -> GatewaySettings:
    """Read the file of `write_settings`. Raises InputError if it is missing or broken."""
    return read(path).parse(GatewaySettings)

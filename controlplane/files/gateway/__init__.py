"""The gateway's files: its settings, and the slot of each endpoint.

The processes of the data path read these files when they start, so they can restart without a controller.

access, discounts   the other files, read again as they change
accepting           servers between the running processes
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from controlplane.domain.fleet import AccessConfig, Backend, Route
from controlplane.domain.serving import Order, Precedence
from controlplane.files.documents import read, read_listed, read_state, versioned
from controlplane.files.writing import append_line, fields_of, to_json, write_derived, write_json, write_vital

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
    """One slot in use, with its route and its model's traits. A draining slot gets no new requests."""

    index: int
    draining: bool
    endpoint: str
    members: tuple[Backend, ...]
    backup: Backend | None
    decoupled: bool
    sequence_idle_us: int | None
    executes: str | None = None

    @classmethod
    def of(cls, index: int, draining: bool, endpoint: str, route: Route, traits: Traits) -> SlotRecord:
        """Return the record of a slot."""
        return cls(index, draining, endpoint, route.members, route.backup, *astuple(traits))

    @property
    def route(self) -> Route:
        """Its servers."""
        return Route(self.members, self.backup)

    @property
    def traits(self) -> Traits:
        """Its model's properties."""
        return Traits(self.decoupled, self.sequence_idle_us, self.executes)


@dataclass(frozen=True, slots=True)
class SlotsRecord:
    """All slots in use. Every change increments `generation`.

    `count` is the number of slots in HAProxy, free ones included.
    """

    generation: int
    count: int | None
    slots: tuple[SlotRecord, ...]

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


@dataclass(frozen=True, slots=True)
class FormerFacade:
    """Whether the clients of a HAProxy that is being replaced need tokens."""

    tokens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The settings with which the gateway was started. `slots` is what the next HAProxy gets.

    All ports are clients'; the gateway's processes reach each other over sockets in its folder. `former` is
    set while two HAProxies run with different options.
    """

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
    protection: AccessConfig = field(default_factory=AccessConfig)


@dataclass(frozen=True, slots=True)
class _Place(Precedence):
    endpoint: str = field(kw_only=True)


def write_order(path: Path, order: Order) -> None:
    """Replace the file with the place of each endpoint's requests in the queue of its partition."""
    places = [{**fields_of(one), "endpoint": endpoint} for endpoint, one in sorted(order.items())]
    write_json(path, versioned({"endpoints": places}))


def read_order(path: Path) -> Order:
    """Return the precedences by endpoint; none without a file. Raises InputError where it is broken."""
    return {
        one.endpoint: Precedence(**{f.name: getattr(one, f.name) for f in fields(Precedence)})
        for one in read_listed(path, "endpoints", _Place)
    }


def write_slots(path: Path, record: SlotsRecord) -> None:
    """Replace the file in one step. Raises EngineError where the disk refuses."""
    write_vital(path, to_json(versioned(record)))


def read_slots(path: Path) -> SlotsRecord:
    """Read the file of `write_slots`; no slots without a file. Raises InputError if it is broken."""
    return read_state(path, SlotsRecord) or SlotsRecord(0, None, ())


def append_restart(path: Path, restart: Restart) -> None:
    """Append a restart; drop the older half of a long file. Raises OSError, EngineError for a full disk."""
    if path.exists() and path.stat().st_size > _RESTARTS_LIMIT_BYTES:
        lines = path.read_text().splitlines(keepends=True)
        write_derived(path, "".join(lines[len(lines) // 2 :]))
    append_line(path, fields_of(restart))


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
    write_json(path, versioned(settings))


def read_settings(path: Path) -> GatewaySettings:
    """Read the file of `write_settings`. Raises InputError if it is missing or broken."""
    return read(path).parse(GatewaySettings, newer=True)

"""Which slot serves which endpoint, as values: a table and routes in, a new table and runtime commands out.

A slot is a pair of HAProxy backends (`h_<i>`, `g_<i>`) that is there from the start, most of them empty. A
redirect adds servers to a free slot and then changes the map, so every request belongs to exactly one slot:
those that came before the change finish on the old one, whose servers are deleted once its session counts are
0.

    FREE -> ACTIVE -> DRAINING -> FREE

A gate `q_<i>` is a queue for all endpoints of a partition, in front of their slots, and has the number of the
first of them. It lets so many requests of both protocols through at once; the rest wait in it, ordered by
their precedences.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Backend, Route, Routes
from controlplane.domain.serving import Order
from controlplane.files.gateway import Traits, pooled
from controlplane.render.haproxy import backup_line, server_line

PLAIN = Traits()
NOTHING_KNOWN: Mapping[str, Traits] = MappingProxyType({})
PROTOCOLS = ("h", "g")
GATE = "q"


class Phase(StrEnum):
    """The phase of a slot."""

    FREE = "free"
    ACTIVE = "active"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Slot:
    """One pair of backends; `endpoint` and `route` are None exactly where it is free."""

    index: int
    phase: Phase = Phase.FREE
    endpoint: str | None = None
    route: Route | None = None
    traits: Traits = PLAIN

    def servers(self) -> Mapping[str, Backend]:
        """Return the server of each line of the two backends, by the line's name.

        A route without a backup has its first member there too, so that HAProxy still tries a server that it
        marked down by mistake (a connection that was slow to open).
        """
        if self.route is None:
            return {}
        lines = {member.instance: member for member in self.route.members}
        backup = self.route.backup or self.route.members[0]
        return {**lines, backup_line(backup): backup}


@dataclass(frozen=True, slots=True)
class SlotTable:
    """All slots; each has room for `members` servers and one backup."""

    members: int
    slots: tuple[Slot, ...]

    @classmethod
    def empty(cls, slots: int, members: int) -> SlotTable:
        """Return a table of free slots."""
        return cls(members, tuple(Slot(i) for i in range(slots)))

    def grown(self, slots: int) -> SlotTable:
        """Return this table with free slots added up to so many."""
        return replace(self, slots=(*self.slots, *(Slot(i) for i in range(len(self.slots), slots))))

    def is_free(self) -> bool:
        """Whether no slot is in use."""
        return all(slot.phase is Phase.FREE for slot in self.slots)

    def routes(self) -> Routes:
        """Endpoint -> route of the active slots."""
        return {
            slot.endpoint: slot.route
            for slot in self.slots
            if slot.phase is Phase.ACTIVE and slot.endpoint is not None and slot.route is not None
        }

    def traits(self, endpoint: str) -> Traits | None:
        """Return the traits of an endpoint's model, also from a draining slot; None if unknown."""
        return next((s.traits for s in self.slots if s.endpoint == endpoint), None)

    def model_map(self) -> Mapping[str, str]:
        """Endpoint -> slot, as HAProxy's map holds it.

        Endpoints of one model in one pool go through the first one's slot (`pooled`). An endpoint with
        sequences is left out: HAProxy cannot tell which sequence a request belongs to, so it hands them to
        the facade.
        """
        found: dict[str, str] = {}
        pools: dict[tuple[str, Route], str] = {}
        for slot in self.slots:
            plain = slot.phase is Phase.ACTIVE and slot.traits.sequence_idle_us is None
            if plain and slot.endpoint and slot.route is not None:
                own, key = str(slot.index), pooled(slot.route, slot.traits)
                found[slot.endpoint] = own if key is None else pools.setdefault(key, own)
        return found

    def check_map(self) -> Mapping[str, str]:
        """Backend -> the endpoint whose readiness its health check asks for."""
        return {f"{p}_{s.index}": s.endpoint for s in self.slots for p in PROTOCOLS if s.endpoint}


@dataclass(frozen=True, slots=True)
class Change:
    """A step to another table. `before` runs before the map changes, `after` once it has.

    `left` are the endpoints that no slot was free for; they are served as before.
    """

    table: SlotTable
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


Held = Mapping[str, Collection[str]]
"""Backend -> the lines that HAProxy holds in it."""


def release(table: SlotTable, idle: Collection[int], held: Held) -> Change:
    """Free the draining slots among `idle` (those whose backends hold no session and no queue)."""
    slots = list(table.slots)
    commands: list[str] = []
    for slot in table.slots:
        if slot.phase is Phase.DRAINING and slot.index in idle:
            commands += _delete(slot, held)
            slots[slot.index] = Slot(slot.index)
    return Change(replace(table, slots=tuple(slots)), tuple(commands))


def fresh(table: SlotTable, routes: Routes) -> tuple[str, ...]:
    """Return the endpoints whose route is new or differs."""
    present = table.routes()
    return tuple(endpoint for endpoint, route in routes.items() if present.get(endpoint) != route)


def unknown(table: SlotTable, routes: Routes) -> frozenset[str]:
    """Return the fresh endpoints of unknown models, and those that go to a server whose model is unknown.

    What a server serves does not change: one that was a backup is known when it becomes a member.
    """
    present = table.routes()
    found = set()
    for endpoint in fresh(table, routes):
        before = present.get(endpoint)
        known = () if before is None else before.servers
        traits = table.traits(endpoint)
        complete = traits is not None and traits.executes is not None
        if not complete or not set(routes[endpoint].members).issubset(known):
            found.add(endpoint)
    return frozenset(found)


def assign(
    table: SlotTable,
    routes: Routes,
    traits: Mapping[str, Traits] = NOTHING_KNOWN,
    first: Collection[str] = (),
) -> Change:
    """Serve `routes`: every fresh one gets a slot of its own, with its model's traits.

    Where fewer slots are free than routes change, the endpoints in `first` change before the others, and new
    ones before those that have a slot. Raises GatewayError where a route does not fit.
    """
    for endpoint, route in routes.items():
        _check(endpoint, route, table.members, traits.get(endpoint, PLAIN))
    slots = list(table.slots)
    present = table.routes()
    free = [slot.index for slot in table.slots if slot.phase is Phase.FREE]
    wanted = fresh(table, routes)
    if len(wanted) > len(free):
        wanted = tuple(sorted(wanted, key=lambda endpoint: (endpoint not in first, endpoint in present)))
    added, left = wanted[: len(free)], wanted[len(free) :]
    before: list[str] = []
    after: list[str] = []
    for slot in table.slots:
        if slot.phase is not Phase.ACTIVE or slot.endpoint is None or slot.endpoint in left:
            continue
        if slot.route != routes.get(slot.endpoint):
            slots[slot.index] = replace(slot, phase=Phase.DRAINING)
            after += _drain(slot, routes.get(slot.endpoint))
    for index, endpoint in zip(free, added, strict=False):
        slot = Slot(index, Phase.ACTIVE, endpoint, routes[endpoint], traits.get(endpoint, PLAIN))
        slots[index] = slot
        before += _enable(slot)
    return Change(replace(table, slots=tuple(slots)), tuple(before), tuple(after), tuple(left))


def restate(table: SlotTable, held: Held) -> Change:
    """Return the commands that bring a HAProxy in any state to `table`."""
    before: list[str] = []
    for slot in table.slots:
        before += _delete(slot, held, slot.servers())
        if slot.phase is Phase.ACTIVE:
            before += _enable(slot)
    return Change(table, tuple(before))


def _enable(slot: Slot) -> list[str]:
    """Return the commands that add and enable a slot's servers. Where one is there already, it stays."""
    commands = []
    for name, backend in slot.servers().items():
        for protocol in PROTOCOLS:
            line = f"{protocol}_{slot.index}/{name}"
            commands += [
                f"add server {line} {server_line(protocol, name, backend)}",
                f"enable health {line}",
                f"set server {line} state ready",
            ]
    return commands


def _delete(slot: Slot, held: Held, kept: Collection[str] = ()) -> list[str]:
    """Return the commands that delete what HAProxy holds in a slot; maintenance closes its connections.

    One whose connections are not closed yet stays, serves nothing and is deleted with the slot's next use.
    """
    commands = []
    for backend in (f"{protocol}_{slot.index}" for protocol in PROTOCOLS):
        for name in held.get(backend, ()):
            if name not in kept:
                commands += [f"set server {backend}/{name} state maint", f"del server {backend}/{name}"]
    return commands


def _drain(slot: Slot, successor: Route | None) -> list[str]:
    """Return the commands for a slot that finishes its requests; a server keeps them in maintenance too.

    If the server dies, HAProxy sends them again, but never to a server in maintenance. Otherwise it would
    spend all retries on the connection that just ended.
    """
    kept = () if successor is None else successor.servers
    lines = slot.servers()
    goes_on = any(server in kept for server in lines.values())
    commands = []
    for name, server in lines.items():
        for protocol in PROTOCOLS:
            line = f"{protocol}_{slot.index}/{name}"
            leaves = goes_on and server not in kept
            commands.append(f"set server {line} state maint" if leaves else f"disable health {line}")
    return commands


def _check(endpoint: str, route: Route, members: int, traits: Traits) -> None:
    if not endpoint or endpoint.startswith("#") or any(c.isspace() or not c.isprintable() for c in endpoint):
        raise GatewayError(f"endpoint {endpoint!r} cannot be routed: a name is text without spaces and no #")
    if not route.members:
        raise GatewayError(f"endpoint {endpoint!r}: a route needs a server; leave the endpoint out instead")
    if traits.sequence_idle_us is not None and len(route.members) > 1:
        raise GatewayError(f"endpoint {endpoint!r} keeps sequences: one server serves it, not a pool")
    if len(route.members) > members:
        raise GatewayError(
            f"endpoint {endpoint!r}: {len(route.members)} servers, but a slot has room for {members}"
        )


def gates(table: SlotTable, order: Order) -> Mapping[str, int]:
    """Return the gate of each endpoint that has a slot and a precedence."""
    first: dict[str, int] = {}
    found: dict[str, int] = {}
    for slot in table.slots:
        precedence = order.get(slot.endpoint or "")
        plain = slot.phase is Phase.ACTIVE and slot.traits.sequence_idle_us is None
        if plain and slot.endpoint and precedence is not None:
            found[slot.endpoint] = first.setdefault(precedence.partition, slot.index)
    return found


def gate_map(table: SlotTable, order: Order) -> Mapping[str, str]:
    """Return HAProxy's map: endpoint -> `gate/after_ms/overloaded_at/promised/served_ms/deficit_ms`."""
    return {
        endpoint: f"{gate}/{one.after_ms}/{one.overloaded_at}/{one.promised}/{one.served_ms}/{one.deficit_ms}"
        for endpoint, gate in gates(table, order).items()
        for one in (order[endpoint],)
    }


def gate_sizes(table: SlotTable, order: Order) -> Mapping[int, int]:
    """Return how many requests each gate lets through at once."""
    return {gate: order[endpoint].inside for endpoint, gate in gates(table, order).items()}


def gate_commands(table: SlotTable, order: Order) -> tuple[str, ...]:
    """Return the runtime commands that set all gates in use."""
    return tuple(f"set maxconn server {GATE}_{g}/gate {most}" for g, most in gate_sizes(table, order).items())

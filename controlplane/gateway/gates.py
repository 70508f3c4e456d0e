"""The gates of the gateway: a queue for all endpoints of a partition, in front of its slots. Pure.

Gate `q_<i>` stands before the slots of one partition's endpoints and has the number of the first of them. It
lets so many requests of both protocols through at once; the rest wait in it, ordered by their precedences.
"""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.domain.order import Order
from controlplane.gateway.slots import Phase, SlotTable

GATE = "q"


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
    """Return HAProxy's map: endpoint -> `gate/after_ms/overloaded_at/promised`."""
    return {
        endpoint: "/".join(map(str, (gate, one.after_ms, one.overloaded_at, one.promised)))
        for endpoint, gate in gates(table, order).items()
        for one in (order[endpoint],)
    }


def inside(table: SlotTable, order: Order) -> Mapping[int, int]:
    """Return how many requests each gate lets through at once."""
    return {gate: order[endpoint].inside for endpoint, gate in gates(table, order).items()}


def commands(table: SlotTable, order: Order) -> tuple[str, ...]:
    """Return the runtime commands that set all gates in use."""
    return tuple(f"set maxconn server {GATE}_{g}/gate {most}" for g, most in inside(table, order).items())

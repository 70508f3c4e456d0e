"""The running HAProxy: which table and settings it holds, its sessions, and changes of its slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.domain.fleet import NOTHING_IN_FLIGHT, Backend, InFlight
from controlplane.domain.order import Order
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import gates, slots, store
from controlplane.gateway.runtime_socket import RuntimeSocket, Sessions, Unreachable
from controlplane.gateway.slots import PROTOCOLS, Phase, Slot, SlotTable
from controlplane.render.haproxy import BACKUP

_UNFINISHED = -1


class RunningHaproxy:
    """Queries and changes by the runtime socket. Raises Unreachable where not said otherwise."""

    def __init__(self, paths: GatewayPaths) -> None:
        self._paths = paths
        self._runtime = RuntimeSocket(paths.runtime_socket)

    def generation(self) -> int | None:
        """Return the generation of the table that it holds; None where none answers."""
        try:
            held = self._runtime.map_value(self._paths.checks_map, store.GENERATION)
        except Unreachable:
            return None
        return int(held or _UNFINISHED)

    def fingerprint(self) -> str | None:
        """Return that of its settings, empty for one of an earlier version; None where none answers."""
        try:
            return self._runtime.variable(store.FINGERPRINT)
        except Unreachable:
            return None

    def apply(self, change: slots.Change, generation: int, order: Order | None) -> None:
        """Change slots and routes, and its gates where `order` is given.

        Raises GatewayError where a command is refused.
        """
        # The generation comes last: after an interruption before it, every slot is restated.
        checks = self._paths.checks_map
        self._runtime.replace_map(checks, store.check_entries(_UNFINISHED, change.table))
        self._runtime.run(change.before)
        self._runtime.replace_map(self._paths.models_map, change.table.model_map())
        if order is not None:
            self.arrange(change.table, order)
        self._runtime.run((*change.after, f"set map {checks} {store.GENERATION} {generation}"))

    def arrange(self, table: SlotTable, order: Order) -> None:
        """Change the gates. Raises GatewayError where a command is refused."""
        self._runtime.run(gates.commands(table, order))
        self._runtime.replace_map(self._paths.gates_map, gates.gate_map(table, order))

    def idle(self, table: SlotTable) -> set[int]:
        """Return the draining slots without a request."""
        draining = [slot for slot in table.slots if slot.phase is Phase.DRAINING]
        sessions = self._runtime.sessions(_backends(draining))
        return {
            slot.index
            for slot in draining
            if not any(
                sessions[f"{protocol}_{slot.index}", "BACKEND"].current
                or sessions[f"{protocol}_{slot.index}", "BACKEND"].queued
                for protocol in PROTOCOLS
            )
        }

    def without_server(self, table: SlotTable) -> set[str]:
        """Return the endpoints whose members HAProxy takes for dead."""
        active = [slot for slot in table.slots if slot.phase is Phase.ACTIVE]
        sessions = self._runtime.sessions(_backends(active))
        return {
            slot.endpoint
            for slot in active
            if slot.endpoint is not None
            and not any(sessions[f"h_{slot.index}", line].up for line in slot.servers() if line != BACKUP)
        }

    def in_flight(self, table: SlotTable, backend: Backend) -> InFlight:
        """Return the requests on a server, in all slots that lead to it."""
        leading = [slot for slot in table.slots if backend in slot.servers().values()]
        sessions = self._runtime.sessions(_backends(leading))
        found = NOTHING_IN_FLIGHT
        for slot in leading:
            lines = [name for name, member in slot.servers().items() if member == backend]
            count = sum(_owed(sessions, f"{protocol}_{slot.index}", lines) for protocol in PROTOCOLS)
            found = found.plus(InFlight(streaming=count) if slot.traits.pauses else InFlight(requests=count))
        return found


def _backends(those: Iterable[Slot]) -> list[str]:
    return [f"{protocol}_{slot.index}" for slot in those for protocol in PROTOCOLS]


def _owed(sessions: Mapping[tuple[str, str], Sessions], backend: str, lines: list[str]) -> int:
    """Return the requests on these lines, and those of the backend without a line yet."""
    whole = sessions[backend, "BACKEND"]
    given = sum(s.current for (b, line), s in sessions.items() if b == backend and line != "BACKEND")
    here = sum(sessions[backend, line].current + sessions[backend, line].queued for line in lines)
    return here + whole.queued + max(0, whole.current - given)

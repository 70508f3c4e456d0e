"""The gateway behind the port `Gateway`: HAProxy for the requests, the facade for the fleet's own calls."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from controlplane.domain.errors import EngineError, GatewayError
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, Backend, GatewayConfig, InFlight, Routes
from controlplane.domain.observation import Entry
from controlplane.domain.serving import Order
from controlplane.files.gateway import GatewaySettings, Traits, read_order, write_order
from controlplane.files.gateway.discounts import add_discounts
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.reading import Remembered, exists
from controlplane.files.waiting import locked
from controlplane.gateway import processes, slots, startup, store
from controlplane.gateway.running import RunningHaproxy
from controlplane.gateway.security.registry import LimitRegistry
from controlplane.gateway.slots import PLAIN, SlotTable
from controlplane.gateway.startup import Startup, tell_facade, wait
from controlplane.sockets import Silent, Unreachable, ask

_RESTART_DEADLINE_S = 10.0
_NEW_MODEL_S = 10.0
_KNOWN_MODEL_S = 1.0
_OPEN_DEADLINE_S = 1.0
"""The controller queries this in every cycle."""
_DEFAULT_IDLE_US = 1_000_000
"""max_sequence_idle_microseconds where a configuration leaves it out (model_config.proto)."""


class HaproxyGateway:
    """One gateway; `state_dir` is its own. Any number of these objects may share one running gateway.

    Commits from several processes are put in order by a lock, and every one of them sees the whole table.
    """

    def __init__(self, state_dir: Path) -> None:
        self._paths = GatewayPaths.of(state_dir)
        self._haproxy = RunningHaproxy(self._paths)
        self._startup = Startup(self._paths)
        self._table = Remembered(
            self._paths.slots, lambda: store.load(self._paths, store.settings_of(self._paths))[1]
        )
        self._routes = Remembered(self._paths.slots, lambda: self._table.get().routes())

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        """Have HAProxy, the facade and their supervisor running and answering, with the routes on disk.

        It has slots for so many endpoints to move at once afterwards. One that runs changes its options
        without a lost request. Raises MissingTool without HAProxy; GatewayError where a port is taken, where
        an option cannot change while it runs, and where open files allow too few slots.
        """
        startup.haproxy_program()
        self._startup.start(wanted, endpoints)
        # A commit may have died between its files and HAProxy.
        with locked(self._paths.lock):
            settings = store.settings_of(self._paths)
            generation, table = store.load(self._paths, settings)
            if self._haproxy.generation() not in (None, generation):
                tell_facade(self._paths)
                self._haproxy.apply(self._haproxy.restate(table), generation, self._order(settings))

    def routes(self) -> Routes:
        """Return the present routes."""
        if not exists(self._paths.settings):
            return {}
        return self._routes.get()

    def commit(self, routes: Routes) -> None:
        """Make exactly `routes` routable in one step.

        The files are written first: where HAProxy is just being restarted, it starts with the new routes.
        Raises GatewayError where a route does not fit or the gateway does not run. Where slots are short, it
        raises one after it has changed as many routes as it could, of dead servers first.
        """
        if not exists(self._paths.settings):
            raise GatewayError("the gateway does not run; start it before routes are committed")
        settings = store.settings_of(self._paths)
        with locked(self._paths.lock):
            generation, table = store.load(self._paths, settings)
            reached = self._haproxy.generation()
            if reached is None:
                freed = slots.release(table, {slot.index for slot in table.slots}, {})
            else:
                freed = self._haproxy.release(table)
            fresh, unknown = slots.fresh(freed.table, routes), slots.unknown(freed.table, routes)
            known = {
                e: self._traits(table, e, routes[e].members) if e in unknown else table.traits(e) or PLAIN
                for e in fresh
            }
            change = slots.assign(freed.table, routes, known)
            if change.left and reached is not None:
                first = self._haproxy.without_server(freed.table)
                change = slots.assign(freed.table, routes, known, first=first)
            target = generation + 1
            store.save(self._paths, target, change.table)
            tell_facade(self._paths)
            former = None
            if reached is not None and routes and freed.table.is_free():
                former = self._haproxy.outdated_by_servers()
            if former is not None:
                # No request is on a server. What the present one still gets, the facade answers.
                processes.wake_supervisor(self._paths)
                reached = None
            if reached is not None:
                if reached == generation:
                    whole = replace(change, before=(*freed.before, *change.before))
                    self._haproxy.apply(whole, target, self._order(settings))
                else:
                    self._haproxy.apply(self._haproxy.restate(change.table), target, self._order(settings))
        if reached is None:
            wait(
                self._paths,
                lambda: (self._haproxy.generation() or 0) >= target,
                _RESTART_DEADLINE_S,
                "HAProxy to come back",
            )
        if former is not None:
            self._haproxy.note_without_servers(former)
        if change.left:
            some = ", ".join(change.left[:5]) + (", ..." if len(change.left) > 5 else "")
            raise GatewayError(
                f"all {len(change.table.slots)} slots are in use: {len(change.left)} endpoints keep their "
                f"present servers ({some}); commit again when requests in flight have ended"
            )

    def _traits(self, table: SlotTable, endpoint: str, members: Sequence[Backend]) -> Traits:
        """Query the model: briefly in a redirect, which can use what was known; longer for a new model."""
        before = table.traits(endpoint)
        patience_s = _NEW_MODEL_S if before is None else _KNOWN_MODEL_S
        return traits_of(endpoint, members, patience_s=patience_s) or before or PLAIN

    def arrange(self, order: Order) -> None:
        """Have requests wait for their partitions in this order, where the gateway has gates.

        Raises GatewayError where HAProxy runs and refuses it.
        """
        settings = store.settings_of(self._paths)
        with locked(self._paths.lock):
            write_order(self._paths.order, order)
            generation, table = store.load(self._paths, settings)
            if settings.late_binding and self._haproxy.generation() == generation:
                store.save(self._paths, generation, table)
                self._haproxy.arrange(table, order)

    def _order(self, settings: GatewaySettings) -> Order | None:
        return read_order(self._paths.order) if settings.late_binding else None

    def refuse(self, endpoint: str, client: str, until_s: float) -> None:
        """Refuse inferences of an endpoint until then, also after a restart of HAProxy."""
        LimitRegistry(self._paths.state).refuse(endpoint, client, until_s)

    def discount(self, server: str, counters: Sequence[Entry] | None) -> None:
        """Note it in the server's file, which facade and monitor read."""
        add_discounts(self._paths.discounts, server, counters)

    def in_flight(self, backend: Backend) -> InFlight:
        """Return the requests that a server has not answered: HAProxy's on all its slots, and the facade's.

        Raises GatewayError if one of the two runs and does not answer.
        """
        return self.in_flights((backend,))[backend.server]

    def in_flights(self, backends: Sequence[Backend]) -> dict[str, InFlight]:
        """Return the same of each of these servers."""
        if not exists(self._paths.settings):
            return {backend.server: NOTHING_IN_FLIGHT for backend in backends}
        found, opened = self._haproxy.in_flights(self._table.get(), backends), {}
        try:
            opened = ask(self._paths.control_socket, {"do": "open"}, timeout_s=_OPEN_DEADLINE_S)
        except Silent:
            raise
        except Unreachable:
            pass  # its calls ended with it
        return {server: held.plus(InFlight(**opened.get(server, {}))) for server, held in found.items()}

    def missing(self) -> tuple[str, ...]:
        """Return the roles of its processes that do not run."""
        return processes.missing(self._paths)

    def restore(self) -> None:
        """Start a supervisor where it died. Raises GatewayError where the host refuses."""
        if processes.supervisor_is_missing(self._paths):
            try:
                processes.start_supervisor(self._paths)
            except OSError as error:
                raise GatewayError(f"the gateway's supervisor cannot be started: {error}") from error

    @property
    def telemetry_socket(self) -> Path:
        """The socket of this gateway's monitor (`controlplane.monitor.client`)."""
        return self._paths.monitor_socket

    def finish(self, patience_s: float) -> None:
        """Stop listening, and return once all requests have ended, or after `patience_s` without them."""
        if not exists(self._paths.state):
            return
        with locked(self._paths.start_lock):
            self._startup.finish(patience_s)

    def stop(self) -> None:
        """End the supervisor, then its processes, and remove the gateway's files and sockets. Idempotent."""
        if not exists(self._paths.state):
            self._startup.end()  # of one whose files were removed
            return
        with locked(self._paths.start_lock):
            self._startup.end()
        for directory in {self._paths.sockets, self._paths.state}:
            shutil.rmtree(directory, ignore_errors=True)


def traits_of(endpoint: str, members: Sequence[Backend], *, patience_s: float) -> Traits | None:
    """Return the properties of a model from the first member that answers, each within `patience_s`."""
    from controlplane.triton.client import TritonClient  # not needed by verbs that only look

    for member in members:
        try:
            config = TritonClient(member, deadline_s=patience_s).config(endpoint)
        except EngineError:
            continue
        sequence = config.get("sequence_batching")
        idle = None
        if sequence is not None and not sequence.get("iterative_sequence"):
            idle = int(sequence.get("max_sequence_idle_microseconds") or _DEFAULT_IDLE_US)
        decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        steps = config.get("ensemble_scheduling", {}).get("step", [])
        return Traits(decoupled, idle, steps[0]["model_name"] if len(steps) == 1 else endpoint)
    return None

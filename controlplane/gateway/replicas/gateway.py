"""The port `Gateway` over all replicas of a gateway.

The replicas are the truth about routes; this object keeps none. A commit reaches every replica that answers,
directly. One that does not answer keeps its routes, and what it leads to is not stopped: `in_flight` raises
until it answers or is no replica any more. Whoever reads the routes brings replicas that lag, such as new
ones, to the newest table.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from controlplane.domain.errors import GatewayError, InputError
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, Backend, GatewayConfig, InFlight, Routes
from controlplane.domain.observation import Entry
from controlplane.domain.serving import Order
from controlplane.files.waiting import wait_until
from controlplane.gateway.replicas import control_port
from controlplane.gateway.replicas.control_port import Discount, NotNewer, ReplicaClient, Table

Addresses = Callable[[], Sequence[str]]
"""Returns the control ports (`host:port`) of all replicas, ready or not. Never waits."""

Value = TypeVar("Value")

_START_DEADLINE_S = 120.0
_POLL_S = 0.1
_TRIES = 5
_MOST_AT_ONCE = 16


class ReplicatedGateway:
    """One gateway of several replicas.

    `term` is the number of a leadership: once a higher one has committed, routes of a lower one are refused,
    so a leader that is cut off from the others changes nothing. None takes the present term.
    """

    def __init__(self, addresses: Addresses, token: str, term: int | None = None) -> None:
        self._addresses = addresses
        self._token = token
        self._term = term
        self._lock = threading.Lock()
        self._clients: dict[str, ReplicaClient] = {}
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="replica")

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        """Return once a replica answers; they have options of their own, and take room with the routes.

        Raises GatewayError at once where there is none: only the caller sees one that comes.
        """
        if not self._addresses():
            raise GatewayError("the gateway has no replica yet")
        answered = wait_until(
            lambda: bool(self._tables()[0]), deadline_s=_START_DEADLINE_S, interval_s=_POLL_S
        )
        if not answered:
            raise GatewayError(f"waited {_START_DEADLINE_S:g} s for a replica of the gateway to answer")

    def routes(self) -> Routes:
        """Return the newest routes, and bring replicas that lag to them."""
        tables, _ = self._tables()
        if not tables:
            return {}
        newest = _newest(tables.values())
        behind = [client for client, table in tables.items() if table.generation < newest.generation]
        self._put(behind, newest)
        return newest.routes

    def commit(self, routes: Routes) -> None:
        """Replace the routes at every replica that answers.

        Raises GatewayError where none takes them.
        """
        for _ in range(_TRIES):
            tables, failures = self._tables()
            if not tables:
                raise failures[0] if failures else GatewayError("the gateway has no replica")
            wanted = Table(self._next(_newest(tables.values()).generation), dict(routes))
            taken, refusals = self._put(tables, wanted)
            if any(isinstance(refusal, NotNewer) for refusal in refusals):
                continue
            if not taken:
                raise refusals[0]
            return
        raise GatewayError("other programs commit routes all the time; try again")

    def arrange(self, order: Order) -> None:
        """Raise InputError for an order: replicas share no queue, so they would not keep it."""
        if order:
            raise InputError(
                f"the plan relies on the order in which requests for {', '.join(sorted(order))} leave the "
                "gateway, whose replicas share no queue: plan again without --set late_binding=true",
                field="rank",
            )

    def refuse(self, endpoint: str, client: str, until_s: float) -> None:
        """Raise GatewayError: replicas take no limits."""
        raise GatewayError("the gateway's replicas take no limits")

    def discount(self, server: str, counters: Sequence[Entry] | None) -> None:
        """Note it at every replica that answers; one that starts later counts what was before."""
        said = Discount(server, None if counters is None else list(counters))
        self._each(self._replicas(), lambda client: client.discount(said))

    def in_flight(self, backend: Backend) -> InFlight:
        """Return the unanswered requests of a server at all replicas. Raises where one does not answer."""
        found, failures = self._each(self._replicas(), lambda client: client.in_flight(backend))
        if failures:
            raise failures[0]
        return functools.reduce(InFlight.plus, found.values(), NOTHING_IN_FLIGHT)

    def in_flights(self, backends: Sequence[Backend]) -> dict[str, InFlight]:
        """Return the same of the first one alone: each is a call of every replica."""
        return {backends[0].server: self.in_flight(backends[0])}

    def missing(self) -> tuple[str, ...]:
        """Return nothing: the cluster knows which replicas run."""
        return ()

    def restore(self) -> None:
        """Leave it to the cluster."""

    def stop(self) -> None:
        """Remove all routes. The replicas themselves belong to the installation."""
        if self._tables()[0]:
            self.commit({})

    def _next(self, generation: int) -> int:
        """Return the generation after this one. Raises GatewayError where a later leader has committed."""
        if self._term is None:
            return generation + 1
        if generation >> control_port.TERM_BITS > self._term:
            raise GatewayError("a controller of a later term has committed routes: this one no longer leads")
        return max(generation, self._term << control_port.TERM_BITS) + 1

    def _tables(self) -> tuple[dict[ReplicaClient, Table], list[GatewayError]]:
        return self._each(self._replicas(), lambda client: client.table())

    def _put(
        self, clients: Collection[ReplicaClient], table: Table
    ) -> tuple[dict[ReplicaClient, None], list[GatewayError]]:
        return self._each(clients, lambda client: client.put(table))

    def _replicas(self) -> Collection[ReplicaClient]:
        present = dict.fromkeys(self._addresses())
        with self._lock:
            known = self._clients
            self._clients = {a: known.get(a) or ReplicaClient(a, self._token) for a in present}
            return self._clients.values()

    def _each(
        self, clients: Collection[ReplicaClient], call: Callable[[ReplicaClient], Value]
    ) -> tuple[dict[ReplicaClient, Value], list[GatewayError]]:
        """Call all at once; return the values of the replicas that answer, and why the others do not."""

        def attempt(client: ReplicaClient) -> Value | GatewayError:
            try:
                return call(client)
            except GatewayError as error:
                return error

        found, failures = {}, []
        for client, result in zip(clients, self._pool.map(attempt, clients), strict=True):
            if isinstance(result, GatewayError):
                failures.append(result)
            else:
                found[client] = result
        return found, failures


def _newest(tables: Iterable[Table]) -> Table:
    return max(tables, key=lambda table: table.generation)

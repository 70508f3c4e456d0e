"""The facade's view of the fleet: routes as last committed, lost servers, open calls, and sequences."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import aiohttp
from grpc import StatusCode

from controlplane.domain.fleet import NOTHING_IN_FLIGHT, Backend, InFlight, Route, Routes
from controlplane.files.gateway import Traits
from controlplane.files.gateway.access import NO_LIMIT, REFUSED, Limit, read_held, refused, remembered
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.reading import Remembered
from controlplane.gateway.facade.refusals import LimitReached, Meter, Refusal
from controlplane.gateway.slots import SlotTable
from controlplane.triton.sessions import TritonSessions

_ASK_TIMEOUT = aiohttp.ClientTimeout(total=5.0, connect=1.0)
_PROBE_S = 0.2


Key = tuple[str, str]
"""Endpoint and correlation id."""


@dataclass(slots=True)
class _Home:
    backend: Backend
    idle_s: float
    busy: int = 0
    last_s: float = 0.0


class Sequences:
    """Where each sequence lives: on the server that saw its first request, until it ends or falls silent.

    Pure bookkeeping; `now_s` is any clock that never goes back.
    """

    def __init__(self) -> None:
        self._homes: dict[Key, _Home] = {}

    def enter(
        self, key: Key, *, start: bool, idle_s: float, now_s: float, choose: Callable[[], Backend | None]
    ) -> Backend | None:
        """The server of a request that begins now; one without a home is placed by `choose`.

        A first request that starts anew may be placed anew: its server forgets what was before. One without
        an id is refused there, and leaves nothing behind.
        """
        if not key[1]:
            return choose()
        home = self._homes.get(key)
        if home is None or (start and not home.busy) or self._silent(home, now_s):
            backend = choose()
            if backend is None:
                return None
            home = self._homes[key] = _Home(backend, idle_s)
        home.busy += 1
        home.last_s = now_s
        return home.backend

    def leave(self, key: Key, *, end: bool, now_s: float) -> None:
        """A request has been answered; with `end` its sequence is over."""
        home = self._homes.get(key)
        if home is None:
            return
        home.busy -= 1
        home.last_s = now_s
        if end and home.busy <= 0:
            del self._homes[key]

    def expire(self, now_s: float) -> None:
        """Forget sequences that their servers have forgotten."""
        self._homes = {key: home for key, home in self._homes.items() if not self._silent(home, now_s)}

    def living(self) -> dict[str, int]:
        """Server -> sequences it still holds."""
        return dict(Counter(home.backend.server for home in self._homes.values()))

    @staticmethod
    def _silent(home: _Home, now_s: float) -> bool:
        return not home.busy and now_s - home.last_s > home.idle_s


class Fleet:
    """The server of each endpoint, chosen for every message."""

    def __init__(self, paths: GatewayPaths, sessions: TritonSessions) -> None:
        self._sessions = sessions
        self.routes: Routes = {}
        self.served = False
        """Whether routes were ever committed. An apply commits all of its plan's at once, each with servers
        that have answered; a later death takes no fleet out of its load balancer."""
        self._traits: Mapping[str, Traits] = {}
        self._open: Counter[tuple[str, str]] = Counter()
        self._resting: Counter[tuple[str, str]] = Counter()
        self._down: dict[str, str] = {}
        """Lost server -> the endpoint by which that was seen."""
        self.sequences = Sequences()
        self.meter = Meter()
        self._held = Remembered(paths.limits, partial(read_held, paths.limits))
        self.moved: set[Callable[[], None]] = set()
        """Functions to call after every change of routes, and when sequences end."""

    def limit(self, endpoint: str) -> Limit:
        """Return the limits of an endpoint, as they are now."""
        return self._held.get().limits.get(endpoint, NO_LIMIT)

    def check_refusal(self, endpoint: str, client: str) -> None:
        """Raise LimitReached while the endpoint, or the client's calls of it, are refused."""
        now_s = time.time()
        if any(refused(until_s, now_s) for until_s in self._refusals(endpoint, client)):
            raise LimitReached(REFUSED)

    def resends(self, endpoint: str, client: str) -> bool:
        """Return whether a request that a lost server held may go to another one, as in HAProxy: once.

        Not where such a request may be what crashed servers, nor in a pool, where it could end all of them.
        """
        pool = len(self.routes[endpoint].members) > 1 if endpoint in self.routes else False
        now_s = time.time()
        return not pool and not any(remembered(s, now_s) for s in self._refusals(endpoint, client))

    def _refusals(self, endpoint: str, client: str) -> tuple[int, ...]:
        """Return until when the requests of this endpoint, and of this client, are or were refused."""
        refusals = self._held.get().refusals
        return tuple(refusals[who] for who in ((endpoint, ""), (endpoint, client)) if who in refusals)

    def take(self, generation: int, table: SlotTable) -> None:
        """Route every message from now on by these slots; before the first commit the generation is 0."""
        self.served = generation > 0
        self.routes = table.routes()
        self._traits = {slot.endpoint: slot.traits for slot in table.slots if slot.endpoint}
        present = {server.server for server in self.servers()}
        self._down = {server: endpoint for server, endpoint in self._down.items() if server in present}
        self._tell()

    def traits(self, endpoint: str) -> Traits:
        """Of a model; a plain one's where nothing is known."""
        return self._traits.get(endpoint, Traits())

    def choose(self, endpoint: str) -> Backend | None:
        """The living member with the fewest open calls for the endpoint, else the backup, else any member."""
        route = self.routes.get(endpoint)
        if route is None:
            return None
        living = [member for member in route.members if member.server not in self._down]
        if not living and route.backup is not None and route.backup.server not in self._down:
            return route.backup
        return min(living or route.members, key=lambda member: self._open[member.server, endpoint])

    def choose_in_sequence(self, key: Key, *, start: bool) -> Backend | None:
        """The server of a sequence's request; `leave_sequence` follows its answer."""
        idle_s = (self.traits(key[0]).sequence_idle_us or 0) / 1e6
        choose = partial(self.choose, key[0])
        return self.sequences.enter(key, start=start, idle_s=idle_s, now_s=time.monotonic(), choose=choose)

    def leave_sequence(self, key: Key, *, end: bool) -> None:
        """A request of a sequence was answered."""
        self.sequences.leave(key, end=end, now_s=time.monotonic())
        if end:
            self._tell()

    def routed(self, endpoint: str, backend: Backend) -> bool:
        """Whether new requests for the endpoint may go to this server."""
        route = self.routes.get(endpoint)
        return route is not None and backend in route.servers

    def known(self, endpoint: str) -> Route:
        """Return an endpoint's route. Raises Refusal where it has none."""
        if endpoint not in self.routes:
            raise Refusal(StatusCode.INVALID_ARGUMENT, f"Request for unknown model : {endpoint}")
        return self.routes[endpoint]

    def all_servers(self) -> tuple[Backend, ...]:
        """Return `servers`. Raises Refusal where there are none."""
        servers = self.servers()
        if not servers:
            raise Refusal(StatusCode.UNAVAILABLE, "no server runs in this fleet")
        return servers

    def servers(self) -> tuple[Backend, ...]:
        """Every server of the fleet once, backups included."""
        found = {backend.server: backend for route in self.routes.values() for backend in route.servers}
        return tuple(found[name] for name in sorted(found))

    def opened(self, endpoint: str, backend: Backend) -> None:
        """A call on a server begins."""
        self._open[backend.server, endpoint] += 1

    def closed(self, endpoint: str, backend: Backend) -> None:
        """It has ended."""
        self._open[backend.server, endpoint] -= 1
        if not self._open[backend.server, endpoint]:
            del self._open[backend.server, endpoint]

    def rests(self, endpoint: str, backend: Backend, resting: bool) -> None:
        """An open call awaits no answer from now on, or does again."""
        self._resting[backend.server, endpoint] += 1 if resting else -1

    @contextlib.contextmanager
    def call(self, endpoint: str, backend: Backend) -> Iterator[None]:
        """Counts a call as open on a server."""
        self.opened(endpoint, backend)
        try:
            yield
        finally:
            self.closed(endpoint, backend)

    def in_flight(self) -> dict[str, InFlight]:
        """Server -> calls open on it that do not rest, and sequences it holds."""
        found = {server: InFlight(sequences=count) for server, count in self.sequences.living().items()}
        for (server, endpoint), count in self._open.items():
            working = count - self._resting[server, endpoint]
            pauses = self.traits(endpoint).pauses
            more = InFlight(streaming=working) if pauses else InFlight(requests=working)
            found[server] = found.get(server, NOTHING_IN_FLIGHT).plus(more)
        return found

    def lost(self, backend: Backend, endpoint: str) -> None:
        """Pass over a server that dropped a connection or has unloaded a model, until that is ready there."""
        self._down[backend.server] = endpoint

    async def watch(self) -> None:
        """Find lost servers that are back and sequences that fell silent. Never returns."""
        while True:
            await asyncio.sleep(_PROBE_S)
            for server in self.servers():
                endpoint = self._down.get(server.server)
                if endpoint is not None and await self._is_ready(server, endpoint):
                    self._down.pop(server.server, None)
            self.meter.keep_only(self._held.get().limits)
            before = self.sequences.living()
            self.sequences.expire(time.monotonic())
            if self.sequences.living() != before:
                self._tell()

    async def ask(self, backend: Backend, path: str) -> tuple[int, Any]:
        """A server's status and JSON; status 0 where it does not answer."""
        try:
            # A server that is to end waits for its idle connections.
            closed, at = {"Connection": "close"}, (backend.host, backend.http_port)
            call = self._sessions.request(at, "GET", path, headers=closed, timeout=_ASK_TIMEOUT)
            async with call as answer:
                text = await answer.read()
                if not text or answer.content_type != "application/json":
                    return answer.status, None
                return answer.status, await answer.json()
        except (TimeoutError, aiohttp.ClientError, ValueError):
            return 0, None

    async def _is_ready(self, backend: Backend, endpoint: str) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_S):
                status, _ = await self.ask(backend, f"/v2/models/{quote(endpoint, safe='')}/ready")
                return status == 200
        return False

    def _tell(self) -> None:
        for listener in tuple(self.moved):
            listener()


class Attempts:
    """The servers that one request goes to, while those before are lost without an answer.

    One that a lost server held goes to one more at most: it may be what ended the server.
    """

    def __init__(self, fleet: Fleet, endpoint: str, client: str) -> None:
        self._fleet = fleet
        self._endpoint = endpoint
        self._resends = fleet.resends(endpoint, client)
        self._tried: set[str] = set()

    def next(self) -> Backend | None:
        """Return a server that has not been tried; None where there is none."""
        backend = self._fleet.choose(self._endpoint)
        return None if backend is None or backend.server in self._tried else backend

    def lost(self, backend: Backend, *, held: bool) -> bool:
        """Note a server that was lost, with the request where it `held` it; return whether to go on."""
        self._tried.add(backend.server)
        goes_on = self._resends or not held
        self._resends = self._resends and not held
        return goes_on

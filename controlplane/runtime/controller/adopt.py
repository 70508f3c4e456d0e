"""Adoption of a fleet by a new controller, from what runs and what is routed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.control.converge.desired import Desired, NamedRoute, planned_servers, stands_for
from controlplane.control.guard import decide
from controlplane.control.guard.effects import Ending
from controlplane.control.guard.standbys import is_awaited
from controlplane.control.guard.state import (
    GuardedPartition,
    GuardState,
    Limits,
    PlacedServer,
    Share,
    differs,
)
from controlplane.domain.fleet import Backend, Role, Route, Server, ServerSpec, ServerState
from controlplane.domain.observation import Guarding
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.fleets import FleetSettings
from controlplane.runtime.controller.workers import Workers
from controlplane.runtime.fleet.execute import backend


@dataclass(slots=True)
class Adopted:
    """A fleet since its adoption: the guard's state, and what the controller has changed.

    `changed_s` is when a command last wrote the fleet's settings or plan. `backends` has the addresses of all
    servers that were routed.
    """

    state: GuardState
    planned: Mapping[str, ServerSpec]
    devices: Mapping[str, str]
    routes: dict[str, NamedRoute]
    backends: dict[str, Backend] = field(default_factory=dict)
    changed_s: float | None = None

    def gives_way(self, partition: str) -> bool:
        """Return whether a start of this partition gives way to other servers: no request waits for it."""
        watch = self.state.watches.get(partition)
        return watch is None or not is_awaited(watch)  # none for a shared shadow

    def addressed(self, routes: Mapping[str, NamedRoute], workers: Workers) -> dict[str, Route]:
        """Return the routes with addresses, without servers whose address is unknown."""

        def address(name: str) -> Backend | None:
            server = workers.server(name)
            if server is not None:
                self.backends[name] = backend(server)
            return self.backends.get(name)

        found = {}
        for endpoint, route in routes.items():
            members = tuple(b for name in route.members if (b := address(name)) is not None)
            if members:
                found[endpoint] = Route(members, None if route.backup is None else address(route.backup))
        return found


_DEAD_ENDINGS = {ServerState.EXITED: Ending.AT_ONCE, ServerState.PAUSED: Ending.HUNG}


@dataclass(frozen=True, slots=True)
class Adoption:
    """The guard's first state, the servers in it, and the servers that end (`endings`: how, else drained)."""

    state: GuardState
    planned: Mapping[str, ServerSpec]
    kept: tuple[Server, ...]
    surplus: tuple[Server, ...]
    endings: Mapping[str, Ending]


def adoption(
    guarded: tuple[GuardedPartition, ...],
    desired: Desired,
    settings: FleetSettings,
    servers: tuple[Server, ...],
    routes: Mapping[str, NamedRoute],
    limits: Limits,
    generation: int,
    guarding: Iterable[Guarding] = (),
) -> Adoption:
    """Choose each partition's active server (the routed one) and shadow from the servers that run.

    The others are surplus: dead, draining, or left by an interrupted redirect or launch. `guarding` is what
    the controller before wrote of shares and of servers that end.
    """
    records = {one.partition: one for one in guarding}
    endings = {
        server: Ending.__members__.get(how, Ending.DRAINED)
        for one in records.values()
        for server, how in one.ending.items()
    }
    found = [s for s in servers if s.spec.labels.role is not Role.PROFILE]
    gpus = {device: gpu for gpu, device in settings.devices.items()}
    running = _Running(found, desired, planned_servers(desired), routes, gpus, records, frozenset(endings))
    chosen = {partition.id: running.chosen(partition) for partition in guarded}
    kept = list({s.name: s for one in chosen.values() for s in one.servers}.values())
    surplus = tuple(server for server in found if server not in kept)
    endings.update((s.name, _DEAD_ENDINGS[s.state]) for s in surplus if s.state in _DEAD_ENDINGS)
    placed = {name: one.placed for name, one in chosen.items()}
    owned = {name: one.owned for name, one in chosen.items() if one.owned is not None}
    state = decide.begin(guarded, placed, limits, generation, owned)
    return Adoption(state, running.planned, tuple(kept), surplus, endings)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A partition's servers that go on: the active one, then its shadow.

    `owned` is the partition's share where the active one, a shadow, lends another.
    """

    servers: tuple[Server, ...]
    placed: tuple[PlacedServer, ...]
    owned: Share | None = None


class _Running:
    """The servers that run, to choose each partition's from; `ending` are those that end."""

    def __init__(
        self,
        found: Iterable[Server],
        desired: Desired,
        planned: Mapping[str, ServerSpec],
        routes: Mapping[str, NamedRoute],
        gpus: Mapping[str, str],
        records: Mapping[str, Guarding],
        ending: Collection[str],
    ) -> None:
        self.planned = planned
        self._desired = desired
        self._routes = routes
        self._gpus = gpus
        self._records = records
        self._ending = ending
        self._backups = {route.backup for route in routes.values()}
        self._of_partition: dict[str, list[Server]] = {}
        for server in found:
            if server.state is ServerState.RUNNING:
                self._of_partition.setdefault(server.spec.labels.partition, []).append(server)
        self._names = {server.name for servers in self._of_partition.values() for server in servers}

    def chosen(self, partition: GuardedPartition) -> _Chosen:
        """Return the server of a partition that is routed or, without one, can serve; and its shadow."""
        routed = {m for e in partition.endpoints if e in self._routes for m in self._routes[e].members}
        candidates = self._candidates(partition, routed)
        # A warm shadow has its models loaded only after the guard's order.
        warm = partition.policy is ShadowPolicy.WARM
        serving = (s for s in candidates if s.name in routed or not warm or s.spec.labels.role is Role.ACTIVE)
        active = next(serving, None)
        if active is None:
            place = PlacedServer(self.planned[partition.id].name, partition.gpu, partition.percent)
        else:
            # A routed one was ready before: this controller did not start it, and its end is no failed start.
            since_s = -math.inf if active.name in routed else math.inf
            place = self._placed(active, partition, since_s)
        if partition.policy is ShadowPolicy.NONE:
            return _Chosen(() if active is None else (active,), (place,))
        owned = None if active is None else self._owned(active, place, partition, routed)
        # A server that is neither a backup nor as large as the active one is surplus.
        least = 0.0 if active is None else active.spec.percent if owned is None else owned.percent
        others = [s for s in candidates if s is not active]
        shadow = next((s for s in others if s.name in self._backups or s.spec.percent >= least), None)
        both = tuple(s for s in (active, shadow) if s is not None)
        placed = (place,) if shadow is None else (place, self._placed(shadow, partition))
        return _Chosen(both, placed, owned)

    def _placed(self, server: Server, partition: GuardedPartition, since_s: float = math.inf) -> PlacedServer:
        spec = server.spec
        shared = spec.labels.partition != partition.id
        return PlacedServer(server.name, self._gpus[spec.device], spec.percent, since_s, shared)

    def _candidates(self, partition: GuardedPartition, routed: Collection[str]) -> list[Server]:
        """Return a partition's servers: routed first, then what backs it up, then as planned, then others.

        One that is neither routed nor a backup may be of another plan, after an interrupted apply.
        """
        candidates = []
        for name in (partition.id, *(() if partition.shared is None else partition.shared[:1])):
            for server in self._of_partition.get(name, ()):
                serves = server.name in routed or server.name in self._backups
                if not serves and server.name not in self._ending:
                    serves = stands_for(server.spec, self.planned[name], self._desired)
                if serves and server.spec.device in self._gpus:
                    candidates.append(server)
        planned = self._desired.servers
        return sorted(
            candidates,
            key=lambda s: (s.name not in routed, s.name not in self._backups, s.name not in planned, s.name),
        )

    def _owned(
        self, active: Server, place: PlacedServer, partition: GuardedPartition, routed: Collection[str]
    ) -> Share | None:
        """Return the partition's own share where its active server, a shadow, lends another.

        The recorded one, where `active` had it or took over from a dead server: where that one still runs,
        the traffic was moved to `active` for its share.
        """
        record, share = self._records.get(partition.id), None
        if record is not None and record.owned_gpu is not None and record.owned_percent is not None:
            was_moved = record.active in self._names and record.active != active.name
            of_another_plan = active.name not in routed and record.active not in routed
            if not was_moved and not of_another_plan:
                share = Share(record.owned_gpu, record.owned_percent)
        if share is None and active.name not in routed:
            share = Share(partition.gpu, partition.percent)
        if share is None or active.spec.labels.role is Role.ACTIVE or not differs(place, share):
            return None
        return share if share.percent >= partition.percent else None  # else of an earlier plan

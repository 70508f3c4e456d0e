"""Adoption of a fleet by a new controller, from what runs and what is routed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.control.converge.desired import Desired, NamedRoute, stands_for
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
    owned: dict[str, Share] = {}
    planned = _planned(desired)
    gpus = {device: gpu for gpu, device in settings.devices.items()}
    found = [s for s in servers if s.spec.labels.role is not Role.PROFILE]
    running = {s.name: s for s in found if s.state is ServerState.RUNNING}
    of_partition: dict[str, list[Server]] = {}
    for server in running.values():
        of_partition.setdefault(server.spec.labels.partition, []).append(server)
    backups = {route.backup for route in routes.values()}
    placed_servers: dict[str, tuple[PlacedServer, ...]] = {}
    kept: list[Server] = []
    for partition in guarded:
        routed = {m for e in partition.endpoints if e in routes for m in routes[e].members}
        spec = planned[partition.id]
        # A server that an interrupted apply started may belong to another plan: it must not get traffic.
        own = (partition.id,) if partition.shared is None else (partition.id, partition.shared[0])
        candidates = [
            s
            for name in own
            for s in of_partition.get(name, ())
            if s.spec.device in gpus
            and (
                s.name in routed
                or s.name in backups
                or (s.name not in endings and stands_for(s.spec, planned[name], desired))
            )
        ]
        # Routed first, then what backs it up, then as planned, then the others.
        candidates.sort(
            key=lambda s: (s.name not in routed, s.name not in backups, s.name not in desired.servers, s.name)
        )
        chosen = [s for s in candidates if s.name in routed or _can_serve(s, partition)][:1]
        # A routed one was ready before: this controller did not start it, and its end is no failed start.
        placed = [_placed(s, partition, gpus, -math.inf if s.name in routed else math.inf) for s in chosen]
        placed = placed or [PlacedServer(spec.name, partition.gpu, partition.percent)]
        if partition.policy is not ShadowPolicy.NONE:
            # A server that is neither a backup nor as large as the active one is surplus.
            least = chosen[0].spec.percent if chosen else 0.0
            record = records.get(partition.id)
            share = _recorded(record, chosen[0], routed, running) if chosen else None
            if share is None and chosen and chosen[0].name not in routed:
                share = Share(partition.gpu, partition.percent)
            if share is not None and chosen and _lends(chosen[0], placed[0], partition, share):
                owned[partition.id], least = share, share.percent
            shadows = [
                s for s in candidates if s not in chosen and (s.name in backups or s.spec.percent >= least)
            ]
            placed += [_placed(s, partition, gpus) for s in shadows[:1]]
            chosen += shadows[:1]
        kept += [server for server in chosen if server not in kept]
        placed_servers[partition.id] = tuple(placed)
    surplus = tuple(server for server in found if server not in kept)
    endings.update((s.name, _DEAD_ENDINGS[s.state]) for s in surplus if s.state in _DEAD_ENDINGS)
    state = decide.begin(guarded, placed_servers, limits, generation, owned)
    return Adoption(state, planned, tuple(kept), surplus, endings)


def _planned(desired: Desired) -> dict[str, ServerSpec]:
    """The planned server of each partition: the active one, where it has one."""
    planned: dict[str, ServerSpec] = {}
    for spec in desired.servers.values():
        if spec.labels.role is Role.ACTIVE or spec.labels.partition not in planned:
            planned[spec.labels.partition] = spec
    return planned


def _placed(
    server: Server, partition: GuardedPartition, gpus: Mapping[str, str], since_s: float = math.inf
) -> PlacedServer:
    spec = server.spec
    shared = spec.labels.partition != partition.id
    return PlacedServer(server.name, gpus[spec.device], spec.percent, since_s, shared)


def _recorded(
    record: Guarding | None, active: Server, routed: Collection[str], running: Collection[str]
) -> Share | None:
    """Return the share that a partition owned, where `active` had it or took over from a dead server.

    Where that one still runs, the traffic was moved to `active` for its share.
    """
    if record is None or record.owned_gpu is None or record.owned_percent is None:
        return None
    if record.active in running and record.active != active.name:
        return None
    if active.name not in routed and record.active not in routed:
        return None  # of another plan
    return Share(record.owned_gpu, record.owned_percent)


def _can_serve(server: Server, partition: GuardedPartition) -> bool:
    """Return whether a server has its models loaded: a warm shadow has them only after the guard's order."""
    return partition.policy is not ShadowPolicy.WARM or server.spec.labels.role is Role.ACTIVE


def _lends(server: Server, active: PlacedServer, partition: GuardedPartition, share: Share) -> bool:
    """Return whether an active server has another share than this, which may be of an earlier plan."""
    is_shadow = server.spec.labels.role is not Role.ACTIVE
    return is_shadow and differs(active, share) and share.percent >= partition.percent

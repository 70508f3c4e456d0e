"""Who sits where when a controller takes a fleet over: read from what runs and what is routed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.control.converge.desired import Desired, NamedRoute, stands_for
from controlplane.control.guard import decisions
from controlplane.control.guard.state import GuardedPartition, GuardState, Limits, PlacedServer
from controlplane.domain.fleet import Role, Server, ServerSpec, ServerState
from controlplane.domain.workload import ShadowPolicy
from controlplane.files.fleets import FleetSettings


@dataclass(frozen=True, slots=True)
class Taken:
    """The guard's first state, its servers, and those that an interruption left."""

    state: GuardState
    planned: Mapping[str, ServerSpec]
    kept: tuple[Server, ...]
    surplus: tuple[Server, ...]


def take_over(
    guarded: tuple[GuardedPartition, ...],
    desired: Desired,
    settings: FleetSettings,
    servers: tuple[Server, ...],
    routes: Mapping[str, NamedRoute],
    limits: Limits,
    generation: int,
) -> Taken:
    """Who sits where. A partition's active server is the one it is routed to; one more may stand by.

    The rest is surplus: an interrupted redirect left it, or an interrupted launch did.
    """
    planned = {
        spec.labels.partition: spec for spec in desired.servers.values() if spec.labels.role is Role.ACTIVE
    }
    gpus = {device: gpu for gpu, device in settings.devices.items()}
    running = [
        s for s in servers if s.state is ServerState.RUNNING and s.spec.labels.role is not Role.PROFILE
    ]
    backups = {route.backup for route in routes.values()}
    placed_servers: dict[str, tuple[PlacedServer, ...]] = {}
    kept: list[Server] = []
    for partition in guarded:
        routed = {m for e in partition.endpoints if e in routes for m in routes[e].members}
        spec = planned[partition.id]
        # What an interrupted apply started serves what another plan says: nothing may be turned over to it.
        mine = [
            s
            for s in running
            if s.spec.labels.partition == partition.id
            and s.spec.device in gpus
            and (s.name in routed or s.name in backups or stands_for(s.spec, spec, desired))
        ]
        # Routed first, then as planned, then the others.
        mine.sort(key=lambda s: (s.name not in routed, s.name not in desired.servers, s.name))
        chosen = mine[:1]
        if partition.policy is not ShadowPolicy.NONE:
            # What is neither a backup nor as large as the active server was left for it.
            chosen += [s for s in mine[1:] if s.name in backups or s.spec.percent >= chosen[0].spec.percent][
                :1
            ]
        kept += chosen
        placed_servers[partition.id] = tuple(
            PlacedServer(s.name, gpus[s.spec.device], s.spec.percent) for s in chosen
        ) or (PlacedServer(spec.name, partition.gpu, partition.percent),)
    surplus = tuple(s for s in running if s not in kept)
    return Taken(decisions.begin(guarded, placed_servers, limits, generation), planned, tuple(kept), surplus)

"""A plan as the fleet it means: which servers, and which of them answers for which endpoint. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.domain.fleet import Batches, Labels, Role, ServerSpec
from controlplane.domain.plan import Partition, Plan
from controlplane.domain.server_options import ServerOptions
from controlplane.domain.workload import ShadowPolicy


@dataclass(frozen=True, slots=True)
class NamedRoute:
    """A route by the servers' unique names: ports are known only once they run."""

    members: tuple[str, ...]
    backup: str | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """One partition's model repository on disk; `content_hash` covers all that was rendered.

    `turns`: its server executes one of the models at a time. `batches` are of the models whose batch is no
    part of the content, since it can change while they serve.
    """

    path: str
    content_hash: str
    turns: bool
    batches: Batches = ()


@dataclass(frozen=True, slots=True)
class Desired:
    """What should run. `warm` names the shadows whose models stay unloaded until they are needed."""

    servers: Mapping[str, ServerSpec]
    routes: Mapping[str, NamedRoute]
    warm: frozenset[str] = frozenset()


def desired_fleet(
    plan: Plan,
    *,
    fleet: str,
    plan_hash: str,
    rendered: Mapping[str, Rendered],
    devices: Mapping[str, str],
    fleet_wide_calls: bool = False,
) -> Desired:
    """The fleet of a plan.

    `rendered` maps a partition's id to its repository, `devices` a plan's GPU id to what the launcher
    calls it (`cpu-0`, a UUID). `fleet_wide_calls` is the fleet's option for its clients.
    """
    servers: dict[str, ServerSpec] = {}
    members: dict[str, list[str]] = {}
    backups: dict[str, str] = {}
    warm: set[str] = set()
    shared = _Shared(fleet, plan_hash, plan.options, fleet_wide_calls)
    for gpu, partition in plan.partitions():
        active = _spec(
            partition,
            Role.ACTIVE,
            rendered[partition.id],
            shared,
            device=devices[gpu.id],
            percent=partition.percent,
            memory_mb=partition.memory_mb,
        )
        servers[active.name] = active
        for placement in partition.workloads:
            members.setdefault(placement.endpoint, []).append(active.name)
        shadow = partition.shadow
        if shadow is None or shadow.policy is ShadowPolicy.NONE:
            continue
        standby = _spec(
            partition,
            Role.SHADOW,
            rendered[partition.id],
            shared,
            device=devices[shadow.gpu],
            percent=shadow.percent,
            memory_mb=shadow.memory_mb,
            reloads=shadow.policy is ShadowPolicy.WARM,
        )
        servers[standby.name] = standby
        if shadow.policy is ShadowPolicy.WARM:
            warm.add(standby.name)
            continue
        for placement in partition.workloads:
            backups.setdefault(placement.endpoint, standby.name)
    routes = {e: NamedRoute(tuple(names), backups.get(e)) for e, names in members.items()}
    return Desired(servers, routes, frozenset(warm))


@dataclass(frozen=True, slots=True)
class Moved:
    """A partition, its planned server, and the one that answers: another one since it was redirected."""

    partition: str
    planned: ServerSpec
    present: ServerSpec


def moved(desired: Desired, servers: Iterable[ServerSpec], routes: Mapping[str, NamedRoute]) -> list[Moved]:
    """The partitions whose routes lead to another server of theirs than the planned one, in order.

    `servers` are those that run. One that serves other content than the plan's does not count.
    """
    return [one for one in _present(desired, tuple(servers), routes) if one.present.name != one.planned.name]


def as_moved(desired: Desired, servers: Iterable[ServerSpec], routes: Mapping[str, NamedRoute]) -> Desired:
    """The same fleet with every partition left as it is: the server that answers, and what stands by."""
    specs, wanted, running = dict(desired.servers), dict(desired.routes), tuple(servers)
    for one in _present(desired, running, routes):
        others = [s for s in running if stands_for(s, one.planned, desired) and s.name != one.present.name]
        if one.present.name == one.planned.name and not others:
            continue
        specs = {n: s for n, s in specs.items() if s.labels.partition != one.partition}
        left = (one.present, *others)
        specs.update((s.name, replace(s, batches=one.planned.batches)) for s in left)
        for endpoint in one.planned.endpoints:
            members = wanted[endpoint].members
            members = tuple(one.present.name if m == one.planned.name else m for m in members)
            wanted[endpoint] = NamedRoute(members, wanted[endpoint].backup)
    for endpoint, route in wanted.items():
        present = routes[endpoint].backup if endpoint in routes else None
        backup = next((b for b in (present, route.backup) if b in specs and b not in route.members), None)
        wanted[endpoint] = NamedRoute(route.members, backup)
    return Desired(specs, wanted, desired.warm & specs.keys())


def _present(
    desired: Desired, running: tuple[ServerSpec, ...], routes: Mapping[str, NamedRoute]
) -> list[Moved]:
    """Each partition with the server that answers for it; those without one are left out."""
    routed = {name for route in routes.values() for name in route.members}
    found = []
    for planned in desired.servers.values():
        if planned.labels.role is Role.ACTIVE:
            answering = [s for s in running if s.name in routed and stands_for(s, planned, desired)]
            # While a redirect by hand is half done both may be routed to: the planned one goes first.
            for present in sorted(answering, key=lambda s: (s.name != planned.name, s.name))[:1]:
                found.append(Moved(planned.labels.partition, planned, present))
    return found


def descendant(planned: ServerSpec, *fixed: object) -> str:
    """The revision of a server that serves what a planned one does, on whatever `fixed` says it is."""
    digest = hashlib.sha256("|".join(map(str, fixed)).encode()).hexdigest()
    return f"{planned.labels.revision}-{digest[:10]}"


def stands_for(present: ServerSpec, planned: ServerSpec, desired: Desired) -> bool:
    """Whether a server is of the planned one's partition and serves what this plan has it serve."""
    if present.labels.partition != planned.labels.partition:
        return False
    return present.name in desired.servers or present.labels.revision.startswith(
        f"{planned.labels.revision}-"
    )


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all servers of a plan have in common."""

    fleet: str
    plan_hash: str
    options: ServerOptions
    fleet_wide_calls: bool


def _spec(
    partition: Partition,
    role: Role,
    rendered: Rendered,
    shared: _Shared,
    *,
    device: str,
    percent: float,
    memory_mb: float | None,
    reloads: bool = False,
) -> ServerSpec:
    # All that is fixed once the server runs: a server with the same revision needs no touching. Whether its
    # models take turns follows from what was rendered.
    limit_mb, options = partition.memory_limit_mb, shared.options
    fixed = f"{device}|{percent:g}|{limit_mb}|{rendered.content_hash}|{reloads}|{shared.fleet_wide_calls}"
    fixed += "|sockets"  # a server of an earlier version listens on ports, and is replaced
    if options:
        fixed += f"|{options.triton_args}|{tuple(options.env.items())}"
    revision = hashlib.sha256(fixed.encode()).hexdigest()[:10]
    return ServerSpec(
        labels=Labels(shared.fleet, shared.plan_hash, partition.id, role, revision),
        repository=rendered.path,
        endpoints=tuple(p.endpoint for p in partition.workloads),
        device=device,
        percent=percent,
        memory_mb=memory_mb,
        memory_limit_mb=limit_mb,
        reloads=reloads,
        fleet_wide_calls=shared.fleet_wide_calls,
        turns=rendered.turns,
        options=options,
        batches=rendered.batches,
    )

"""A plan as the fleet it means: which servers, and which of them answers for which endpoint. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from controlplane.domain.fleet import Batches, Labels, Role, ServerSpec
from controlplane.domain.plan import Partition, Plan, PlannedGpu, Shadow, SharedShadow
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
    part of the content, since it can change while they serve, and `largest` the largest that they may have.
    """

    path: str
    content_hash: str
    turns: bool
    batches: Batches = ()
    largest: Batches = ()


@dataclass(frozen=True, slots=True)
class Desired:
    """What should run. `warm` names the shadows whose models stay unloaded until they are needed.

    `largest` has the largest batches by partition, of the models whose batch can change while they serve.
    """

    servers: Mapping[str, ServerSpec]
    routes: Mapping[str, NamedRoute]
    warm: frozenset[str] = frozenset()
    largest: Mapping[str, Batches] = field(default_factory=dict)


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

    `rendered` maps the id of a partition or shared shadow to its repository, `devices` a plan's GPU id to
    what the launcher calls it (`cpu-0`, a UUID). `fleet_wide_calls` is the fleet's option for its clients.
    """
    servers: dict[str, ServerSpec] = {}
    members: dict[str, list[str]] = {}
    backups: dict[str, str] = {}
    warm: set[str] = set()
    common = _Common(fleet, plan_hash, plan.options, fleet_wide_calls, rendered, devices)

    def add(spec: ServerSpec) -> ServerSpec:
        servers[spec.name] = spec
        return spec

    for gpu in plan.gpus:
        standing: dict[str, ServerSpec] = {}
        if gpu.shared is not None:
            standby = add(_spec(common, _shared_content(gpu, gpu.shared), Role.SHARED, gpu.id, gpu.shared))
            standing = dict.fromkeys((p.id for p in gpu.sharers), standby)
        for partition in gpu.partitions:
            endpoints = tuple(p.endpoint for p in partition.workloads)
            content = _Content(partition.id, endpoints, partition.memory_limit_mb)
            active = add(_spec(common, content, Role.ACTIVE, gpu.id, partition))
            for endpoint in endpoints:
                members.setdefault(endpoint, []).append(active.name)
            shadow, its = partition.shadow, standing.get(partition.id)
            if shadow is None or shadow.policy is ShadowPolicy.NONE:
                continue
            if its is None:
                reloads = shadow.policy is ShadowPolicy.WARM
                its = add(_spec(common, content, Role.SHADOW, shadow.gpu, shadow, reloads=reloads))
            if shadow.policy is ShadowPolicy.WARM:
                warm.add(its.name)
                continue
            for endpoint in endpoints:
                backups.setdefault(endpoint, its.name)
    routes = {e: NamedRoute(tuple(names), backups.get(e)) for e, names in members.items()}
    return Desired(servers, routes, frozenset(warm), {name: one.largest for name, one in rendered.items()})


def _shared_content(gpu: PlannedGpu, shared: SharedShadow) -> _Content:
    limits = [p.memory_limit_mb for p in gpu.sharers]
    known = [limit_mb for limit_mb in limits if limit_mb is not None]
    endpoints = dict.fromkeys(p.endpoint for sharer in gpu.sharers for p in sharer.workloads)
    return _Content(shared.id, tuple(endpoints), sum(known) if len(known) == len(limits) else None)


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
    partitions = {s.labels.partition for s in specs.values() if s.labels.role is Role.ACTIVE}
    answering = _present(desired, running, routes)
    for one in answering:
        others = [s for s in running if stands_for(s, one.planned, desired) and s.name != one.present.name]
        shadows = (s for s in desired.servers.values() if s.labels.role is Role.SHADOW)
        shadow = next((s for s in shadows if s.labels.partition == one.partition), None)
        if shadow is not None and shadow.name != one.present.name:
            # One was cut for a redirected neighbour, which has given its share back since.
            was_cut = any(s.percent < shadow.percent and _room(answering, s) for s in others)
            others = [shadow] if was_cut else others
        if one.present.name == one.planned.name and not others:
            continue
        specs = {n: s for n, s in specs.items() if s.labels.partition != one.partition}
        left = (one.present, *others)
        specs.update((s.name, replace(s, batches=one.planned.batches)) for s in left)
        for endpoint in one.planned.endpoints:
            members = wanted[endpoint].members
            members = tuple(one.present.name if m == one.planned.name else m for m in members)
            wanted[endpoint] = NamedRoute(members, wanted[endpoint].backup)
    for planned in tuple(specs.values()):
        # A shared shadow is no partition's: one that was started since is as good as the planned one.
        of_plan = planned.name in desired.servers and planned.labels.partition not in partitions
        later = [s for s in running if s.name != planned.name and stands_for(s, planned, desired)]
        if of_plan and later and planned.name not in {s.name for s in running}:
            del specs[planned.name]
            specs[later[0].name] = replace(later[0], batches=planned.batches)
    for endpoint, route in wanted.items():
        present = routes[endpoint].backup if endpoint in routes else None
        backup = next((b for b in (present, route.backup) if b in specs and b not in route.members), None)
        wanted[endpoint] = NamedRoute(route.members, backup)
    return replace(desired, servers=specs, routes=wanted, warm=desired.warm & specs.keys())


def _room(answering: Iterable[Moved], shadow: ServerSpec) -> bool:
    """Whether the servers that answer leave a shadow's device the share that the plan leaves it."""
    extra = 0.0
    for one in answering:
        extra += one.present.percent if one.present.device == shadow.device else 0.0
        extra -= one.planned.percent if one.planned.device == shadow.device else 0.0
    return extra <= 0


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


def planned_servers(desired: Desired) -> dict[str, ServerSpec]:
    """The planned server of each partition and shared shadow: the active one, where it has one."""
    planned: dict[str, ServerSpec] = {}
    for spec in desired.servers.values():
        if spec.labels.role is Role.ACTIVE or spec.labels.partition not in planned:
            planned[spec.labels.partition] = spec
    return planned


def successor(planned: ServerSpec, number: object) -> ServerSpec:
    """A later server that serves what a planned one does; `number` makes its name unique."""
    role = Role.SHARED if planned.labels.role is Role.SHARED else Role.SHADOW
    revision = f"{planned.labels.revision}-{number}"
    return replace(planned, labels=replace(planned.labels, role=role, revision=revision))


def stands_for(present: ServerSpec, planned: ServerSpec, desired: Desired) -> bool:
    """Whether a server is of the planned one's partition and serves what this plan has it serve."""
    if present.labels.partition != planned.labels.partition:
        return False
    return present.name in desired.servers or present.labels.revision.startswith(
        f"{planned.labels.revision}-"
    )


@dataclass(frozen=True, slots=True)
class _Common:
    """What all servers of a plan have in common, as `desired_fleet` has it."""

    fleet: str
    plan_hash: str
    options: ServerOptions
    fleet_wide_calls: bool
    rendered: Mapping[str, Rendered]
    devices: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Content:
    """What a partition's servers, or a shared shadow, serve; `id` is its id in the plan."""

    id: str
    endpoints: tuple[str, ...]
    memory_limit_mb: float | None


def _spec(
    common: _Common,
    content: _Content,
    role: Role,
    gpu: str,
    share: Partition | Shadow | SharedShadow,
    *,
    reloads: bool = False,
) -> ServerSpec:
    # All that is fixed once the server runs: a server with the same revision needs no touching. Whether its
    # models take turns follows from what was rendered.
    limit_mb, options, rendered = content.memory_limit_mb, common.options, common.rendered[content.id]
    device = common.devices[gpu]
    fixed = f"{device}|{share.percent:g}|{limit_mb}|{rendered.content_hash}|{reloads}"
    fixed += f"|{common.fleet_wide_calls}"
    fixed += "|sockets"  # a server of an earlier version listens on ports, and is replaced
    if options:
        fixed += f"|{options.triton_args}|{tuple(options.env.items())}"
    revision = hashlib.sha256(fixed.encode()).hexdigest()[:10]
    return ServerSpec(
        labels=Labels(common.fleet, common.plan_hash, content.id, role, revision),
        repository=rendered.path,
        endpoints=content.endpoints,
        device=device,
        percent=share.percent,
        memory_mb=share.memory_mb,
        memory_limit_mb=limit_mb,
        reloads=reloads,
        fleet_wide_calls=common.fleet_wide_calls,
        turns=rendered.turns,
        options=options,
        batches=rendered.batches,
    )

"""What is to be done so that what runs becomes what should run. Pure: values in, a list of actions out.

The order is the promise. New servers are started and answer a real inference before a route moves to
them; a route moves in one commit; only then are the servers nothing leads to drained and stopped. So after
any prefix of the list every endpoint that was served is still served, and computing the list again from
what then runs finishes the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.control.converge.desired import Desired, NamedRoute, stands_for
from controlplane.domain.fleet import Batches, Server, ServerSpec, ServerState


@dataclass(frozen=True, slots=True)
class Remove:
    """Clear away what a dead server left."""

    server: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start a server, or wait until one under way is ready."""

    spec: ServerSpec


@dataclass(frozen=True, slots=True)
class Prove:
    """A real inference on every endpoint of a server."""

    server: str
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload the models of a warm shadow."""

    server: str
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Make these the routes, in one step."""

    routes: Mapping[str, NamedRoute]


@dataclass(frozen=True, slots=True)
class SetBatches:
    """Give models of a running server other batches."""

    server: str
    batches: Batches


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait until a server has no request in flight."""

    server: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End a server."""

    server: str


Action = Remove | Start | Prove | Unload | Commit | SetBatches | Drain | Stop


@dataclass(frozen=True, slots=True)
class Actual:
    """What runs, by the engine's labels and the gateway's own map.

    `routes` are those that lead to running servers. `stale`: the gateway has others besides.
    """

    servers: tuple[Server, ...]
    routes: Mapping[str, NamedRoute]
    stale: bool = False


def converge(desired: Desired, actual: Actual) -> tuple[Action, ...]:
    """The actions that turn `actual` into `desired`, in order; none where they agree."""
    running = {s.name for s in actual.servers if s.state is ServerState.RUNNING}
    dead = {s.name for s in actual.servers if s.state is not ServerState.RUNNING} - running
    # A server that runs but is not routed yet may be one an interrupted run started: it is proved again.
    unrouted = _named(desired.routes.values()) - _named(actual.routes.values())
    fresh = [spec for name, spec in desired.servers.items() if name not in running or name in unrouted]
    actions: list[Action] = [Remove(name) for name in sorted(dead)]
    actions += [Start(spec) for spec in fresh]
    actions += [Prove(spec.name, spec.endpoints) for spec in fresh]
    actions += [Unload(spec.name, spec.endpoints) for spec in fresh if spec.name in desired.warm]
    if actual.stale or dict(actual.routes) != dict(desired.routes):
        actions.append(Commit(dict(desired.routes)))
    # After the routes: a failure before them leaves the batches as they were.
    actions += batches_as_planned(desired, actual.servers)
    surplus = sorted(running - set(desired.servers))
    actions += [Drain(name) for name in surplus]
    actions += [Stop(name) for name in surplus]
    return tuple(actions)


def destroy(actual: Actual) -> tuple[Action, ...]:
    """The actions that end a fleet: nothing is routed any more before anything stops."""
    return converge(Desired({}, {}), actual)


def batches_as_planned(desired: Desired, servers: Iterable[Server]) -> list[SetBatches]:
    """Return what gives those of the servers that serve a plan's content its batches, where they differ."""
    found = []
    for server in servers:
        # Of the active server's content or of the shadow's; all of a partition have the same batches.
        its = (one for one in desired.servers.values() if stands_for(server.spec, one, desired))
        wanted = next(its, None)
        if wanted is None or server.state is not ServerState.RUNNING:
            continue
        if server.spec.batches != wanted.batches:
            found.append(SetBatches(server.name, wanted.batches))
    return found


def _named(routes: Iterable[NamedRoute]) -> set[str]:
    names: set[str] = set()
    for route in routes:
        names.update(route.members)
        if route.backup is not None:
            names.add(route.backup)
    return names

"""A redirect by hand: from the servers that answer to those that stand by, and back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from controlplane.control.desired import Desired, NamedRoute
from controlplane.domain.errors import InputError


def companions(desired: Desired, endpoints: Iterable[str]) -> tuple[str, ...]:
    """The other endpoints that these share a server with, if only through one another: they move together."""
    asked = set(endpoints)
    together = set(asked)
    sharing = [set(spec.endpoints) for spec in desired.servers.values()]
    while joined := [s for s in sharing if s & together and not s <= together]:
        together.update(*joined)
    return tuple(sorted(together - asked))


def redirected(
    desired: Desired, current: Mapping[str, NamedRoute], endpoints: Iterable[str], running: Collection[str]
) -> dict[str, NamedRoute]:
    """The routes with each of `endpoints` turned over to what stands by; one that is half turned goes back.

    Raises InputError for an endpoint with nothing hot standing by.
    """
    routes = dict(current)
    for endpoint in endpoints:
        planned = desired.routes[endpoint]
        others = tuple(
            name
            for name, spec in desired.servers.items()
            if endpoint in spec.endpoints
            and name in running
            and name not in planned.members
            and name not in desired.warm
        )
        present = current.get(endpoint)
        if present is None or present.members != planned.members:
            routes[endpoint] = planned
        elif others:
            routes[endpoint] = NamedRoute(others, backup=planned.members[0])
        else:
            raise InputError("has no hot shadow to redirect to", field=endpoint)
    return routes

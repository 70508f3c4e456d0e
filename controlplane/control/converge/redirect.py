"""A redirect by hand: from the servers that answer to those that stand by, and back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from controlplane.control.converge.desired import Desired, NamedRoute
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role


def companions(desired: Desired, endpoints: Iterable[str]) -> tuple[str, ...]:
    """The other endpoints that these share a server with, if only through one another: they move together."""
    asked = set(endpoints)
    together = set(asked)
    active = (spec for spec in desired.servers.values() if spec.labels.role is Role.ACTIVE)
    sharing = [set(spec.endpoints) for spec in active]
    while joined := [s for s in sharing if s & together and not s <= together]:
        together.update(*joined)
    return tuple(sorted(together - asked))


def redirected(
    desired: Desired, current: Mapping[str, NamedRoute], endpoints: Iterable[str], running: Collection[str]
) -> dict[str, NamedRoute]:
    """The routes with each of `endpoints` turned over to what stands by; one that is half turned goes back.

    Servers that no longer run are left out, here and of what else is routed: the others of a pool serve on.
    Raises InputError for an endpoint with nothing hot standing by.
    """
    routes = {e: left for e, route in current.items() if (left := _living(route, running)) is not None}
    for endpoint in endpoints:
        whole = desired.routes[endpoint]
        planned, present = _living(whole, running), routes.get(endpoint)
        others = tuple(
            name
            for name, spec in desired.servers.items()
            if endpoint in spec.endpoints
            and name in running
            and name not in whole.members
            and name not in desired.warm
        )
        if planned is not None and (present is None or present.members != planned.members):
            routes[endpoint] = planned
        elif others and (present is None or present.members != others):
            routes[endpoint] = NamedRoute(others, backup=None if planned is None else planned.members[0])
        else:
            raise InputError("has no hot shadow to redirect to", field=endpoint)
    return routes


def moves(
    before: Mapping[str, NamedRoute],
    after: Mapping[str, NamedRoute],
    endpoints: Iterable[str],
    partitions: Mapping[str, str],
) -> list[tuple[str, str, str]]:
    """Partition, the former and the present servers, where they changed for one of `endpoints`. For people.

    `partitions` is server -> partition. A server that is gone from there is not named.
    """
    found: set[tuple[str, str, str]] = set()
    for endpoint in endpoints:
        old = before[endpoint].members if endpoint in before else ()
        new = after[endpoint].members
        left, came = [m for m in old if m not in new], [m for m in new if m not in old]
        for partition in {partitions[m] for m in (*left, *came) if m in partitions}:
            source, target = (
                ", ".join(m for m in members if partitions.get(m) == partition) or "no server"
                for members in (left, came)
            )
            found.add((partition, source, target))
    return sorted(found)


def _living(route: NamedRoute, running: Collection[str]) -> NamedRoute | None:
    """The route over those of its servers that run; None where no member does."""
    members = tuple(member for member in route.members if member in running)
    return NamedRoute(members, route.backup if route.backup in running else None) if members else None

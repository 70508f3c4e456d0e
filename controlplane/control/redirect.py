"""A redirect by hand: from the active servers to their shadows, or back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.control.desired import Desired, NamedRoute
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role


def redirected(
    desired: Desired, current: Mapping[str, NamedRoute], endpoints: Iterable[str]
) -> dict[str, NamedRoute]:
    """The routes with each of `endpoints` turned over: active -> shadow, anything else -> active.

    Raises InputError for an endpoint without a hot shadow.
    """
    routes = dict(current)
    for endpoint in endpoints:
        planned = desired.routes[endpoint]
        shadows = tuple(
            name
            for name, spec in desired.servers.items()
            if spec.labels.role is Role.SHADOW and endpoint in spec.endpoints and name not in desired.warm
        )
        present = current.get(endpoint)
        if present is None or present.members != planned.members:
            routes[endpoint] = planned
        elif shadows:
            routes[endpoint] = NamedRoute(shadows, backup=planned.members[0])
        else:
            raise InputError("has no hot shadow to redirect to", field=endpoint)
    return routes

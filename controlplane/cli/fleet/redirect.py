"""`ctl redirect`: move workloads to their shadows, or back."""

from __future__ import annotations

from controlplane.cli import options, wiring
from controlplane.files.writing import to_json


def redirect(
    workload: list[str],
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Route each WORKLOAD from its active server to its shadow, or back.

    All routes change at the same time. Other workloads of the same partition move too. Requests in flight
    finish on the server that has them.
    """
    found, settings = wiring.existing_fleet(fleet)
    routes = found.redirect(workload, settings)
    if json:
        print(to_json({"fleet": fleet, "routes": {e: list(r.members) for e, r in routes.items()}}), end="")
    else:
        for endpoint, route in sorted(routes.items()):
            print(f"{endpoint} -> {', '.join(route.members)}")

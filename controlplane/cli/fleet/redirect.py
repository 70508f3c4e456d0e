"""`ctl redirect`: move workloads to their shadows, or back."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import cluster, completers, options, wiring
from controlplane.cli.output import answer
from controlplane.runtime.fleet.redirect import redirect as redirected


def redirect(
    workload: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD", help="The workloads to move.", autocompletion=completers.workloads
        ),
    ],
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Route each WORKLOAD from its active server to its shadow, or back.

    All routes change at the same time. Other workloads of the same partition move too. Requests in flight
    finish on the server that has them.
    """
    cluster.by_leader(wiring.fleet_files(fleet), "redirect", *workload, *(("--json",) if json else ()))
    found, settings = wiring.existing_fleet(fleet)
    routes = redirected(found, workload, settings)
    lines = [f"{endpoint} -> {', '.join(route.members)}" for endpoint, route in sorted(routes.items())]
    document = {"fleet": fleet, "routes": {e: list(r.members) for e, r in routes.items()}}
    answer(document, "\n".join(lines), json=json)

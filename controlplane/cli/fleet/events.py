"""`ctl events`: the history of a fleet."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from controlplane.cli import cluster, options, wiring
from controlplane.cli.output import print_json
from controlplane.report.words import printable


def events(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    since: Annotated[
        float | None, typer.Option(help="Show the events of the last SINCE seconds only.", min=0.0)
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most the newest LIMIT events.", min=1)] = 100,
    json: options.Json = False,
) -> None:
    """Show redirects, violations, plans, restarts and failures of a fleet, oldest first."""
    given = ("--since", str(since)) if since is not None else ()
    wanted = ("--limit", str(limit), *given, *(("--json",) if json else ()))
    cluster.by_leader(wiring.fleet_files(fleet), "events", *wanted)
    found = wiring.recent_events(fleet, since_s=since, limit=limit)
    if json:
        print_json({"fleet": fleet, "events": found})
        return
    for event in found:
        at = datetime.fromtimestamp(event.at_s).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        print(f"{at}  {event.level:8}  {event.kind:8}  {event.subject}: {printable(event.reason)}")

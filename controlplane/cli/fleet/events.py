"""`ctl events`: the history of a fleet."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer

from controlplane.cli import cluster, options, wiring
from controlplane.cli.output import print_json, print_json_line
from controlplane.domain.observation import Event
from controlplane.report.words import printable

_PERIOD_S = 0.5


def events(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    since: Annotated[
        float | None, typer.Option(help="Show the events of the last SINCE seconds only.", min=0.0)
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most the newest LIMIT events.", min=1)] = 100,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on with new events, until interrupted; with --json a line each."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Show redirects, violations, plans, restarts and failures of a fleet, oldest first."""
    given = ("--since", str(since)) if since is not None else ()
    flags = ("--follow",) * follow + ("--json",) * json
    cluster.by_leader(wiring.fleet_files(fleet), "events", "--limit", str(limit), *given, *flags)
    found = wiring.recent_events(fleet, since_s=since, limit=limit)
    if json and not follow:
        print_json({"fleet": fleet, "events": found})
        return
    shown = print_json_line if json else _print
    for event in found:
        shown(event)
    while follow:
        time.sleep(_PERIOD_S)
        before, found = set(found), wiring.recent_events(fleet, since_s=since, limit=limit)
        for event in found:
            if event not in before:
                shown(event)


def _print(event: Event) -> None:
    at = datetime.fromtimestamp(event.at_s).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    print(f"{at}  {event.level:8}  {event.kind:8}  {event.subject}: {printable(event.reason)}", flush=True)

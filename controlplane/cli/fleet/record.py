"""`ctl events` and `ctl logs`: the history of a fleet, and what its servers have logged."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.output import print_json, print_json_line
from controlplane.domain.errors import InputError
from controlplane.report.words import printable

if TYPE_CHECKING:
    from controlplane.domain.observation import Event

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
    from controlplane.cli import cluster, wiring

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


def logs(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="The workload whose servers to read.",
            autocompletion=completers.workloads,
        ),
    ],
    fleet: options.Fleet = options.DEFAULT_FLEET,
    lines: Annotated[int, typer.Option(help="Show at most the newest LINES of each server.", min=1)] = 200,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines, until interrupted.")
    ] = False,
) -> None:
    """Show what the running servers of WORKLOAD have logged, shadows included, each line after its server."""
    from controlplane.cli import cluster, wiring
    from controlplane.files.mistakes import nearest

    given = ("--lines", str(lines), *(("--follow",) if follow else ()))
    cluster.by_leader(wiring.fleet_files(fleet), "logs", workload, *given)
    found, _ = wiring.existing_fleet(fleet)
    plan = found.files.plan()
    placed = () if plan is None else tuple(plan.placements())
    partitions = {partition.id for _, partition, one in placed if one.name == workload}
    if not partitions:
        near = nearest(workload, {one.name for _, _, one in placed})
        raise InputError(f"is no workload of fleet {fleet!r}{near}", field="WORKLOAD")
    shown: dict[str, int] = {}
    while True:
        for server in found.launcher.servers(fleet):
            if server.spec.labels.partition in partitions:
                read = found.launcher.log(server).splitlines()
                begin = shown.get(server.id, max(0, len(read) - lines))
                # One that was trimmed begins anew.
                for line in read[begin if begin <= len(read) else 0 :]:
                    print(f"{server.name}: {printable(line)}", flush=True)
                shown[server.id] = len(read)
        if not follow:
            return
        time.sleep(_PERIOD_S)

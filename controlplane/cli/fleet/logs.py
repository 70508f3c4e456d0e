"""`ctl logs`: what the servers of a workload have logged."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from controlplane.cli import cluster, completers, options, wiring
from controlplane.domain.errors import InputError
from controlplane.files.mistakes import nearest
from controlplane.report.words import printable

_PERIOD_S = 0.5


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

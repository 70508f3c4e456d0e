"""`ctl status`: the servers of a fleet and their latencies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from controlplane.cli import cluster, options, wiring
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import answer, print_json_line, warn
from controlplane.report.health import problems
from controlplane.report.tables.status_table import Status, status_document, status_view


def status(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Refresh every second, until interrupted; with --json one line each."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit code 1 if a workload is late or unserved, or no controller runs."),
    ] = False,
) -> None:
    """Show every server of a fleet: share, role, route, rate, P99 and SLO; and what its controller does."""
    options.refuse("is for one look, not for --watch", {"--check": check or None} if watch else {})
    flags = {"--json": json, "--watch": watch, "--check": check}
    cluster.by_leader(wiring.fleet_files(fleet), "status", *(flag for flag, given in flags.items() if given))
    look = wiring.status_source(fleet)
    if json and watch:
        print_looks(fleet, look)
    if watch:
        from rich.live import Live

        with Live(status_view(look()), auto_refresh=False) as live:
            while True:
                time.sleep(1.0)
                live.update(status_view(look()), refresh=True)
    seen = look()
    answer(status_document(fleet, seen), status_view(seen), json=json)
    if check and (found := problems(seen)):
        for problem in found:
            warn(problem)
        raise typer.Exit(EXIT_NO)


def print_looks(fleet: str, look: Callable[[], Status]) -> NoReturn:
    """Print a line of JSON each second, until interrupted."""
    while True:
        print_json_line(status_document(fleet, look()))
        time.sleep(1.0)

"""`ctl list`, `status`, `top`, `wait`, `events`, `logs`, `dashboard` and `report`: look, change nothing."""

from __future__ import annotations

import signal
import sys
import time
import webbrowser
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from controlplane.cli import completers, options
from controlplane.cli.endings import EXIT_NO, Terminated
from controlplane.cli.output import answer, print_json, print_json_line, say, warn
from controlplane.domain.errors import InputError
from controlplane.report.words import printable

if TYPE_CHECKING:
    from controlplane.domain.observation import Event
    from controlplane.report.tables.status_table import Status

_PERIOD_S = 0.5
_SHOWN_EVENTS = 100
_DAY_S = 86_400.0


def list_(json: options.Json = False) -> None:
    """List the fleets that were applied: launcher, gateway's ports, and when a plan was last applied."""
    from controlplane.files.fleets import FleetFiles, fleets, state_root

    rows, lines = [], []
    for name in fleets(state_root()):
        files = FleetFiles(state_root(), name)
        settings, at_s = files.settings(), files.planned_s()
        assert settings is not None, "`fleets` names those that have settings"
        listening = settings.endpoints
        ports = {"http": listening.http_port, "grpc": listening.grpc_port, "metrics": listening.metrics_port}
        about = {"fleet": name, "launcher": settings.launcher, "host": listening.host}
        rows.append({**about, **ports, "applied_s": at_s})
        spoken = " ".join(f"{protocol} {port}" for protocol, port in ports.items())
        applied = "never" if at_s is None else f"{datetime.fromtimestamp(at_s):%Y-%m-%d %H:%M:%S}"
        lines.append(f"{name}  {settings.launcher}  {listening.host} {spoken}  applied {applied}")
    answer({"fleets": rows}, "\n".join(lines) or "no fleet was applied: `ctl apply` makes one", json=json)


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
    from controlplane.cli import cluster, wiring
    from controlplane.report.tables.status_table import problems, status_document, status_view

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
    from controlplane.report.tables.status_table import status_document

    while True:
        print_json_line(status_document(fleet, look()))
        time.sleep(1.0)


def wait(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    timeout: Annotated[float, typer.Option(help="Give up after so many seconds.", min=0.0)] = 60.0,
    json: options.Json = False,
) -> None:
    """Wait until every workload has a running server, keeps its SLO, and a controller runs.

    Exit code 1: not within --timeout; the problems that are left are on stderr.
    """
    from controlplane.cli import wiring
    from controlplane.report.tables.status_table import problems

    look = wiring.status_source(fleet)
    begin = time.monotonic()
    while (found := problems(look())) and time.monotonic() - begin < timeout:
        time.sleep(_PERIOD_S)
    if json:
        print_json({"fleet": fleet, "problems": list(found)})
    for problem in found:
        warn(problem)
    if found:
        raise typer.Exit(EXIT_NO)


def top(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    window: Annotated[
        float, typer.Option(help="Show the figures of the last WINDOW seconds.", min=1.0, max=60.0)
    ] = 10.0,
    json: options.Json = False,
) -> None:
    """Watch a fleet's workloads, problems and events, and redirect workloads by key.

    Keys: arrows select a workload, s changes the order, r redirects, e hides the events, q quits.
    With --json, a line each second has what `ctl status` prints.
    """
    from controlplane.cli import wiring

    look = wiring.status_source(fleet, window_s=window)
    if json:
        print_looks(fleet, look)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("there is no terminal; --json prints a line each second", field="top")
    from controlplane.report.top import Look, Top, Watched
    from controlplane.runtime.fleet.fleet import redirect as redirected

    def seen() -> Look:
        return Look(look(), wiring.recent_events(fleet, since_s=None, limit=_SHOWN_EVENTS))

    def redirect(workload: str) -> str:
        found, settings = wiring.existing_fleet(fleet)
        routes = redirected(found, [workload], settings)
        return "\n".join(f"{name} -> {', '.join(r.members)}" for name, r in sorted(routes.items()))

    match Top(Watched(fleet, seen, redirect)).run():
        case signal.SIGINT:
            raise KeyboardInterrupt
        case signal.SIGTERM:
            raise Terminated


def events(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    since: Annotated[
        float | None, typer.Option(help="Show the events of the last SINCE seconds only.", min=0.0)
    ] = None,
    limit: Annotated[int, typer.Option(help="At most the newest LIMIT events.", min=1)] = 100,
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


def dashboard(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    host: Annotated[
        str, typer.Option(help="The page's address. Beyond loopback it needs the fleet's certificate.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The page's port.", min=1, max=65535)] = 8004,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    json: options.Json = False,
) -> None:
    """Serve a live page of a fleet, until interrupted.

    From another host: `ssh -L 8004:127.0.0.1:8004 HOST`, or --host; where the fleet requires tokens, the page
    asks for an operator's (in a browser as the password).
    """
    from controlplane.cli import wiring
    from controlplane.files.gateway import accepting
    from controlplane.runtime.dashboard import Listening, live_document, page_access, serve

    look = wiring.status_source(fleet)
    files = wiring.fleet_files(fleet)
    listening = Listening(host, port, page_access(files, host))

    def ready(address: str) -> None:
        if json:
            print_json_line({"fleet": fleet, "address": address})
        else:
            say(f"fleet {fleet}: {address}")
        if browser:
            webbrowser.open(address)

    accepting.run(serve(f"Fleet {fleet}", lambda: live_document(files, look), listening, ready))


def report(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The page (.html).", callback=options.writable("--output", ".html")
        ),
    ] = Path("fleet.html"),
    since: Annotated[
        float, typer.Option(help="Include the record and events of the last SINCE seconds.", min=0.0)
    ] = _DAY_S,
    json: options.Json = False,
) -> None:
    """Write a page of a fleet: its GPUs, P99s against SLOs, its record over time, and its events."""
    from controlplane.cli import wiring
    from controlplane.files.writing import write_text
    from controlplane.runtime.dashboard import fleet_report

    look = wiring.status_source(fleet)
    text = fleet_report(wiring.fleet_files(fleet), look, time.time() - since)
    write_text(output, text)
    if json:
        print_json({"fleet": fleet, "file": str(output)})
    else:
        say(f"{output}: written")

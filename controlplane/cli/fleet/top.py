"""`ctl top`: a fleet on the whole terminal."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from controlplane.cli import options, wiring
from controlplane.cli.endings import Terminated
from controlplane.cli.fleet.status import print_looks
from controlplane.domain.errors import InputError

_SHOWN_EVENTS = 100


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
    look = wiring.status_source(fleet, window_s=window)
    if json:
        print_looks(fleet, look)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("there is no terminal; --json prints a line each second", field="top")
    from controlplane.report.top.screen import Look, Top, Watched
    from controlplane.runtime.fleet.redirect import redirect as redirected

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

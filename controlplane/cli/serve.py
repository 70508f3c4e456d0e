"""`ctl serve`: the controller in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("serve")(serve)


def serve(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    once: Annotated[
        bool, typer.Option("--once", help="Look, repair what is broken, and end: for cron.")
    ] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Watch and say what would be done; change nothing.")
    ] = False,
    host: options.Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Health and Prometheus endpoint; 0: none.", min=0, max=65535)] = 0,
) -> None:
    """Guard the fleet: leave slow and dead servers for their shadows, start new ones, say what happened.

    One a fleet. Killed anywhere, the next one goes on. Events are JSON lines on stderr.
    """
    from controlplane.cli import wiring

    wiring.serve(fleet, once=once, plan_only=plan_only, host=host, port=port)

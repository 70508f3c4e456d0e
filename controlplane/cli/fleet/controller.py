"""`ctl controller`: the controller in the foreground."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.output import print_json_line, warn


def controller(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    once: Annotated[bool, typer.Option("--once", help="Repair what is broken, then exit; for cron.")] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Print what would be done; change nothing.")
    ] = False,
    host: Annotated[str, typer.Option(help="The address of /healthz and /metrics.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port of /healthz and /metrics; 0 switches them off.", min=0, max=65535)
    ] = 0,
    elected: Annotated[
        bool,
        typer.Option(
            "--elected",
            help="In a pod: apply the plan of the fleet's Fleet object, while this replica is the leader.",
        ),
    ] = False,
    repository: Annotated[
        Path | None,
        typer.Option(help="With --elected: the folder where the pod mounts the volume of TRISECT_MODELS."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the events on stdout, one JSON document a line.")
    ] = False,
) -> None:
    """Run the controller of a fleet: redirect from slow and dead servers to shadows, and replace them.

    A fleet has one controller; `ctl apply` starts it in the background. Events are JSON lines on stderr, or
    on stdout with --json.
    """
    from controlplane.cli import cluster, wiring

    show = print_json_line if json else lambda event: warn(dumps(event))
    options.refuse("is for --elected", {} if elected else {"--repository": repository})
    if elected:
        refused = {"--once": once or None, "--plan-only": plan_only or None}
        options.refuse("is not for --elected", refused)
        cluster.lead(fleet, show, repository or options.DEFAULT_REPOSITORY, host=host, port=port)
        return
    wiring.serve(fleet, show, once=once, plan_only=plan_only, host=host, port=port)

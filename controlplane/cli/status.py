"""`ctl status`: what runs, and how it does."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from controlplane.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("status")(status)


def status(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second.")] = False,
) -> None:
    """Every partition: its share and what holds it, role, route, rate, and P99 against the SLO."""
    from rich.live import Live

    from controlplane.cli import wiring
    from controlplane.files.documents import to_json
    from controlplane.report.plan_table import show
    from controlplane.report.status_table import status_document, status_table

    rows = wiring.status_source(fleet)
    if json:
        print(to_json(status_document(fleet, rows())), end="")
    elif watch:
        with Live(status_table(rows()), auto_refresh=False) as live:
            while True:
                time.sleep(1.0)
                live.update(status_table(rows()), refresh=True)
    else:
        show(status_table(rows()))

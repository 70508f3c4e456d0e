"""`ctl report`: a fleet as a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options, wiring
from controlplane.cli.output import print_json, say
from controlplane.files.writing import write_text

_DAY_S = 86_400.0


def report(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page (.html).", callback=options.page_file("--output"))
    ] = Path("fleet.html"),
    since: Annotated[
        float, typer.Option(help="Include the record and events of the last SINCE seconds.", min=0.0)
    ] = _DAY_S,
    json: options.Json = False,
) -> None:
    """Write a page of a fleet: its GPUs, P99s against SLOs, its record over time, and its events."""
    from controlplane.runtime.dashboard.look import fleet_report

    look = wiring.status_source(fleet)
    text = fleet_report(wiring.fleet_files(fleet), look, time.time() - since)
    write_text(output, text)
    if json:
        print_json({"fleet": fleet, "file": str(output)})
    else:
        say(f"{output}: written")

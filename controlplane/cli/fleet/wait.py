"""`ctl wait`: return once a fleet serves and keeps its promises."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from controlplane.cli import options, wiring
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import print_json, warn
from controlplane.report.health import problems

_PERIOD_S = 0.5


def wait(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    timeout: Annotated[float, typer.Option(help="Give up after so many seconds.", min=0.0)] = 60.0,
    json: options.Json = False,
) -> None:
    """Wait until every workload has a running server, keeps its SLO, and a controller runs.

    Exit code 1: not within --timeout; the problems that are left are on stderr.
    """
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

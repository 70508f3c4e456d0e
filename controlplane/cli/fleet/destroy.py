"""`ctl destroy`: end a fleet."""

from __future__ import annotations

import typer

from controlplane.cli import cluster, options, wiring
from controlplane.cli.output import answer
from controlplane.runtime.fleet import controller_process, events


def destroy(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Drain and stop all servers of a fleet, its gateway and its controller.

    The fleet's history is kept: `ctl events` shows it. A second `ctl destroy` does nothing.
    """
    kept = cluster.kept_fleet(wiring.fleet_files(fleet))
    found = None if kept is not None else wiring.fleet_to_end(fleet)
    if kept is None and found is None:
        before = f"nothing is left of it: it was destroyed before (`ctl events --fleet {fleet}`)"
        answer({"fleet": fleet, "destroyed": False}, f"fleet {fleet}: {before}", json=json)
        return
    if not yes and not options.agreed(f"Drain and stop fleet {fleet!r}?"):
        raise typer.Exit(0)
    if kept is not None:
        kept.destroy()
    elif found is not None:
        controller_process.stop(found.files)
        events.destroy(found)
    answer({"fleet": fleet, "destroyed": True}, f"fleet {fleet}: destroyed", json=json)

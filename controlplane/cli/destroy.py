"""`ctl destroy`: end a fleet."""

from __future__ import annotations

import typer

from controlplane.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("destroy")(destroy)


def destroy(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    yes: options.Yes = False,
) -> None:
    """Drain and stop everything that carries this fleet's labels, and nothing else.

    What happened to it stays to be read: `ctl events`.
    """
    from controlplane.cli import wiring
    from controlplane.files.fleets import FleetFiles, state_root
    from controlplane.runtime import happened, service

    if not yes and not options.agreed(f"Drain and stop fleet {fleet!r}?"):
        raise typer.Exit(0)
    # Servers carry their labels themselves, so a fleet whose files are lost can still be ended.
    known = FleetFiles(state_root(), fleet).exists()
    found = wiring.existing_fleet(fleet)[0] if known else wiring.unrecorded_fleet(fleet)
    service.stop(found.files)
    outcome = happened.destroy(found)
    print(f"fleet {fleet}: destroyed" if outcome.actions or known else "nothing to do")

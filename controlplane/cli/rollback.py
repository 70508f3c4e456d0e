"""`ctl rollback`: back to the plan before."""

from __future__ import annotations

import typer

from controlplane.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("rollback")(rollback)


def rollback(fleet: options.Fleet = options.DEFAULT_FLEET) -> None:
    """Converge onto the plan that ran before the present one."""
    from controlplane.cli import wiring

    found, _ = wiring.existing_fleet(fleet)
    outcome = found.rollback()
    print(f"fleet {fleet}: {len(outcome.servers)} servers" if outcome.actions else "nothing to do")

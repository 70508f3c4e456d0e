"""`ctl validate`: predicted against measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("validate")(validate)


def validate(
    catalogue: Annotated[str | None, typer.Option(help="A built-in device, like v100.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Measured pairs to predict (CSV).")] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile's points, each left out in turn.")] = None,
    json: options.Json = False,
) -> None:
    """How far each latency model is from measurements it has not seen.

    With --catalogue alone: the built-in measurements, whole batch sizes left out in turn.
    """
    from controlplane.files.documents import to_json
    from controlplane.report.plan_table import show
    from controlplane.report.validation_table import validation_table
    from controlplane.runtime.validation import validation

    found: dict[str, Any] = validation(catalogue, pairs, profile)
    if json:
        print(to_json(found), end="")
    else:
        show(validation_table(found))

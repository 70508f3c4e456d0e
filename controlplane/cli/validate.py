"""`ctl validate`: predicted against measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("validate")(validate)


def validate(
    catalogue: Annotated[str | None, typer.Option(help="A built-in device, like v100.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Measured pairs to predict (CSV).")] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile's points, each left out in turn.")] = None,
    fleet: Annotated[str | None, typer.Option(help="A running fleet, from its controller's record.")] = None,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    seconds: Annotated[
        float | None,
        typer.Option(help="Watch the fleet now for so long; else: what was recorded.", min=2, max=86400),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Let the next plan learn from what the fleet showed.")
    ] = False,
    json: options.Json = False,
) -> None:
    """How far the latency models are from measurements they have not seen.

    With --catalogue alone: the built-in measurements, whole batch sizes left out in turn. With --fleet: the
    executions of its servers beside what the plan's latency model says, and P99s beside the SLOs.
    """
    if fleet is not None:
        others = {"--catalogue": catalogue, "--pairs": pairs, "--profile": profile}
        options.refuse("does not go with --fleet", others)
        _running(fleet, profiles, seconds, calibrate=calibrate, json=json)
        return
    options.refuse("goes with --fleet only", {"--seconds": seconds, "--calibrate": calibrate or None})
    from controlplane.files.documents import to_json
    from controlplane.report.plan_table import show
    from controlplane.report.validation_table import validation_table
    from controlplane.runtime.jobs.validate import validation

    found = validation(catalogue, pairs, profile)
    if json:
        print(to_json(found), end="")
    else:
        show(validation_table(found))


def _running(fleet: str, profiles: Path, seconds: float | None, *, calibrate: bool, json: bool) -> None:
    from controlplane.cli import wiring
    from controlplane.files.documents import to_json
    from controlplane.report.observed_table import kept_table, observed_document, observed_table
    from controlplane.report.plan_table import show
    from controlplane.runtime.fleet.calibrate import learn, observe, recall

    found = wiring.existing_fleet(fleet)[0]
    if seconds is None:
        seen, unseen, kept = recall(found, profiles)
    else:
        (seen, unseen), kept = observe(found, profiles, seconds), []
    if json:
        print(to_json(observed_document(seen, unseen, kept)), end="")
    else:
        show(observed_table(seen, unseen))
        if kept:
            print()
            show(kept_table(kept))
    if calibrate:
        written = learn(profiles, seen)
        wiring.say(f"calibrated: {written}" if written else "nothing usable was seen; nothing is changed")

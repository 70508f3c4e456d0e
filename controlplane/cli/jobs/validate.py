"""`ctl validate`: predicted beside measured latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.output import answer, say


def validate(
    catalogue: Annotated[
        str | None,
        typer.Option(
            help="A device with built-in measurements, like v100.",
            autocompletion=completers.built_in_devices,
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="A profile's file; each point is predicted from the others.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="A CSV of models alone (model, percent, batch, ms) beside those of --profiles."),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            help="A running fleet: compare the record of its controller.", autocompletion=completers.fleets
        ),
    ] = None,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Watch the fleet for so many seconds instead of reading its record.", min=2, max=86400
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Correct the next plan's predictions by the fleet's measurements."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Compare the latency models' predictions with measurements on which they were not fitted.

    With --catalogue: each batch size predicted from the others. With --fleet: the execution times of
    its servers, and P99s beside SLOs. Of many models the ten worst are shown, all by --json.
    """
    from controlplane.report.tables.observed_table import validation_table
    from controlplane.runtime.jobs.validate import measured_alone, validation

    if fleet is not None:
        others = {"--catalogue": catalogue, "--profile": profile, "--measured": measured}
        options.refuse("cannot be combined with --fleet", others)
        _running(fleet, profiles, seconds, calibrate=calibrate, json=json)
        return
    options.refuse("needs --fleet", {"--seconds": seconds, "--calibrate": calibrate or None})
    if measured is None:
        found = validation(catalogue, profile)
    else:
        others = {"--catalogue": catalogue, "--profile": profile}
        options.refuse("cannot be combined with --measured", others)
        found = measured_alone(profiles, measured)
    answer(found, validation_table(found), json=json)


def _running(fleet: str, profiles: Path, seconds: float | None, *, calibrate: bool, json: bool) -> None:
    from rich.console import Group, RenderableType

    from controlplane.cli import wiring
    from controlplane.report.tables.observed_table import kept_table, observed_document, observed_table
    from controlplane.runtime.fleet.calibrate import learn, observe, recall

    found = wiring.existing_fleet(fleet)[0]
    if seconds is None:
        seen, unseen, kept = recall(found, profiles)
    else:
        (seen, unseen), kept = observe(found, profiles, seconds), []
    if calibrate:
        written = learn(profiles, seen)
        say(f"calibrated: {written}" if written else "no usable measurement; nothing is changed")
    table: RenderableType = observed_table(seen, unseen)
    if kept:
        table = Group(table, "", kept_table(kept))
    answer(observed_document(seen, unseen, kept), table, json=json)

"""`ctl profile`: measure models through real Tritons."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("profile")(profile)


def profile(
    models: Annotated[list[str] | None, typer.Argument(help="Models [all of the repository].")] = None,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    launcher: options.Launcher = None,
    device: Annotated[str, typer.Option(help="The device: cpu, or cpu-0 for a certain one.")] = "cpu",
    percents: Annotated[str | None, typer.Option(help="Shares, like 20,50,100 [11 points].")] = None,
    batches: Annotated[str | None, typer.Option(help="Batches, like 1,4,16 [11 points].")] = None,
    budget: Annotated[float, typer.Option(help="Seconds to aim at for each model.", min=5)] = 40.0,
    shape: Annotated[
        list[str] | None, typer.Option(help="A dynamic input's shape without the batch, like TOKENS:128.")
    ] = None,
    colocation: Annotated[
        float | None, typer.Option(help="Seconds to measure them beside each other too.", min=5)
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where an interrupted run stopped.")] = True,
) -> None:
    """Measure MODELS: one Triton per share, every batch on it back to back, means from Triton itself."""
    from controlplane.cli import wiring
    from controlplane.files.fleets import state_root
    from controlplane.profiler.session import Profiler, Wishes
    from controlplane.report.progress import Bar
    from controlplane.runtime.clock import SystemClock
    from controlplane.runtime.profiling import profile_models, profile_neighbours

    wishes = Wishes(
        percents=options.numbers(percents, "--percents", float),
        batches=options.numbers(batches, "--batches", int),
        budget_s=budget,
        shapes=options.shapes(shape or []),
    )
    place = wiring.place(device)
    with Bar() as bar:
        profiler = Profiler(
            wiring.launcher(launcher), SystemClock(), bar, profiles.resolve(), state_root() / "profiling"
        )
        for measured, path in profile_models(
            profiler, repository, models or [], place, wishes, resume=resume
        ):
            error = measured.holdout_error.get("igniter")
            told = "" if error is None else f", Eq 11 errs by {100 * error:.1f} % on points left out"
            print(f"{path}: {len(measured.points)} points{told}", flush=True)
        if colocation is not None:
            gained = profile_neighbours(profiler, repository, models or [], place, budget_s=colocation)
            for model, points in gained.items():
                print(f"{model}: {points} points beside others", flush=True)

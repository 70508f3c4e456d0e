"""`ctl profile`: measure models through real Tritons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import options
from controlplane.cli.model_inputs import model_inputs
from controlplane.domain.errors import EngineError, InputError

if TYPE_CHECKING:
    from controlplane.runtime.jobs.profile import Counters, Failed, Written


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
        list[str] | None,
        typer.Option(help="An open input's shape without the batch, like ocr:IMAGE:3,48,320."),
    ] = None,
    input_data: Annotated[
        list[str] | None,
        typer.Option(help="Real inputs, perf_analyzer's JSON, as MODEL:FILE [generated ones]."),
    ] = None,
    colocation: Annotated[
        float | None, typer.Option(help="Seconds to measure them beside each other too.", min=5)
    ] = None,
    nsys: Annotated[
        str | None,
        typer.Option(help="Nsight Systems' SQLite export of one model, like 8x200:FILE: 200 batches of 8."),
    ] = None,
    ncu: Annotated[
        list[str] | None, typer.Option(help="Nsight Compute's CSV of its batch 8 on the whole GPU: 8:FILE.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where an interrupted run stopped.")] = True,
) -> None:
    """Measure MODELS: one Triton per share, every batch on it back to back, means from Triton itself.

    Each profile's file is told once it is written; on a terminal, how far it is meanwhile. A model that
    cannot be measured is named with its server's words, the others go on, and the exit code is 4.
    """
    from controlplane.cli import wiring
    from controlplane.files.fleets import state_root
    from controlplane.profiler.session import Profiler
    from controlplane.profiler.subject import Wishes
    from controlplane.report.plan_table import counted
    from controlplane.report.progress import Bar
    from controlplane.runtime.clock import SystemClock
    from controlplane.runtime.jobs.profile import (
        Failed,
        profile_models,
        profile_neighbours,
        read_subjects,
        source_models,
    )

    counters = _counters(nsys, ncu or [], models or [])
    wishes = Wishes(
        percents=options.numbers(percents, "--percents", float),
        batches=options.numbers(batches, "--batches", int),
        budget_s=budget,
        inputs=model_inputs(shape or [], input_data or [], models or source_models(repository)),
    )
    place = wiring.place(device)
    subjects = read_subjects(repository, models or [], place, wishes)
    failed = set()
    with Bar() as bar:
        profiler = Profiler(
            wiring.launcher(launcher), SystemClock(), bar, profiles.resolve(), state_root() / "profiling"
        )
        for one in profile_models(profiler, subjects, place, resume=resume, told=counters):
            if isinstance(one, Failed):
                failed.add(one.model)
            _tell(one)
        measured = [subject for subject in subjects if subject.source.name not in failed]
        if colocation is not None and measured:
            gained = profile_neighbours(profiler, measured, place, budget_s=colocation)
            for path, points in gained.items():
                print(f"{path}: {counted(points, 'point')} beside others", flush=True)
    if failed:
        raise EngineError(
            f"{len(measured)} of {counted(len(subjects), 'model')} profiled; why not "
            f"{', '.join(sorted(failed))} is said above"
        )


def _tell(one: Written | Failed) -> None:
    """A model's line: its file on stdout, what is wrong with it on stderr."""
    from controlplane.cli.wiring import say
    from controlplane.report import profile_line
    from controlplane.runtime.jobs.profile import Failed

    if isinstance(one, Failed):
        if one.refused is not None:
            say(profile_line.refused_line(one.model, one.words, one.refused.file))
        else:
            say(profile_line.failed_line(one.model, one.words))
        return
    error = one.profile.holdout_error.get("igniter")
    print(profile_line.written_line(one.path, len(one.profile.points), one.seconds, error), flush=True)
    if one.spinning is not None:
        waste = one.spinning
        told = (waste.percent, waste.of_percent, waste.cost, waste.slowdown)
        say(profile_line.spinning_line(one.profile.model, *told))


def _counters(nsys: str | None, ncu: Sequence[str], models: Sequence[str]) -> Counters:
    """What the exports tell. Raises InputError for a file that is none, or a batch that is not said."""
    from controlplane.files import nsight
    from controlplane.runtime.jobs.profile import Counters

    if (nsys or ncu) and len(models) != 1:
        raise InputError("is of one model: name it", field="--nsys" if nsys else "--ncu")
    trace = None
    if nsys:
        told = re.fullmatch(r"([1-9]\d*)x([1-9]\d*):(.+)", nsys)
        if told is None:
            problem = f"{nsys!r} does not say what was traced: 8x200:FILE is 200 executions of batch 8"
            raise InputError(problem, field="--nsys")
        trace = nsight.read_trace(Path(told[3]), executions=int(told[2]), batch=int(told[1]))
    cache: dict[int, float] = {}
    for one in ncu:
        told = re.fullmatch(r"([1-9]\d*):(.+)", one)
        if told is None:
            raise InputError(f"{one!r} does not say which batch was profiled, like 8:FILE", field="--ncu")
        cache[int(told[1])] = nsight.read_cache_percent(Path(told[2]))
    return Counters(trace, cache)

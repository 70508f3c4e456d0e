"""`ctl profile`: measure models through real Tritons; `ctl import`: profiles from files of other tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from controlplane.cli import completers, options
from controlplane.cli.output import print_json, progress_bar, say, warn
from controlplane.domain.errors import EngineError, InputError
from controlplane.domain.profile import Tool
from controlplane.domain.tensors import parsed_dims
from controlplane.report.words import counted

if TYPE_CHECKING:
    from controlplane.profiler.requests import Inputs, Subject
    from controlplane.profiler.session import Place, Profiler
    from controlplane.runtime.jobs.profile import Failed, Written

Value = TypeVar("Value")


def model_inputs(
    shapes: Sequence[str], files: Sequence[str], models: Sequence[str], ranges: Sequence[str] = ()
) -> dict[str, Inputs]:
    """Return the given inputs by model.

    A shape or a range without a model's name is for all `models`. Raises InputError naming the option.
    """
    from controlplane.profiler.requests import Inputs

    shape_of = _by_input(shapes, models, _dims)
    range_of = _by_input(ranges, models, _between)
    file_of = _files(files)
    return {
        model: Inputs(shape_of.get(model, {}), file_of.get(model), range_of.get(model, {}))
        for model in shape_of | file_of | range_of
    }


def _by_input(
    given: Sequence[str], models: Sequence[str], parse: Callable[[str, str], Value]
) -> dict[str, dict[str, Value]]:
    """Return MODEL:INPUT:VALUES by model and input."""
    found: dict[str, dict[str, Value]] = {}
    for text in given:
        name, _, values = text.rpartition(":")
        # An input's name may contain a colon, a model's name cannot.
        model, colon, tensor = name.partition(":")
        of_one = bool(colon) and model in models
        for each in (model,) if of_one else models:
            found.setdefault(each, {})[tensor if of_one else name] = parse(text, values if name else "")
    return found


def _dims(text: str, values: str) -> tuple[int, ...]:
    dims = parsed_dims(values)
    if dims is None:
        raise InputError(f"{text!r} is not MODEL:INPUT:DIM,DIM with dimensions above 0", field="--shape")
    return dims


def _between(text: str, values: str) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in values.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not -float("inf") < low <= high < float("inf"):
        problem = f"{text!r} is not MODEL:INPUT:LOW,HIGH with two numbers, the smaller one first"
        raise InputError(problem, field="--range")
    return low, high


def _files(given: Sequence[str]) -> dict[str, Path]:
    file_of: dict[str, Path] = {}
    for text in given:
        model, colon, file = text.partition(":")
        if not colon or not model or not file:
            raise InputError(f"{text!r} is not MODEL:FILE", field="--input-data")
        if model in file_of:
            raise InputError(f"{model!r} has two files; a model is measured with one", field="--input-data")
        file_of[model] = Path(file)
    return file_of


_Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODELS",
        help="The models to measure [all of the repository].",
        autocompletion=completers.models,
    ),
]
_Device = Annotated[
    str, typer.Option(help="The device: cpu or a GPU type like v100; cpu-1 or a GPU's UUID for one of them.")
]
_Budget = Annotated[float, typer.Option(help="The measuring time of a model in seconds, roughly.", min=5)]
_Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="MODEL:INPUT:DIMS for an input of variable shape, without the batch: ocr:IMAGE:3,48,320."
    ),
]
_Range = Annotated[
    list[str] | None,
    typer.Option(
        "--range", help="MODEL:INPUT:LOW,HIGH for an input's generated values [noise, or ones for integers]."
    ),
]
_InputData = Annotated[
    list[str] | None, typer.Option(help="MODEL:FILE: real inputs in perf_analyzer's JSON [generated inputs].")
]
_Colocation = Annotated[
    float | None,
    typer.Option(help="Measure pairs of the models on one device too, for so many seconds.", min=5),
]


def profile(
    models: _Models = None,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    launcher: options.Launcher = None,
    device: _Device = "cpu",
    budget: _Budget = 40.0,
    shape: _Shape = None,
    value_range: _Range = None,
    input_data: _InputData = None,
    colocation: _Colocation = None,
    given: options.SetProfile = None,
    json: options.Json = False,
) -> None:
    """Measure the execution times of MODELS at several shares and batches, on real Tritons.

    If a model cannot be measured, the others are, and the exit code is 4.
    """
    from controlplane.cli import launcher_registry, wiring
    from controlplane.domain.settings import ProfileSettings
    from controlplane.files.fleets import state_root
    from controlplane.files.set_values import with_values
    from controlplane.profiler.requests import Wishes
    from controlplane.profiler.session import START_S, Profiler
    from controlplane.render.source import all_models
    from controlplane.runtime import SystemClock
    from controlplane.runtime.jobs.profile import describe_device, profile_neighbours, readable_subjects

    options.of_this_host(launcher)
    settings, wanted = with_values(ProfileSettings(), given or []), models or all_models(repository)
    inputs = model_inputs(shape or [], input_data or [], wanted, value_range or [])
    wishes = Wishes(settings.percents, settings.batches, budget, inputs)
    place, folder = wiring.place(device), profiles.resolve()
    described = describe_device(folder, place.device.name, wiring.driver_limits(place))
    if described is not None:
        say(f"{place.device.name} is in no catalogue: its memory, power and clocks are in {described}")
    started_by = launcher_registry.launcher(launcher)
    own, load_s = settings.options, settings.load_timeout_s
    completer = wiring.completer(started_by, own, load_s)
    subjects, unreadable = readable_subjects(repository, wanted, place, wishes, completer)
    failed = {one.model: one for one in unreadable}
    with progress_bar() as bar:
        scratch = state_root() / "profiling"
        profiler = Profiler(started_by, SystemClock(), bar, folder, scratch, own, load_s or START_S)
        measured = _measure(profiler, subjects, place, failed, resume=settings.resume, json=json)
        beside = [subject for subject in subjects if subject.source.name not in failed]
        gained: Mapping[Path, int] = {}
        if colocation is not None and beside:
            gained = profile_neighbours(profiler, beside, place, budget_s=colocation)
        if not json:
            for path, points in gained.items():
                _print_line(f"{path}: {counted(points, 'point')} beside other models")
    if json and not failed:
        print_json({"profiles": [written_document(one, gained.get(one.path, 0)) for one in measured]})
    if failed:
        raise EngineError(
            f"{len(wanted) - len(failed)} of {counted(len(wanted), 'model')} profiled; the reasons for "
            f"{', '.join(sorted(failed))} are above"
        )


def _measure(
    profiler: Profiler,
    subjects: Sequence[Subject],
    place: Place,
    failed: dict[str, Failed],
    *,
    resume: bool,
    json: bool,
) -> list[Written]:
    """Measure each model, print its file, and add those that failed to `failed`."""
    from controlplane.render.config import instances_note
    from controlplane.runtime.jobs.profile import Failed, profile_models

    for subject in subjects:
        note = instances_note(subject.source.config, on_gpu=place.core is None)
        if note:
            say(f"{subject.source.name}: {note}")
    for one_failed in failed.values():
        _print(one_failed, say)
    written: list[Written] = []
    for one in profile_models(profiler, subjects, place, resume=resume):
        if isinstance(one, Failed):
            failed[one.model] = one
        else:
            written.append(one)
        _print(one, say if json else _print_line)
    return written


def _print_line(line: str) -> None:
    print(line, flush=True)


def written_document(one: Written, beside: int) -> dict[str, object]:
    """Return a profile that was written as JSON; `beside` counts its points beside other models."""
    from controlplane.latency.registry import DEFAULT

    return {
        "model": one.profile.model,
        "file": str(one.path),
        "points": len(one.profile.points),
        "points_missing": one.missing,
        "points_beside_others": beside,
        "seconds": one.seconds,
        "holdout_error": one.profile.holdout_error.get(DEFAULT),
    }


def _print(one: Written | Failed, result: Callable[[str], None]) -> None:
    """Print a model's file with `result`, and its problem on stderr."""
    from controlplane.runtime.jobs.profile import Failed, error_words

    if isinstance(one, Failed):
        warn(f"{one.model}: not profiled: {_refusal(one)}")
        return
    profile, model = one.profile, one.profile.model
    points = counted(len(profile.points), "point")
    result(f"{one.path}: {points} written after {one.seconds:.0f} s{error_words(profile)}")
    if one.missing:
        warn(
            f"warning: {model}: {counted(one.missing, 'point')} failed: {one.reason}; plans use what was "
            "measured, and the same command measures the rest"
        )
    if one.left_out:
        say(
            f"{model}: too slow for {counted(one.left_out, 'more point')} within the budget: a larger "
            "--budget, or --set percents=... and batches=..., measures more"
        )
    for point in one.disagreeing:
        warn(
            f"warning: {model}: a batch of {point.batch} at {point.percent:g} % took "
            f"{point.measured_ms:.3g} ms, where the other points say {point.expected_ms:.3g} ms: other work "
            "may have disturbed it; "
            "--set resume=false measures the model again"
        )
    if (times := profile.answers) is not None:
        result(f"{model}: first answer after {times.first_ms:.1f} ms, last after {times.last_ms:.1f} ms")
    if (waste := one.spinning) is not None:
        warn(
            f"{model}: its threads waste its CPU quota: at {waste.percent:g} % an inference takes "
            f"{waste.cost:.1f} times the processor time that it takes at {waste.of_percent:g} %, and up to "
            f"{waste.slowdown:.1f} times as long, where {waste.of_percent / waste.percent:.1f} times is to "
            "be expected; set intra_op_num_threads to 1 and session.intra_op.allow_spinning to 0 "
            "(onnxruntime), or OMP_NUM_THREADS=1, and profile it again"
        )


def _refusal(one: Failed) -> str:
    """Return why a model was not profiled, with the way out where its server refused a generated input."""
    if one.refused is None:
        return one.words
    if one.refused.file is not None:
        return f"its server refused an input of {one.refused.file}: {one.words}"
    return (
        f"its server refused a generated input: {one.words}; give inputs that it takes: --input-data "
        f"{one.model}:FILE (perf_analyzer's JSON)"
    )


def import_(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that was measured.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="What the tool wrote, after its batch: 8:FILE; for nsys 8x200:FILE, with the number of "
            "executions; for model-analyzer the file alone.",
        ),
    ],
    tool: Annotated[Tool, typer.Option("--from", help="The tool.")],
    device: Annotated[str, typer.Option(help="The GPU type, like v100, or cpu.")],
    at: Annotated[
        float,
        typer.Option(help="The share of the device in percent, for times of batches.", min=1.0, max=100.0),
    ] = 100.0,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    json: options.Json = False,
) -> None:
    """Make or extend the profile of MODEL from files of a tool that measured one request at a time.

    Times: perf_analyzer -f, Model Analyzer's metrics-model-inference.csv, AIPerf's
    profile_export_aiperf.json. Counters join a profile that is there: Nsight Systems' SQLite export, Nsight
    Compute's CSV.
    """
    from controlplane.files.measurements.profiles import write_profile
    from controlplane.runtime.jobs.elsewhere import imported
    from controlplane.runtime.jobs.profile import Written

    folder = profiles.resolve()
    one, notes = imported(tool, files, model=model, device=device, percent=at, profiles=folder)
    written = Written(one, write_profile(folder, one), 0.0)
    if json:
        print_json({"profiles": [written_document(written, 0)]})
    else:
        print(f"{written.path}: {counted(len(one.points), 'point')} with what {tool} measured")
    for line in notes:
        say(f"warning: {line}")

"""Measurement of models, one after another, into profile files with fits and the errors of the fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.domain.device import Device, DeviceLimits, ShareKind
from controlplane.domain.errors import (
    EngineError,
    FleetBusy,
    InputError,
    MissingTool,
    NotNow,
    RequestRefused,
)
from controlplane.domain.profile import Counters, Profile, RequestSet
from controlplane.files import catalogue
from controlplane.files.measurements.profiles import (
    profile_path,
    read_profile,
    read_profiles,
    write_device,
    write_profile,
)
from controlplane.files.mistakes import nearest
from controlplane.files.models import read_sample_shapes, write_sample_shapes
from controlplane.latency.evaluate import Disagreeing, assessed, disagreeing
from controlplane.latency.registry import DEFAULT, recorder
from controlplane.profiler.colocate import Neighbourhood, merged
from controlplane.profiler.findings import Spinning, spinning, with_repeats
from controlplane.profiler.requests import Subject, Wishes, read_subject
from controlplane.profiler.session import Place, Profiler
from controlplane.render import source
from controlplane.render.config import input_specs
from controlplane.render.source import with_composing
from controlplane.runtime.devices import known_device
from controlplane.runtime.jobs.completing import Completer, not_completed

NO_COUNTERS = Counters()


@dataclass(frozen=True, slots=True)
class Written:
    """A new profile, its file, its measuring time, and the quota that its idle threads waste.

    `missing`: how many points failed, for `reason`; `left_out`: how many the model is too slow for.
    `disagreeing`: the points that the others contradict.
    """

    profile: Profile
    path: Path
    seconds: float
    spinning: Spinning | None = None
    missing: int = 0
    reason: str = ""
    left_out: int = 0
    disagreeing: tuple[Disagreeing, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A model that could not be measured: the server's message, and the requests if it refused one."""

    model: str
    words: str
    refused: RequestSet | None = None


def read_subjects(
    repository: Path, models: Sequence[str], place: Place, wishes: Wishes
) -> tuple[Subject, ...]:
    """Read and check the models to measure before a server starts; without `models`, all.

    Raises InputError for a model that is missing or cannot be measured with these options, and for inputs of
    a model that is not measured.
    """
    wanted = _wanted(repository, models, wishes)
    return tuple(read_subject(repository, model, place.device, wishes) for model in wanted)


def readable_subjects(
    repository: Path, models: Sequence[str], place: Place, wishes: Wishes, completer: Completer
) -> tuple[tuple[Subject, ...], tuple[Failed, ...]]:
    """Complete and read the models to measure; return those that can be, and why the others cannot.

    Raises InputError as `read_subjects` where none can be measured, for a name that is no model, and for a
    mistake in inputs that the user gave.
    """
    wanted = _wanted(repository, models, wishes)
    refused: dict[str, InputError] = {}
    executed: dict[str, tuple[str, ...]] = {}
    for model in wanted:
        try:
            executed[model] = with_composing(repository, [model])
        except InputError as error:
            refused[model] = error
    said = completer.complete(repository, sorted({name for names in executed.values() for name in names}))
    subjects = []
    for model, names in executed.items():
        try:
            for name in said.keys() & names:  # it executes one that Triton does not load
                raise not_completed(repository, name, said[name])
            subjects.append(read_subject(repository, model, place.device, wishes))
        except InputError as error:
            refused[model] = error
    for model, problem in refused.items():
        if not subjects or model in wishes.inputs:
            raise problem
    return tuple(subjects), tuple(Failed(model, str(problem)) for model, problem in refused.items())


def _wanted(repository: Path, models: Sequence[str], wishes: Wishes) -> tuple[str, ...]:
    """Return the models to measure. Raises InputError for what is none, and for inputs of another one."""
    wanted = tuple(dict.fromkeys(models or source.all_models(repository)))
    for model in wanted:
        if not (repository / model).is_dir():
            known = source.source_models(repository)
            raise InputError(f"is not a model of {repository}{nearest(model, known)}", field=model)
    for model in wishes.inputs:
        if model not in wanted:
            raise InputError(
                f"has inputs, but is not among the models to measure{nearest(model, wanted)}", field=model
            )
    return wanted


def profile_models(
    profiler: Profiler,
    subjects: Sequence[Subject],
    place: Place,
    *,
    resume: bool,
) -> Iterator[Written | Failed]:
    """Measure, fit and write each model; yield each result at once. A failed model does not stop the others.

    Raises EngineError for what affects every model: a missing program, a full disk, a device in use.
    A model that has a profile is measured again: both sessions' times of a point show how well they repeat.
    Raises InputError, before anything is measured, for an earlier profile that cannot be read.
    """
    earlier = {}
    for subject in subjects:
        path = profile_path(profiler.profiles, place.device.name, subject.source.name)
        if path.exists():
            earlier[subject.source.name] = read_profile(path)
    for subject in subjects:
        began_s = profiler.clock.monotonic()
        try:
            measured = profiler.measure(subject, place, resume=resume)
        except (FleetBusy, MissingTool, NotNow):
            raise
        except RequestRefused as error:
            yield Failed(subject.source.name, str(error), subject.inputs)
            continue
        except EngineError as error:
            yield Failed(subject.source.name, str(error))
            continue
        repeated = with_repeats(measured.profile, earlier.get(subject.source.name))
        device = known_device(place.device.name, profiler.profiles)
        fitted = with_fits(repeated, device=device)
        path = write_profile(profiler.profiles, fitted, finished=not measured.missing)
        _keep_shapes(subject)
        missing = len(measured.missing)
        yield Written(
            fitted,
            path,
            profiler.clock.monotonic() - began_s,
            spinning(fitted),
            missing,
            measured.reason,
            max(0, len(subject.points) - len(fitted.points) - missing),
            disagreeing(fitted),
        )


def _keep_shapes(subject: Subject) -> None:
    """Keep the shapes of variable inputs: the test inferences of the model's servers have them too."""
    folder, config = Path(subject.source.directory), subject.source.config
    variable = {spec.name for spec in input_specs(config) if spec.is_open}
    leading = 1 if config.max_batch_size > 0 else 0
    first = subject.traffic.requests[0].inputs
    shapes = {given.name: tuple(given.shape[leading:]) for given in first if given.name in variable}
    if shapes and not config.model_warmup and shapes != read_sample_shapes(folder):
        write_sample_shapes(folder, shapes)


def profile_neighbours(
    profiler: Profiler, subjects: Sequence[Subject], place: Place, *, budget_s: float
) -> dict[Path, int]:
    """Measure models beside each other, pairs before triples, and add the points to their profiles.

    Returns the number of new points by profile file. Raises InputError for a model without a profile.
    """
    known = read_profiles(profiler.profiles, place.device.name)
    for subject in subjects:
        if subject.source.name not in known:
            raise InputError("has no profile yet: measure it alone first", field=subject.source.name)
    found = Neighbourhood(profiler, place).measure(subjects, budget_s=budget_s)
    device = known_device(place.device.name, profiler.profiles)
    for model, points in found.items():
        joined = replace(known[model], colocation=merged(known[model].colocation, points))
        known[model] = with_fits(joined, device=device)
    if catalogue.device(device.name) is None and device.share_kind is ShareKind.MPS_PERCENT:
        device, known = recorder().with_interference(device, known)
        write_device(profiler.profiles, device)
    return {write_profile(profiler.profiles, known[model]): len(points) for model, points in found.items()}


def describe_device(profiles: Path, name: str, limits: DeviceLimits | None) -> Path | None:
    """Write what a GPU's driver says of it to its device file, beside what was fitted before.

    Returns the file; None for a type of the catalogue, and where there is no driver.
    """
    if limits is None or catalogue.device(name) is not None:
        return None
    return write_device(profiles, recorder().described(known_device(name, profiles), limits))


def error_words(profile: Profile) -> str:
    """Return how far the default model's fit is off on points that it leaves out; empty where unknown."""
    error = profile.holdout_error.get(DEFAULT)
    return "" if error is None else f"; points left out of the fit are missed by {100 * error:.1f} % (mean)"


def with_fits(profile: Profile, counters: Counters = NO_COUNTERS, device: Device | None = None) -> Profile:
    """Return the profile with the fits of iGniter's and the default model, and their holdout errors.

    `device` is the profile's, by default as the catalogue knows it.
    """
    device = device or known_device(profile.device)
    counted = catalogue.device(device.name) is not None
    return recorder().with_fits(assessed(profile), counters, device, counted=counted)

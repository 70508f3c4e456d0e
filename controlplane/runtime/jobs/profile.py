"""Measurement of models, one after another, into profile files with fits and the errors of the fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from controlplane.domain.errors import (
    EngineError,
    FleetBusy,
    InputError,
    MissingTool,
    NotNow,
    RequestRefused,
)
from controlplane.domain.profile import KernelTrace, Profile, RequestSet
from controlplane.files.documents import nearest
from controlplane.files.measurements.profiles import profile_path, read_profile, read_profiles, write_profile
from controlplane.latency.models import counters as coefficients
from controlplane.latency.models import crossval, igniter, igniter_refit
from controlplane.profiler.colocate import Neighbourhood
from controlplane.profiler.neighbours import merged
from controlplane.profiler.repeats import with_repeats
from controlplane.profiler.session import Place, Profiler
from controlplane.profiler.spinning import Spinning, spinning
from controlplane.profiler.subject import Subject, Wishes, read_subject
from controlplane.render import source
from controlplane.runtime.devices import known_device


@dataclass(frozen=True, slots=True)
class Counters:
    """Measurements by NVIDIA's profilers: a model's kernels, and its use of the L2 cache (%) by batch."""

    trace: KernelTrace | None = None
    cache_percent: Mapping[int, float] = field(default_factory=dict)


NO_COUNTERS = Counters()


@dataclass(frozen=True, slots=True)
class Written:
    """A new profile, its file, its measuring time, and the quota that its idle threads waste."""

    profile: Profile
    path: Path
    seconds: float
    spinning: Spinning | None = None


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
    return tuple(read_subject(repository, model, place.device, wishes) for model in wanted)


def profile_models(
    profiler: Profiler,
    subjects: Sequence[Subject],
    place: Place,
    *,
    resume: bool,
    counters: Counters = NO_COUNTERS,
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
        fitted = with_fits(with_repeats(measured, earlier.get(subject.source.name)), counters)
        path = write_profile(profiler.profiles, fitted)
        yield Written(fitted, path, profiler.clock.monotonic() - began_s, spinning(fitted))


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
    gained = {}
    for model, points in found.items():
        profile = replace(known[model], colocation=merged(known[model].colocation, points))
        gained[write_profile(profiler.profiles, with_fits(profile))] = len(points)
    return gained


def with_fits(profile: Profile, counters: Counters = NO_COUNTERS) -> Profile:
    """Return the profile with the fits of iGniter's and the default model, and their holdout errors.

    iGniter's fit holds Eq 11 and the figures of the GPU's counters, earlier ones included. Points at one
    share, or too few of them, give no Eq 11.
    """
    assessed = crossval.assess(profile)
    if len(profile.points) < igniter.FEWEST_POINTS or profile.only_percent is not None:
        return assessed
    known = dict(profile.fits.get(igniter.NAME, {}))
    if counters.trace is not None:
        known |= coefficients.of_trace(counters.trace)
    counted = replace(profile, fits={**profile.fits, igniter.NAME: known})
    curve = igniter_refit.active_curve(counted, igniter.Hardware.of(known_device(profile.device)))
    known |= curve.coefficients
    known |= coefficients.of_power(profile, curve.coefficients)
    known |= coefficients.of_cache(counters.cache_percent, curve.coefficients)
    return replace(
        assessed,
        fits={**assessed.fits, igniter.NAME: known},
        holdout_error={**assessed.holdout_error, igniter.NAME: curve.holdout_error},
    )

"""Measures models one after another and writes their profiles, fits and the fits' errors with them."""

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
from controlplane.files.profiles import read_profiles, write_profile
from controlplane.latency import counters, crossval, igniter, igniter_refit
from controlplane.profiler.colocate import Neighbourhood
from controlplane.profiler.neighbours import merged
from controlplane.profiler.session import Place, Profiler
from controlplane.profiler.spinning import Spinning, spinning
from controlplane.profiler.subject import Subject, Wishes, read_subject
from controlplane.render import source
from controlplane.runtime.devices import known_device


@dataclass(frozen=True, slots=True)
class Counters:
    """What NVIDIA's profilers told of a model: its kernels, and its use of the L2 cache (%) by batch."""

    trace: KernelTrace | None = None
    cache_percent: Mapping[int, float] = field(default_factory=dict)


NO_COUNTERS = Counters()


@dataclass(frozen=True, slots=True)
class Written:
    """A profile that was measured within so many seconds, its file, and what its threads waste."""

    profile: Profile
    path: Path
    seconds: float
    spinning: Spinning | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A model that was not measured: the server's words, and the requests where it refused one."""

    model: str
    words: str
    refused: RequestSet | None = None


def source_models(repository: Path) -> list[str]:
    """The models of a repository: folders with a config.pbtxt. Raises InputError where there is none."""
    found = list(source.source_models(repository))
    if not found:
        others = ", ".join(sorted(p.name for p in repository.iterdir() if p.is_dir()))
        bare = f"; folders without one: {others}" if others else ""
        raise InputError(f"has no model (a folder with a config.pbtxt){bare}", file=str(repository))
    return found


def read_subjects(
    repository: Path, models: Sequence[str], place: Place, wishes: Wishes
) -> tuple[Subject, ...]:
    """Read and check every model that is to be measured (with none named, all), before a server starts.

    Raises InputError for a model that is not there or cannot be measured as asked, and for inputs of a model
    that is not measured.
    """
    wanted = tuple(dict.fromkeys(models or source_models(repository)))
    for model in wanted:
        if not (repository / model).is_dir():
            known = source.source_models(repository)
            raise InputError(f"is no model of {repository}{nearest(model, known)}", field=model)
    for model in wishes.inputs:
        if model not in wanted:
            raise InputError(
                f"inputs are given for it, and it is not measured{nearest(model, wanted)}", field=model
            )
    return tuple(read_subject(repository, model, place.device, wishes) for model in wanted)


def profile_models(
    profiler: Profiler,
    subjects: Sequence[Subject],
    place: Place,
    *,
    resume: bool,
    told: Counters = NO_COUNTERS,
) -> Iterator[Written | Failed]:
    """Measure, fit and write each model, yielding it once it is written; one that fails holds up no other.

    Raises EngineError for what would hit every model: a missing program, a full disk, a device in use.
    """
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
        fitted = with_fits(measured, told)
        path = write_profile(profiler.profiles, fitted)
        yield Written(fitted, path, profiler.clock.monotonic() - began_s, spinning(fitted))


def profile_neighbours(
    profiler: Profiler, subjects: Sequence[Subject], place: Place, *, budget_s: float
) -> dict[Path, int]:
    """Measure models beside each other, pairs before triples, and add the points to their profiles.

    Returns how many points each profile's file gained. Raises InputError for a model without a profile.
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


def with_fits(profile: Profile, told: Counters = NO_COUNTERS) -> Profile:
    """The profile with iGniter's model and the default one fitted, and their errors on points left out.

    Of iGniter's: Eq 11, and what the GPU's counters say, those told before included.
    """
    assessed = crossval.assess(profile)
    if len(profile.points) < igniter.FEWEST_POINTS:
        return assessed
    known = dict(profile.fits.get(igniter.NAME, {}))
    if told.trace is not None:
        known |= counters.of_trace(told.trace)
    counted = replace(profile, fits={**profile.fits, igniter.NAME: known})
    curve = igniter_refit.active_curve(counted, igniter.Hardware.of(known_device(profile.device)))
    known |= curve.coefficients
    known |= counters.of_power(profile, curve.coefficients)
    known |= counters.of_cache(told.cache_percent, curve.coefficients)
    return replace(
        assessed,
        fits={**assessed.fits, igniter.NAME: known},
        holdout_error={**assessed.holdout_error, igniter.NAME: curve.holdout_error},
    )

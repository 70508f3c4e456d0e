"""Measures models one after another and writes their profiles, fits and the fits' errors with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.profile import KernelTrace, Profile
from controlplane.files.documents import nearest
from controlplane.files.profiles import read_profiles, write_profile
from controlplane.latency import counters, crossval, igniter, igniter_refit
from controlplane.profiler.colocate import Neighbourhood
from controlplane.profiler.neighbours import merged
from controlplane.profiler.requests import Shapes
from controlplane.profiler.session import Place, Profiler, Wishes
from controlplane.runtime.devices import known_device


@dataclass(frozen=True, slots=True)
class Counters:
    """What NVIDIA's profilers told of a model: its kernels, and its use of the L2 cache (%) by batch."""

    trace: KernelTrace | None = None
    cache_percent: Mapping[int, float] = field(default_factory=dict)


NO_COUNTERS = Counters()


@dataclass(frozen=True, slots=True)
class Written:
    """A profile that was measured within so many seconds, and its file."""

    profile: Profile
    path: Path
    seconds: float


def source_models(repository: Path) -> list[str]:
    """The models of a repository: folders with a config.pbtxt. Raises InputError where there is none."""
    found = sorted(p.parent.name for p in repository.glob("*/config.pbtxt")) if repository.is_dir() else []
    if not found:
        raise InputError("has no model (a folder with a config.pbtxt)", file=str(repository))
    return found


def profile_models(
    profiler: Profiler,
    repository: Path,
    models: Sequence[str],
    place: Place,
    wishes: Wishes,
    *,
    resume: bool,
    told: Counters = NO_COUNTERS,
) -> Iterator[Written]:
    """Measure, fit and write each model (with none named, all), yielding it once it is written.

    Raises InputError for a model that is not there, EngineError where a server fails.
    """
    known = source_models(repository)
    for model in models or known:
        if model not in known:
            raise InputError(f"is no model of {repository}{nearest(model, known)}", field=model)
    for model in models or known:
        began_s = profiler.clock.monotonic()
        measured = profiler.measure(repository, model, place, wishes, resume=resume)
        fitted = with_fits(measured, told)
        path = write_profile(profiler.profiles, fitted)
        yield Written(fitted, path, profiler.clock.monotonic() - began_s)


def profile_neighbours(
    profiler: Profiler,
    repository: Path,
    models: Sequence[str],
    place: Place,
    *,
    budget_s: float,
    shapes: Shapes,
) -> dict[Path, int]:
    """Measure models beside each other, pairs before triples, and add the points to their profiles.

    Returns how many points each profile's file gained. Raises InputError for a model without a profile.
    """
    chosen = list(models) or source_models(repository)
    known = read_profiles(profiler.profiles, place.device.name)
    for model in chosen:
        if model not in known:
            raise InputError("has no profile yet: measure it alone first", field=model)
    beside = Neighbourhood(profiler, repository, place)
    found = beside.measure(chosen, budget_s=budget_s, shapes=dict.fromkeys(chosen, shapes))
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

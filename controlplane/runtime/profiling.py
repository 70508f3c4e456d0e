"""Measures models one after another and writes their profiles, fits and the fits' errors with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile
from controlplane.files.documents import nearest
from controlplane.files.profiles import read_profiles, write_profile
from controlplane.latency import crossval, igniter
from controlplane.profiler.colocate import Neighbourhood
from controlplane.profiler.neighbours import merged
from controlplane.profiler.session import Place, Profiler, Wishes


def source_models(repository: Path) -> list[str]:
    """The models of a repository: folders with a config.pbtxt. Raises InputError where there is none."""
    found = sorted(p.parent.name for p in repository.glob("*/config.pbtxt")) if repository.is_dir() else []
    if not found:
        raise InputError("has no model (a folder with a config.pbtxt)", file=str(repository))
    return found


def profile_models(
    profiler: Profiler, repository: Path, models: Sequence[str], place: Place, wishes: Wishes, *, resume: bool
) -> Iterator[tuple[Profile, Path]]:
    """Measure, fit and write each model (with none named, all), yielding it with its file.

    Raises InputError for a model that is not there, EngineError where a server fails.
    """
    known = source_models(repository)
    for model in models or known:
        if model not in known:
            raise InputError(f"is no model of {repository}{nearest(model, known)}", field=model)
    for model in models or known:
        measured = profiler.measure(repository, model, place, wishes, resume=resume)
        fitted = with_fits(measured)
        yield fitted, write_profile(profiler.profiles, fitted)


def profile_neighbours(
    profiler: Profiler, repository: Path, models: Sequence[str], place: Place, *, budget_s: float
) -> dict[str, int]:
    """Measure models beside each other, pairs before triples, and add the points to their profiles.

    Returns how many points each profile gained. Raises InputError for a model without a profile.
    """
    chosen = list(models) or source_models(repository)
    known = read_profiles(profiler.profiles, place.device.name)
    for model in chosen:
        if model not in known:
            raise InputError("has no profile yet: measure it alone first", field=model)
    found = Neighbourhood(profiler, repository, place).measure(chosen, budget_s=budget_s)
    for model, points in found.items():
        profile = known[model]
        write_profile(
            profiler.profiles,
            with_fits(replace(profile, colocation=merged(profile.colocation, points))),
        )
    return {model: len(points) for model, points in found.items()}


def with_fits(profile: Profile) -> Profile:
    """The profile with iGniter's Eq 11 and the default model fitted, and their errors on points left out."""
    assessed = crossval.assess(profile)
    if len(profile.points) < igniter.FEWEST_POINTS:
        return assessed
    curve = igniter.curve_of(profile)
    return replace(
        assessed,
        fits={**assessed.fits, igniter.NAME: dict(curve.coefficients)},
        holdout_error={**assessed.holdout_error, igniter.NAME: curve.holdout_error},
    )

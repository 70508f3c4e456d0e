"""Comparison of predictions with measurements, for `ctl validate`.

Pairs from another source, or models alone, beside models fitted on all profiles of a device; a device's own
co-location points, each batch size left out of the fit in turn; a profile's points without neighbours, a
fifth left out in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Profile
from controlplane.domain.units import Checked, Count, Percent, Positive
from controlplane.latency.fitting.answers import STANDARD_NORMAL
from controlplane.latency.fitting.kinds import Kind, Known
from controlplane.latency.fitting.points import left_out, left_out_error
from controlplane.latency.fitting.published import execution_points
from controlplane.latency.fitting.surface import left_out_scores
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.latency.registry import DEFAULT, FITS, Fit, solo_forms

QUANTILE = 0.95
LEAST_APART = 0.1
DEVIATIONS_APART = 2.0
"""A point disagrees with the others from this relative error on, and these deviations of the model's own."""


@dataclass(frozen=True, slots=True)
class Tenant(Checked):
    """One of the two models of a pair, and its measured latency."""

    model: str
    batch: Count
    percent: Percent
    latency_ms: Positive


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions and measurements, and the kind of each point for the fit; arrays of shape (n,)."""

    model: tuple[str, ...]
    kind: IntArray
    measured_ms: FloatArray
    predicted_ms: FloatArray
    upper_ms: FloatArray

    @staticmethod
    def joined(parts: Sequence[Predictions]) -> Predictions:
        """All parts as one."""
        arrays = ("kind", "measured_ms", "predicted_ms", "upper_ms")
        joined = (np.concatenate([getattr(part, name) for part in parts]) for name in arrays)
        return Predictions(tuple(name for part in parts for name in part.model), *joined)

    def report(self) -> dict[str, object]:
        """Return the figures of all points, of each model and of each kind of point; see `figures`."""
        names = np.array(self.model)
        return {
            "overall": self.figures(np.ones(names.size, dtype=np.bool_)),
            "per_model": {str(name): self.figures(names == name) for name in dict.fromkeys(self.model)},
            "per_kind": {
                kind.name.lower(): self.figures(self.kind == kind) for kind in Kind if kind in self.kind
            },
        }

    def figures(self, chosen: BoolArray) -> dict[str, float | int]:
        """Return the count; mean, signed mean, 95th percentile and largest relative error; the coverage.

        An error is (predicted - measured) / measured; the coverage counts measurements at or below the
        upper 95 % quantile.
        """
        measured = self.measured_ms[chosen]
        error = self.predicted_ms[chosen] / measured - 1.0
        return {
            "n": int(measured.size),
            "mape_percent": _percent(np.mean(np.abs(error))),
            "bias_percent": _percent(np.mean(error)),
            "p95_percent": _percent(np.percentile(np.abs(error), 95)),
            "max_percent": _percent(np.max(np.abs(error))),
            "coverage_95_percent": _percent(np.mean(measured <= self.upper_ms[chosen])),
        }


def against_alone(
    device: Device, profiles: Mapping[str, Profile], measured: Sequence[Tenant], names: Iterable[str] = FITS
) -> dict[str, object]:
    """Compare measurements of models alone with each latency model, fitted on all of `profiles`.

    Measurements at a profile's own points count for nothing: they are what was fitted. Raises InputError
    where none is left, and for a model that has no profile.
    """
    for tenant in measured:
        if tenant.model not in profiles:
            raise InputError(
                f"{tenant.model} has no profile on this device; there are {', '.join(profiles)}",
                field="model",
            )
    own = {(m, p.percent, p.batch) for m, profile in profiles.items() for p in profile.points}
    new = [(t,) for t in measured if (t.model, t.percent, t.batch) not in own]
    if not new:
        raise InputError("all measurements are points of the profiles: none tests them", field="measured")
    return _document(names, lambda fit: predicted(fit, device, profiles, new))


def built_in(
    device: Device, profiles: Mapping[str, Profile], names: Iterable[str] = FITS
) -> dict[str, object]:
    """Compare a catalogue with itself: its pairs with batch sizes left out, else its solo points."""
    sizes = {t.batch for p in profiles.values() for pair in _own_pairs(p) for t in pair}
    if len(sizes) > 1:
        return leave_batch_sizes_out(device, profiles, names)
    return _document(
        names,
        lambda fit: Predictions.joined([_points_left_out(fit, device, p) for p in profiles.values()]),
    )


def leave_batch_sizes_out(
    device: Device, profiles: Mapping[str, Profile], names: Iterable[str] = FITS
) -> dict[str, object]:
    """Compare each co-location point of two models with a fit on points of other batch sizes.

    Each batch size is left out in turn, own or the neighbour's: a point with two sizes is predicted twice,
    one with the same size twice once. Raises InputError where fewer than two sizes were measured.
    """
    apart = batch_sizes_left_out(profiles)
    return _document(
        names,
        lambda fit: Predictions.joined([predicted(fit, device, seen, unseen) for seen, unseen in apart]),
    )


def batch_sizes_left_out(
    profiles: Mapping[str, Profile],
) -> list[tuple[dict[str, Profile], list[tuple[Tenant, ...]]]]:
    """Return for each batch size beside others the profiles without it, and the pairs that have it.

    Raises InputError where fewer than two sizes were measured.
    """
    pairs = [p for profile in profiles.values() for p in _own_pairs(profile)]
    sizes = sorted({tenant.batch for pair in pairs for tenant in pair})
    if len(sizes) < 2:
        raise InputError(
            "co-location was measured at fewer than two batch sizes; none can be left out", field="colocation"
        )
    return [
        (
            {model: _without(profile, size) for model, profile in profiles.items()},
            [pair for pair in pairs if any(tenant.batch == size for tenant in pair)],
        )
        for size in sizes
    ]


def leave_points_out(device: Device, profile: Profile, names: Iterable[str] = FITS) -> dict[str, object]:
    """Compare a profile's solo points with a fit on the others, every fifth left out in turn.

    Raises InputError for fewer than four points.
    """
    return _document(names, lambda fit: _points_left_out(fit, device, profile))


def assessed(profile: Profile) -> Profile:
    """Return the profile with the errors of the default model and of all forms on points left out.

    A profile of fewer than four points is unchanged: none can be left out.
    """
    points = execution_points(profile.points)
    if points.time_ms.size < 4:
        return profile
    errors = {name: left_out_error(form, points) for name, form in solo_forms().items()}
    mine = {DEFAULT: float(np.mean(np.abs(left_out_scores(points)[1])))}
    return replace(profile, holdout_error={**profile.holdout_error, **mine, **errors})


@dataclass(frozen=True, slots=True)
class Disagreeing:
    """A measured point, and the time that the fit expects there from all others."""

    percent: float
    batch: int
    measured_ms: float
    expected_ms: float


def disagreeing(profile: Profile) -> tuple[Disagreeing, ...]:
    """Return the points that disagree with the fit of the default model on the others."""
    points = execution_points(profile.points)
    scores, errors = left_out_scores(points)
    if not scores.size:
        return ()
    # By the median, which the disturbed point itself hardly moves; never below the prior's deviation.
    usual = max(1.0, float(np.median(np.abs(scores))) / STANDARD_NORMAL.inv_cdf(0.75))
    apart = (np.abs(errors) > LEAST_APART) & (np.abs(scores) > DEVIATIONS_APART * usual)
    expected = points.time_ms / (1.0 + errors)
    found = zip(points.percent, points.batch, points.time_ms, expected, strict=True)
    return tuple(
        Disagreeing(float(percent), int(batch), float(measured), float(time))
        for (percent, batch, measured, time), odd in zip(found, apart, strict=True)
        if odd
    )


def _document(names: Iterable[str], predict: Callable[[Fit], Predictions]) -> dict[str, object]:
    """Return a report of each latency model that can be fitted. Raises InputError if none can."""
    reports: dict[str, object] = {}
    refused: InputError | None = None
    for name in names:
        try:
            reports[name] = predict(FITS[name].load()).report()
        except InputError as error:
            refused = error
    if not reports and refused is not None:
        raise refused
    return {"latency_models": reports}


def _points_left_out(fit: Fit, device: Device, profile: Profile) -> Predictions:
    points = sorted(profile.points, key=lambda p: (p.percent, p.batch, p.concurrency))
    rows = [(Tenant(profile.model, p.batch, p.percent, p.execution_ms),) for p in points]
    parts = []
    for out, kept in left_out(len(points)):
        seen = replace(profile, points=tuple(points[i] for i in kept), colocation=())
        parts.append(predicted(fit, device, {profile.model: seen}, [rows[i] for i in out]))
    if not parts:
        raise InputError("fewer than four points were measured; none can be left out", field="points")
    return Predictions.joined(parts)


def predicted(
    fit: Fit, device: Device, profiles: Mapping[str, Profile], rows: Sequence[tuple[Tenant, ...]]
) -> Predictions:
    """Predict the first model of each row beside the others, by a fit on these profiles."""
    model = fit(profiles, device)
    slots = Slots.of(
        [[model.models.index(tenant.model) for tenant in row] for row in rows],
        [[tenant.batch for tenant in row] for row in rows],
        [[tenant.percent for tenant in row] for row in rows],
    )
    answer = model.estimate(slots, QUANTILE)
    return Predictions(
        tuple(row[0].model for row in rows),
        Known.of(profiles).kinds(slots)[:, 0],
        np.array([row[0].latency_ms for row in rows]),
        answer.execution_ms[:, 0],
        answer.execution_upper_ms[:, 0],
    )


def _own_pairs(profile: Profile) -> list[tuple[Tenant, ...]]:
    """Return the co-location points with one neighbour, whose latency the profile does not have."""
    return [
        (
            Tenant(profile.model, point.batch, point.percent, point.execution_ms),
            Tenant(other.model, other.batch, other.percent, point.execution_ms),
        )
        for point in profile.colocation
        if len(point.neighbours) == 1
        for other in point.neighbours
    ]


def _without(profile: Profile, size: int) -> Profile:
    kept = tuple(
        c for c in profile.colocation if c.batch != size and all(n.batch != size for n in c.neighbours)
    )
    return replace(profile, colocation=kept)


def _percent(value: np.float64) -> float:
    return round(100.0 * float(value), 4)

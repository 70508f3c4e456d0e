"""Comparison of predictions with measurements, for `ctl validate`.

Three comparisons: pairs from another source, with models fitted on a whole catalogue; a device's own
co-location points, each batch size left out of the fit in turn; a profile's points without neighbours, a
fifth left out in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Measurement, Profile
from controlplane.domain.units import Checked, Count, Percent, Positive
from controlplane.latency.fitting.kinds import Kind, Known
from controlplane.latency.fitting.published import execution_points
from controlplane.latency.fitting.surface import left_out, left_out_error
from controlplane.latency.fitting.trends import choose_trend, coefficients_of
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, LatencyModel, Slots
from controlplane.latency.registry import DEFAULT, FITS, Fit, solo_forms

QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class Tenant(Checked):
    """One of the two models of a pair, and its measured latency."""

    model: str
    batch: Count
    percent: Percent
    latency_ms: Positive


Pair = tuple[Tenant, Tenant]


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


def against_pairs(
    device: Device, profiles: Mapping[str, Profile], pairs: Sequence[Pair], names: Iterable[str] = FITS
) -> dict[str, object]:
    """Compare both latencies of each pair with each latency model, fitted on all of `profiles`.

    Raises InputError for no pairs and for a model that has no profile.
    """
    if not pairs:
        raise InputError("there is no pair to compare with", field="pairs")
    for tenant in (tenant for pair in pairs for tenant in pair):
        if tenant.model not in profiles:
            raise InputError(
                f"{tenant.model} has no profile on this device; there are {', '.join(profiles)}",
                field="model",
            )
    return _document(names, lambda fit: _pairs(fit, device, profiles, pairs))


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
    pairs = [p for profile in profiles.values() for p in _own_pairs(profile)]
    sizes = sorted({tenant.batch for pair in pairs for tenant in pair})
    if len(sizes) < 2:
        raise InputError(
            "co-location was measured at fewer than two batch sizes; none can be left out", field="colocation"
        )

    def predict(fit: Fit) -> Predictions:
        parts = []
        for size in sizes:
            seen = {model: _without(profile, size) for model, profile in profiles.items()}
            unseen = [pair for pair in pairs if size in (pair[0].batch, pair[1].batch)]
            parts.append(_pairs(fit, device, seen, unseen, first_only=True))
        return Predictions.joined(parts)

    return _document(names, predict)


def leave_points_out(device: Device, profile: Profile, names: Iterable[str] = FITS) -> dict[str, object]:
    """Compare a profile's solo points with a fit on the others, every fifth left out in turn.

    Raises InputError for fewer than four points.
    """
    return _document(names, lambda fit: _points_left_out(fit, device, profile))


def assessed(profile: Profile) -> Profile:
    """Return the profile with the default model's trend and the errors of all forms on points left out.

    A profile of fewer than four points is unchanged: none can be left out.
    """
    points = execution_points(profile)
    if points.time_ms.size < 4:
        return profile
    trend, error = choose_trend(points)
    errors = {name: left_out_error(form, points) for name, form in solo_forms().items()}
    return replace(
        profile,
        fits={**profile.fits, DEFAULT: coefficients_of(trend, points)},
        holdout_error={**profile.holdout_error, DEFAULT: error, **errors},
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
    parts = []
    for out, kept in left_out(len(points)):
        seen = replace(profile, points=tuple(points[i] for i in kept), colocation=())
        model = fit({profile.model: seen}, device)
        parts.append(_alone(model, profile.model, [points[i] for i in out]))
    if not parts:
        raise InputError("fewer than four points were measured; none can be left out", field="points")
    return Predictions.joined(parts)


def _pairs(
    fit: Fit, device: Device, profiles: Mapping[str, Profile], pairs: Sequence[Pair], first_only: bool = False
) -> Predictions:
    model = fit(profiles, device)
    slots = Slots.of(
        [[model.models.index(tenant.model) for tenant in pair] for pair in pairs],
        [[tenant.batch for tenant in pair] for pair in pairs],
        [[tenant.percent for tenant in pair] for pair in pairs],
    )
    answer = model.estimate(slots, QUANTILE)
    chosen = 1 if first_only else 2
    return Predictions(
        tuple(tenant.model for pair in pairs for tenant in pair[:chosen]),
        Known.of(profiles).kinds(slots)[:, :chosen].ravel(),
        np.array([tenant.latency_ms for pair in pairs for tenant in pair[:chosen]]),
        answer.execution_ms[:, :chosen].ravel(),
        answer.execution_upper_ms[:, :chosen].ravel(),
    )


def _alone(model: LatencyModel, name: str, points: Sequence[Measurement]) -> Predictions:
    slots = Slots.alone(model.models.index(name), [p.batch for p in points], [p.percent for p in points])
    answer = model.estimate(slots, QUANTILE)
    return Predictions(
        (name,) * len(points),
        np.full(len(points), int(Kind.ALONE)),
        np.array([p.execution_ms for p in points]),
        answer.execution_ms[:, 0],
        answer.execution_upper_ms[:, 0],
    )


def _own_pairs(profile: Profile) -> list[Pair]:
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

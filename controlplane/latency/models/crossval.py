"""Cross-validation: the default model's choice of trend, and the error of each latency model.

For each model and device, every fifth point is left out in turn. The profile gets the chosen trend's
coefficients (`fits["ours"]`) and the mean relative errors of all forms (`holdout_error`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controlplane.domain.profile import Profile
from controlplane.latency.fitting.published import execution_points
from controlplane.latency.fitting.surface import (
    FitCurve,
    Points,
    Roofline,
    Trend,
    left_out_error,
    left_out_scores,
)
from controlplane.latency.models import gpulet, inss, latency_aware

OURS = "ours"
RATIONAL = "rational"
TRENDS: Mapping[str, FitCurve] = {
    RATIONAL: Trend.fit,
    "roofline": Roofline.fit,
    "exponential": latency_aware.Eq5.fit,
}
"""Trends below the kriged residual: iGniter's Eq 11, the same with overlapping terms, and the latency-aware
scheduler's Eq 5."""
FEWEST_TO_CHOOSE = 15
"""With fewer points the choice itself overfits: on eleven of a V100 model it costs up to 1.4 points."""
MARGIN = 0.9
"""Another trend replaces the first if its error is below this part of the first's; else it may be chance."""


def trend_of(profile: Profile, points: Points) -> str:
    """Return the trend that the profile records, else choose one."""
    for name in profile.fits.get(OURS, {}):
        trend = name.partition(".")[0]
        if trend in TRENDS:
            return trend
    return choose_trend(points)[0]


def choose_trend(points: Points) -> tuple[str, float]:
    """Return a name in `TRENDS` and its mean relative error on points left out, 0 for too few points."""
    first = left_out_scores(points, TRENDS[RATIONAL])[1]
    if points.time_ms.size < FEWEST_TO_CHOOSE:
        return RATIONAL, first
    others = {name: left_out_scores(points, fit)[1] for name, fit in TRENDS.items() if name != RATIONAL}
    best = min(others, key=lambda name: others[name])
    return (best, others[best]) if others[best] < MARGIN * first else (RATIONAL, first)


def assess(profile: Profile) -> Profile:
    """Return the profile with the chosen trend and the errors of all forms.

    A profile of fewer than four points is unchanged: none can be left out.
    """
    points = execution_points(profile)
    if points.time_ms.size < 4:
        return profile
    trend, error = choose_trend(points)
    errors = {
        OURS: error,
        latency_aware.NAME: left_out_error(latency_aware.Eq5.fit, points),
        inss.NAME: left_out_error(inss.LocalRegression, points),
        gpulet.NAME: left_out_error(gpulet.MeasuredTable.fit, points),
    }
    return replace(
        profile,
        fits={**profile.fits, OURS: _coefficients(trend, points)},
        holdout_error={**profile.holdout_error, **errors},
    )


def _coefficients(trend: str, points: Points) -> dict[str, float]:
    """Return the coefficients as `<trend>.<coefficient>`."""
    curve = TRENDS[trend](points)
    if isinstance(curve, latency_aware.Eq5):
        values = {"beta": curve.beta, "xi": curve.xi, "kappa": curve.kappa}
        amplitude = zip(("c1", "c0", "delta", "omega"), curve.amplitude, strict=True)
        values.update((name, float(value)) for name, value in amplitude)
    else:
        assert isinstance(curve, Trend | Roofline)
        names = ("k2", "k3", "k5", "k6", "k7")[: len(curve.coefficients)]
        linear = zip(names, curve.coefficients, strict=True)
        values = {"k4": curve.share_offset, **{name: float(value) for name, value in linear}}
    return {f"{trend}.{name}": value for name, value in values.items()}

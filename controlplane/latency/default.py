"""The default model: measured points kept, a smooth form between them, interference learned from pairs.

The solo time is a `surface.Surface`; neighbours slow it by `interference.Interference`. The upper quantile
combines the expected deviation of both, scaled by the errors on points left out of the fit, and the
difference between sessions (`repeatability`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.profile import Profile
from controlplane.latency.fitting import interference, surface
from controlplane.latency.fitting.answers import (
    STANDARD_NORMAL,
    PowerModel,
    Repeatability,
    Scores,
    check_profiles,
    check_question,
    make_estimate,
)
from controlplane.latency.fitting.interference import Interference, Process, Rows
from controlplane.latency.fitting.kinds import Known
from controlplane.latency.fitting.published import cycle_points, execution_points
from controlplane.latency.fitting.surface import Surface
from controlplane.latency.fitting.tables import Tables
from controlplane.latency.fitting.trends import DEFAULT_MODEL as NAME
from controlplane.latency.fitting.trends import TRENDS, trend_of
from controlplane.latency.protocol import Estimate, FloatArray, Slots

ONE_SIGMA = 0.8413


@dataclass(frozen=True, slots=True)
class Ours:
    """See the module; build it with `fit`. `solo_scores` has one entry a model, `holdout_error` too."""

    models: tuple[str, ...]
    tables: Tables
    interference: Interference
    solo_scores: tuple[Scores, ...]
    shared_scores: Scores
    repeatability: Repeatability
    holdout_error: Mapping[str, float]
    power: PowerModel
    name: str = NAME

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """See `LatencyModel.estimate`."""
        check_question(slots, len(self.models), quantile)
        execution, cycle, deviation = self.tables.look_up(slots.model, slots.batch, slots.percent)
        slowdown, deviation_beside, unknown = self.interference.slowdown(slots, execution)
        factors = np.array([scores.at(quantile) for scores in self.solo_scores])
        surface_margin = factors[slots.model] * deviation
        beside = (
            self.shared_scores.at(quantile) * deviation_beside + STANDARD_NORMAL.inv_cdf(quantile) * unknown
        )
        # A point beside others repeats no better than a solo one; errors beside others contain that already.
        floor = self.repeatability.margin(slots.percent, quantile)
        margin = np.hypot(surface_margin, np.maximum(beside / (1.0 + slowdown), floor))
        return make_estimate(
            slots,
            execution * (1.0 + slowdown),
            cycle * (1.0 + slowdown),
            margin,
            self.power,
        )


def fit(profiles: Mapping[str, Profile], device: Device) -> Ours:
    """Fit all models of one device on their measured points. Raises InputError (see `check_profiles`)."""
    check_profiles(profiles, device)
    names = tuple(profiles)
    listed = [profiles[name] for name in names]
    points = [execution_points(p) for p in listed]
    trends = [TRENDS[trend_of(p, q)] for p, q in zip(listed, points, strict=True)]
    execution = [Surface.fit(q, p.largest_batch, f) for q, p, f in zip(points, listed, trends, strict=True)]
    cycle = [
        s if (q := cycle_points(p)) is None else Surface.fit(q, p.largest_batch, f)
        for p, s, f in zip(listed, execution, trends, strict=True)
    ]
    tables = Tables.of(execution, cycle)
    peaks = np.array([s.peak_rate() for s in execution])
    solo = [surface.left_out_scores(q, f) for q, f in zip(points, trends, strict=True)]
    solo_scores = tuple(Scores.of(scores) for scores, _ in solo)
    rows = [_rows(p, names, tables, peaks, c.at(ONE_SIGMA)) for p, c in zip(listed, solo_scores, strict=True)]
    further = [_further_prior_ms(p, device) for p in listed]
    processes = _processes(rows, further)
    return Ours(
        models=names,
        tables=tables,
        interference=_tabulated(processes, tables, peaks, Known.of(profiles)),
        solo_scores=solo_scores,
        shared_scores=Scores.of(np.concatenate([process.left_out_scores() for process in processes])),
        repeatability=Repeatability.fit([r for p in listed for r in p.repeats], device.share_kind),
        holdout_error={name: error for name, (_, error) in zip(names, solo, strict=True)},
        power=PowerModel.of(listed, device),
    )


def _processes(rows: Sequence[Rows], further_ms: Sequence[float]) -> list[Process]:
    """Fit one process for each model; a model without points gets the one fitted on all other points."""
    own = [Process.fit(r, f) for r, f in zip(rows, further_ms, strict=True)]
    others = interference.joined(rows)
    if not others.slowdown.size:
        return own
    return [
        process if process.weights.size else Process.borrow(others, f)
        for process, f in zip(own, further_ms, strict=True)
    ]


def _rows(profile: Profile, names: tuple[str, ...], tables: Tables, peaks: FloatArray, spread: float) -> Rows:
    """Return the co-location points whose neighbours all have a profile, as arrays.

    `spread` is the factor on the surface's deviation that makes it a standard deviation.
    """
    usable = [c for c in profile.colocation if c.neighbours and all(n.model in names for n in c.neighbours)]
    width = max((len(c.neighbours) for c in usable), default=1)
    shape = (len(usable), width)
    present = np.zeros(shape, dtype=np.bool_)
    neighbour, their_batch = np.zeros(shape, dtype=np.int64), np.ones(shape)
    their_percent = np.full(shape, 100.0)
    for i, point in enumerate(usable):
        for j, other in enumerate(point.neighbours):
            present[i, j] = True
            neighbour[i, j] = names.index(other.model)
            their_batch[i, j], their_percent[i, j] = other.batch, other.percent
    batch = np.array([float(c.batch) for c in usable])
    percent = np.array([c.percent for c in usable])
    own = np.full(len(usable), names.index(profile.model))
    alone, _, deviation = tables.look_up(own, batch, percent)
    theirs, _, _ = tables.look_up(neighbour, their_batch, their_percent)
    return Rows(
        batch=batch,
        alone_ms=alone,
        alone_deviation=deviation * spread,
        load=batch / alone / peaks[own],
        slowdown=np.array([c.execution_ms for c in usable]) / alone - 1.0,
        neighbour=neighbour,
        their_batch=their_batch,
        their_percent=their_percent,
        their_load=their_batch / theirs / peaks[neighbour],
        present=present,
    )


def _tabulated(processes: list[Process], tables: Tables, peaks: FloatArray, known: Known) -> Interference:
    largest = int(tables.largest.max())
    octaves = 2.0 ** np.arange(np.ceil(np.log2(max(largest, 2))))
    log_batch = np.log(np.append(octaves, float(max(largest, 2))))
    batch, percent = np.meshgrid(np.exp(log_batch), interference.KNOT_PERCENTS, indexing="ij")
    alone = [tables.look_up(np.full(batch.shape, m), batch, percent)[0] for m in range(len(processes))]
    return interference.tabulate(processes, peaks, alone, log_batch, known)


def _further_prior_ms(profile: Profile, device: Device) -> float:
    """Return the delay by a further neighbour by iGniter's Eq 6, alpha_sch n_k; 0 without coefficients."""
    return device.hardware.get("alpha_sch", 0.0) * profile.fits.get("igniter", {}).get("n_k", 0.0)

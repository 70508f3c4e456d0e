"""The default model: measured points kept, a smooth form between them, interference learned from pairs.

The solo time is a `surface.Surface`; neighbours slow it by `interference.Interference`. The upper quantile
combines the expected deviation of both, scaled by the errors on points left out of the fit, and the
difference between sessions (`repeatability`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.domain.device import Device
from controlplane.domain.profile import Profile
from controlplane.latency.fitting import interference
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
from controlplane.latency.fitting.published import Colocated, execution_points, solo_tables
from controlplane.latency.fitting.surface import Surface, left_out_scores
from controlplane.latency.fitting.tables import Tables
from controlplane.latency.protocol import Estimate, FloatArray, IntArray, Slots

NAME = "ours"
ONE_SIGMA = 0.8413


@dataclass(frozen=True, slots=True)
class Ours:
    """See the module; build it with `fit`. `solo_scores` has one entry a model."""

    models: tuple[str, ...]
    tables: Tables
    interference: Interference
    solo_scores: tuple[Scores, ...]
    shared_scores: Scores
    repeatability: Repeatability
    power: PowerModel
    name: str = NAME

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """See `LatencyModel.estimate`."""
        check_question(slots, len(self.models), quantile)
        execution, cycle, deviation = self.tables.look_up(slots.model, slots.batch, slots.percent)
        slowdown, deviation_beside, unknown = self.interference.slowdown(slots, execution)
        factors = np.array([scores.at(quantile) for scores in self.solo_scores])
        surface_margin = factors[slots.model] * deviation
        beside = self.shared_scores.at(quantile) * deviation_beside
        beside = beside + STANDARD_NORMAL.inv_cdf(quantile) * unknown
        # A point beside others repeats no better than a solo one; errors beside others contain that already.
        floor = self.repeatability.margin(slots.percent, quantile)
        margin = np.hypot(surface_margin, np.maximum(beside / (1.0 + slowdown), floor))
        longer = 1.0 + slowdown
        return make_estimate(slots, execution * longer, cycle * longer, margin, self.power)


def fit(profiles: Mapping[str, Profile], device: Device) -> Ours:
    """Fit all models of one device on their measured points. Raises InputError (see `check_profiles`)."""
    check_profiles(profiles, device)
    listed = list(profiles.values())
    execution, tables = solo_tables(listed, [Surface.fit] * len(listed))
    peaks = np.array([s.peak_rate() for s in execution])
    left_out = (left_out_scores(execution_points(p.points)) for p in listed)
    solo_scores = tuple(Scores.of(scores) for scores, _ in left_out)
    spread = np.array([scores.at(ONE_SIGMA) for scores in solo_scores])
    model, rows = _rows(Colocated.of(profiles), tables, peaks, spread)
    processes = []
    for m, profile in enumerate(listed):
        own = rows.take(np.flatnonzero(model == m))
        # The delay by a further neighbour by iGniter's Eq 6, alpha_sch n_k; 0 without coefficients.
        further_ms = device.hardware.get("alpha_sch", 0.0) * profile.fits.get("igniter", {}).get("n_k", 0.0)
        # A model without points gets a process fitted on all other points.
        borrowed = rows.slowdown.size and not own.slowdown.size
        processes.append(Process.borrow(rows, further_ms) if borrowed else Process.fit(own, further_ms))
    return Ours(
        models=tuple(profiles),
        tables=tables,
        interference=_tabulated(processes, tables, peaks, Known.of(profiles)),
        solo_scores=solo_scores,
        shared_scores=Scores.of(np.concatenate([process.left_out_scores() for process in processes])),
        repeatability=Repeatability.fit([r for p in listed for r in p.repeats], device.share_kind),
        power=PowerModel.of(listed, device),
    )


def _rows(
    colocated: Colocated, tables: Tables, peaks: FloatArray, spread: FloatArray
) -> tuple[IntArray, Rows]:
    """Return the model of each co-location point, and the points as arrays.

    `spread` (models,) is the factor on the surface's deviation that makes it a standard deviation.
    """
    slots = colocated.slots
    alone, _, deviation = tables.look_up(slots.model, slots.batch, slots.percent)
    load = slots.batch / alone / peaks[slots.model]
    own = slots.model[:, 0]
    return own, Rows(
        batch=slots.batch[:, 0],
        alone_ms=alone[:, 0],
        alone_deviation=deviation[:, 0] * spread[own],
        load=load[:, 0],
        slowdown=colocated.measured_ms / alone[:, 0] - 1.0,
        neighbour=slots.model[:, 1:],
        their_batch=slots.batch[:, 1:],
        their_percent=slots.percent[:, 1:],
        their_load=load[:, 1:],
        present=slots.mask[:, 1:],
    )


def _tabulated(processes: list[Process], tables: Tables, peaks: FloatArray, known: Known) -> Interference:
    largest = int(tables.largest.max())
    octaves = 2.0 ** np.arange(np.ceil(np.log2(max(largest, 2))))
    log_batch = np.log(np.append(octaves, float(max(largest, 2))))
    batch, percent = np.meshgrid(np.exp(log_batch), interference.KNOT_PERCENTS, indexing="ij")
    alone = [tables.look_up(np.full(batch.shape, m), batch, percent)[0] for m in range(len(processes))]
    return interference.tabulate(processes, peaks, alone, log_batch, known)

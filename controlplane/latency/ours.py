"""The default model: measured points kept, a smooth form between them, interference learned from pairs.

Alone, a model's time is a `surface.Surface`; beside others it is slowed by `interference.Interference`. The
upper quantile is the expected deviation of both, scaled by the errors seen on points left out of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from controlplane.domain.device import Device
from controlplane.domain.profile import Profile
from controlplane.latency import interference, surface
from controlplane.latency.answers import PowerModel, Scores, check_profiles, check_question, dress, memory_of
from controlplane.latency.interference import Interference, Process, Rows
from controlplane.latency.protocol import Estimate, FloatArray, IntArray, Slots
from controlplane.latency.surface import LOWEST_PERCENT, MEASURED_SD, Points, Surface

NAME = "ours"


@dataclass(frozen=True, slots=True)
class Tables:
    """The surfaces of all models on common knots, for one look-up of all slots.

    `log_percent` (K,); `largest` (models,) batches tabulated; `log_execution`, `log_cycle` and `deviation`
    (models, batches, K), rows above a model's largest batch repeat its last.
    """

    log_percent: FloatArray
    largest: IntArray
    log_execution: FloatArray
    log_cycle: FloatArray
    deviation: FloatArray

    @staticmethod
    def of(execution: list[Surface], cycle: list[Surface]) -> Tables:
        """Bring all surfaces to the union of their knots, where each stays exact."""
        percent = np.unique(np.concatenate([s.percent for s in (*execution, *cycle)]))
        height = max(s.time_ms.shape[0] for s in execution)
        log_percent = np.log(percent)

        def resampled(own: Surface, values: FloatArray) -> FloatArray:
            rows = np.stack([np.interp(log_percent, np.log(own.percent), row) for row in values])
            return np.pad(rows, ((0, height - rows.shape[0]), (0, 0)), mode="edge")

        times = [resampled(s, np.log(s.time_ms)) for s in execution]
        cycles = [resampled(s, np.log(s.time_ms)) for s in cycle]
        return Tables(
            log_percent=log_percent,
            largest=np.array([s.time_ms.shape[0] for s in execution]),
            log_execution=np.stack(times),
            log_cycle=np.minimum(np.stack(cycles), np.stack(times)),
            deviation=np.stack([resampled(s, s.deviation) for s in execution]),
        )

    def look_up(
        self, model: IntArray, batch: FloatArray, percent: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Execution and cycle time in ms and the expected relative deviation; shapes as given."""
        # Outside the table time stays proportional: to 1 / share below its knots, to the batch above them.
        beyond = np.maximum(batch / self.largest[model], 1.0) * np.maximum(LOWEST_PERCENT / percent, 1.0)
        inside = np.minimum(batch, self.largest[model])
        lower = np.minimum(np.floor(inside), np.maximum(self.largest[model] - 1, 1)).astype(np.int64)
        upper = np.minimum(lower + 1, self.largest[model])
        part = inside - lower
        log_percent = np.maximum(np.log(percent), self.log_percent[0])
        knot = np.clip(
            np.searchsorted(self.log_percent, log_percent, side="right") - 1, 0, len(self.log_percent) - 2
        )
        left = self.log_percent[knot]
        x = (log_percent - left) / (self.log_percent[knot + 1] - left)

        def along_share(table: FloatArray, row: IntArray) -> FloatArray:
            value: FloatArray = (1 - x) * table[model, row - 1, knot] + x * table[model, row - 1, knot + 1]
            return value

        def time(table: FloatArray) -> FloatArray:
            low, high = np.exp(along_share(table, lower)), np.exp(along_share(table, upper))
            value: FloatArray = beyond * (low + part * (high - low))
            return value

        deviation = (1 - part) * along_share(self.deviation, lower) + part * along_share(
            self.deviation, upper
        )
        return time(self.log_execution), time(self.log_cycle), deviation


@dataclass(frozen=True, slots=True)
class Ours:
    """See the module; build it with `fit`. `solo_scores` has one entry a model, `holdout_error` too."""

    models: tuple[str, ...]
    tables: Tables
    interference: Interference
    solo_scores: tuple[Scores, ...]
    shared_scores: Scores
    holdout_error: Mapping[str, float]
    power: PowerModel
    memory_mb: FloatArray
    name: str = NAME

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """See `LatencyModel.estimate`."""
        check_question(slots, len(self.models), quantile)
        execution, cycle, deviation = self.tables.look_up(slots.model, slots.batch, slots.percent)
        slowdown, slowdown_deviation = self.interference.slowdown(slots, execution)
        factors = np.array([scores.at(quantile) for scores in self.solo_scores])
        surface_margin = factors[slots.model] * deviation
        # Errors beside others already contain the repeatability of both measurements.
        others_margin = np.where(
            slowdown_deviation > 0,
            self.shared_scores.at(quantile) * slowdown_deviation / (1.0 + slowdown),
            float(ndtri(quantile)) * MEASURED_SD,
        )
        return dress(
            slots,
            execution * (1.0 + slowdown),
            cycle * (1.0 + slowdown),
            np.hypot(surface_margin, others_margin),
            self.power,
            self.memory_mb,
        )


def fit(profiles: Mapping[str, Profile], device: Device) -> Ours:
    """Fit all models of one device on their measured points. Raises InputError (see `check_profiles`)."""
    check_profiles(profiles, device)
    names = tuple(profiles)
    listed = [profiles[name] for name in names]
    points = [_execution_points(p) for p in listed]
    execution = [Surface.fit(q, p.largest_batch) for q, p in zip(points, listed, strict=True)]
    cycle = [_cycle_surface(p, s) for p, s in zip(listed, execution, strict=True)]
    tables = Tables.of(execution, cycle)
    peaks = np.array([s.peak_rate() for s in execution])
    rows = [_rows(p, names, tables, peaks) for p in listed]
    further = [_further_prior_ms(p, device) for p in listed]
    processes = [Process.fit(r, f) for r, f in zip(rows, further, strict=True)]
    solo = [surface.left_out_scores(q) for q in points]
    shared = [interference.left_out_scores(r, f) for r, f in zip(rows, further, strict=True)]
    return Ours(
        models=names,
        tables=tables,
        interference=_tabulated(processes, tables, peaks),
        solo_scores=tuple(Scores.of(scores) for scores, _ in solo),
        shared_scores=Scores.of(np.concatenate([scores for scores, _ in shared])),
        holdout_error={name: error for name, (_, error) in zip(names, solo, strict=True)},
        power=PowerModel.of(listed, device),
        memory_mb=memory_of(listed),
    )


def _execution_points(profile: Profile) -> Points:
    # Execution at the lowest concurrency measured at a point: more of it adds waiting, which is no execution.
    lowest: dict[tuple[float, int], int] = {}
    for p in profile.points:
        key = (p.percent, p.batch)
        lowest[key] = min(p.concurrency, lowest.get(key, p.concurrency))
    kept = [p for p in profile.points if p.concurrency == lowest[p.percent, p.batch]]
    return Points.of([p.percent for p in kept], [p.batch for p in kept], [p.execution_ms for p in kept])


def _cycle_surface(profile: Profile, execution: Surface) -> Surface:
    best: dict[tuple[float, int], float] = {}
    for p in profile.points:
        if p.capacity_rps is not None:
            key = (p.percent, p.batch)
            best[key] = max(p.capacity_rps, best.get(key, 0.0))
    if not best:
        return execution
    cycle_ms = [1000.0 * batch / rate for (_, batch), rate in best.items()]
    points = Points.of([k[0] for k in best], [k[1] for k in best], cycle_ms)
    return Surface.fit(points, profile.largest_batch)


def _rows(profile: Profile, names: tuple[str, ...], tables: Tables, peaks: FloatArray) -> Rows:
    """Co-location points whose neighbours all have a profile, as arrays."""
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
    alone, _, _ = tables.look_up(own, batch, percent)
    theirs, _, _ = tables.look_up(neighbour, their_batch, their_percent)
    return Rows(
        batch=batch,
        alone_ms=alone,
        load=batch / alone / peaks[own],
        slowdown=np.array([c.execution_ms for c in usable]) / alone - 1.0,
        neighbour=neighbour,
        their_batch=their_batch,
        their_percent=their_percent,
        their_load=their_batch / theirs / peaks[neighbour],
        present=present,
    )


def _tabulated(processes: list[Process], tables: Tables, peaks: FloatArray) -> Interference:
    largest = int(tables.largest.max())
    octaves = 2.0 ** np.arange(np.ceil(np.log2(max(largest, 2))))
    log_batch = np.log(np.append(octaves, float(max(largest, 2))))
    batch, percent = np.meshgrid(np.exp(log_batch), interference.KNOT_PERCENTS, indexing="ij")
    alone = [tables.look_up(np.full(batch.shape, m), batch, percent)[0] for m in range(len(processes))]
    return interference.tabulate(processes, peaks, alone, log_batch)


def _further_prior_ms(profile: Profile, device: Device) -> float:
    """What a further neighbour adds by iGniter's Eq 6, where its coefficients are known: alpha_sch n_k."""
    return device.hardware.get("alpha_sch", 0.0) * profile.fits.get("igniter", {}).get("n_k", 0.0)

"""Slowdown of a model by any number of neighbours, learned from co-location points.

Model m beside neighbours j takes

    t = t0 (1 + sum_j I_mj + g_m max(0, u_m + sum_j u_j - 1)) + max(0, |j| - 1) k_m
    I_mj = c_mj + (d_mj + h_mj b_m) / t0 + e_mj u_j + r_mj(b_m, b_j, p_j)

t0 is the solo time, u a model's throughput over its own peak, which stands for its use of cache, memory
bandwidth and power (iGniter assumes them linear in it: Eq 9 and the cache utilisation). The terms are: c,
contention at any load; d, a delay in ms (the scheduler's, for each kernel); h, a delay for each item (the
bus: transfers grow with the batch, not with the share); g, the loss when all together need more than the GPU
has (power cap and clocks, Eq 7-10); k, the delay by each further neighbour (Eq 6: alpha_sch n_k); r, a smooth
rest.

c, d, h and e have one part for all neighbours of m and one part for the pair; r is of the pair and depends on
the neighbour's share, not on the own one, so that t falls with the own share as t0 does. Together they are
one Gaussian process with a linear and a squared-exponential kernel: measured pairs are followed closely;
others get the effect of m's other neighbours and a wider quantile.

The fitted process is tabulated on a lattice; a prediction is a trilinear look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.latency.fitting.kinds import Known
from controlplane.latency.fitting.points import non_negative_fit
from controlplane.latency.fitting.tables import cell_of
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots

SHARED_SD = np.array([0.01, 0.01, 0.01, 0.01])
PAIR_SD = np.array([0.03, 0.03, 0.03, 0.03])
"""Priors of c, d, h and e, each on the scale of its feature: for all neighbours, and for the pair."""
RIDGE = 0.03
REST_SD = 0.016
BATCH_SCALE = 2.5
NEIGHBOUR_BATCH_SCALE = 2.0
NEIGHBOUR_SHARE_SCALE = 20.0
"""Length scales of the rest: ln(own batch), ln(neighbour's batch), the neighbour's percent."""
NOISE_SD = 0.005
"""Priors set once, by leaving batch sizes of the V100 pairs out: halving or doubling any one of them moves
the mean error by less than 0.1 points."""
COST_SD = 0.1
"""The relative deviation of a neighbour's effect where a batch size, a share or the pair was never measured
beside another model: two published runs of five copies on a V100 differ by 11 %, and pairs at other batch
sizes, measured elsewhere, were slower by 9 % of it. Points left out of one campaign do not show that."""
KNOT_PERCENTS = np.array([2.5, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0])


@dataclass(frozen=True, slots=True)
class Rows:
    """Co-location points of one model as arrays: n points, at most w neighbours each.

    `batch`, `alone_ms`, its relative deviation `alone_deviation` (0 where it was measured), `load` (u_m) and
    `slowdown` (measured time over time alone, minus 1) have the shape (n,); `neighbour` (index of its model),
    `their_batch`, `their_percent`, `their_load` and `present` (n, w).
    """

    batch: FloatArray
    alone_ms: FloatArray
    alone_deviation: FloatArray
    load: FloatArray
    slowdown: FloatArray
    neighbour: IntArray
    their_batch: FloatArray
    their_percent: FloatArray
    their_load: FloatArray
    present: BoolArray

    def take(self, index: IntArray) -> Rows:
        """The points at these positions."""
        return Rows(*(getattr(self, name)[index] for name in Rows.__slots__))

    def further(self) -> FloatArray:
        """Return the number of neighbours beyond the first, shape (n,)."""
        further: FloatArray = np.maximum(self.present.sum(axis=1) - 1, 0).astype(float)
        return further

    def excess(self) -> FloatArray:
        """Return by how much the loads together exceed a whole GPU, shape (n,)."""
        together = self.load + np.sum(self.their_load * self.present, axis=1)
        excess: FloatArray = np.maximum(together - 1.0, 0.0)
        return excess


@dataclass(frozen=True, slots=True)
class Scales:
    """The smallest t0 and t0 / b of the points, so that a delay's feature, scale / t0, is at most 1."""

    delay_ms: float
    item_ms: float

    @staticmethod
    def of(rows: Rows) -> Scales:
        """Take them from the points; 1 without points, when no delay is learned."""
        if not rows.alone_ms.size:
            return Scales(1.0, 1.0)
        return Scales(float(rows.alone_ms.min()), float((rows.alone_ms / rows.batch).min()))


@dataclass(frozen=True, slots=True)
class Process:
    """The Gaussian process of one model, fitted on its co-location points (perhaps none).

    `borrowed` is None for a process of a model's own points. A model without points has the process of all
    others, and `borrowed` is the variance of their points about the trend, which one more model may have too.
    `whitening` is the inverse of the covariance's Cholesky factor: its transpose times itself is the inverse
    covariance.
    """

    rows: Rows
    scales: Scales
    trend: FloatArray
    weights: FloatArray
    whitening: FloatArray
    borrowed: float | None = None

    @staticmethod
    def fit(rows: Rows, further_ms: float) -> Process:
        """Fit on points. `further_ms` is k_m unless a point has two neighbours."""
        scales = Scales.of(rows)
        covariance = _covariance(rows, rows, scales) + np.diag(NOISE_SD**2 + rows.alone_deviation**2)
        trend = _trend(rows, scales, further_ms)
        if not rows.slowdown.size:
            return Process(rows, scales, trend, np.empty(0), covariance)
        whitening = np.linalg.inv(np.linalg.cholesky(covariance))
        rest = rows.slowdown - _terms(rows, scales) @ trend
        return Process(rows, scales, trend, whitening.T @ (whitening @ rest), whitening)

    @staticmethod
    def borrow(others: Rows, further_ms: float) -> Process:
        """Fit a process for a model without points on those of other models."""
        process = Process.fit(others, further_ms)
        apart = others.slowdown - _terms(others, process.scales) @ process.trend
        return replace(process, borrowed=float(np.mean(apart**2)))

    def at(self, rows: Rows) -> tuple[FloatArray, FloatArray]:
        """Return the expected slowdown and its deviation for new points, shapes (n,)."""
        noise = NOISE_SD**2 + rows.alone_deviation**2
        own = _own_variance(rows, self.scales) + noise
        mean = _terms(rows, self.scales) @ self.trend
        if not self.weights.size:
            return mean, np.sqrt(own)
        cross = _covariance(rows, self.rows, self.scales)
        mean += cross @ self.weights
        if self.borrowed is not None:
            return mean, np.sqrt(own + self.borrowed)
        explained = np.sum((cross @ self.whitening.T) ** 2, axis=1)
        return mean, np.sqrt(np.maximum(own - explained, noise))

    def left_out_scores(self) -> FloatArray:
        """Return the error of each point when it is left out, divided by its expected deviation; shape (n,).

        In closed form from the inverse covariance (Rasmussen and Williams, Eq 5.12); the trend stays.
        """
        if self.borrowed is not None or not self.weights.size:
            return np.empty(0)
        inverse_diagonal = np.sum(self.whitening**2, axis=0)
        scores: FloatArray = self.weights / np.sqrt(inverse_diagonal)
        return scores

    def delays_ms(self, neighbour: int) -> tuple[float, float]:
        """Return d_mj and h_mj beside this neighbour, in ms and ms an item, never negative."""
        features = _features(self.rows, self.scales)
        same = (self.rows.neighbour == neighbour)[..., None]
        total = self.trend[:4] + self.weights @ (features * same).sum(axis=1) * PAIR_SD**2
        total += self.weights @ features.sum(axis=1) * SHARED_SD**2
        delay, item = np.maximum(total[1:3], 0.0).tolist()
        return delay * self.scales.delay_ms, item * self.scales.item_ms

    def excess_factor(self) -> float:
        """Return g_m, in [0, 1): below 1 a larger share still shortens the time."""
        return float(min(self.trend[4], 0.99))

    def further_delay_ms(self) -> float:
        """Return k_m, never negative."""
        return float(self.trend[5]) * self.scales.delay_ms


@dataclass(frozen=True, slots=True)
class Interference:
    """All processes of a device, tabulated.

    `table` has the shape (models, models, own batches, neighbour's batches, percents, 2): c + e u + r, which
    never falls along the neighbour's batch and share, and the deviation of I_mj. `delay_ms` and `item_ms`
    (models, models) are d and h, `excess` and `further_ms` (models,) g and k, all non-negative. `peak`
    (models,) is the largest throughput of each model, per ms. Predictions for what is not in `known` have a
    larger deviation.
    """

    log_batch: FloatArray
    percent: FloatArray
    table: FloatArray
    delay_ms: FloatArray
    item_ms: FloatArray
    excess: FloatArray
    further_ms: FloatArray
    peak: FloatArray
    known: Known

    def slowdown(self, slots: Slots, alone_ms: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the relative slowdown of each slot by its neighbours; shapes (GPUs, slots).

        Also its deviation by the process, and the deviation by neighbours that are not in `known`.
        """
        here, m = slots.mask, np.where(slots.mask, slots.model, 0)
        batch, percent = np.where(here, slots.batch, 1.0), np.where(here, slots.percent, 100.0)
        alone_ms = np.where(here, alone_ms, 1.0)
        count = here.sum(axis=1, keepdims=True)
        load = np.where(here, batch / alone_ms / self.peak[m], 0.0).sum(axis=1, keepdims=True)
        effect, deviation = self._beside_each(m, batch, percent)
        # (GPUs, slots, others)
        own, other = (slice(None), slice(None), None), (slice(None), None)
        delay = self.delay_ms[m[own], m[other]] + self.item_ms[m[own], m[other]] * batch[own]
        # No neighbour speeds a model up: with one more, every term of the sum stays or grows.
        effect = np.maximum(effect + delay / alone_ms[own], 0.0)
        new = self.known.is_new(m, batch, percent)
        unknown = new[own] | new[other] | ~self.known.beside[m[own], m[other]]
        together = here[own] & here[other] & ~np.eye(m.shape[1], dtype=np.bool_)
        total = np.where(together, effect, 0.0).sum(axis=2)
        total += np.maximum(load - 1.0, 0.0) * self.excess[m] + (count - 2) * self.further_ms[m] / alone_ms
        beside = here & (count > 1)
        return (
            np.where(beside, total, 0.0),
            # Deviations of one model's neighbours share their cause: they add up, not average out.
            np.where(together, deviation, 0.0).sum(axis=2),
            COST_SD * np.where(together & unknown, effect, 0.0).sum(axis=2),
        )

    def _beside_each(
        self, model: IntArray, batch: FloatArray, percent: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The table's effect and deviation of each other on each slot: (GPUs, slots, others)."""
        low, high = self.log_batch[0], self.log_batch[-1]
        row, x = cell_of(self.log_batch, np.clip(np.log(batch), low, high))
        knot, z = cell_of(self.percent, np.clip(percent, self.percent[0], self.percent[-1]))
        own, other = (slice(None), slice(None), None), (slice(None), None)
        z = z[other][..., None]
        found = np.zeros((*model.shape, model.shape[1], 2))
        for corner in (0, 1):
            for their in (0, 1):
                weight = (x if corner else 1.0 - x)[own] * (x if their else 1.0 - x)[other]
                at = model[own], model[other], row[own] + corner, row[other] + their
                along = (1.0 - z) * self.table[(*at, knot[other])] + z * self.table[(*at, knot[other] + 1)]
                found += weight[..., None] * along
        return found[..., 0], found[..., 1]


def tabulate(
    processes: Sequence[Process],
    peak: FloatArray,
    alone_ms: Sequence[FloatArray],
    log_batch: FloatArray,
    known: Known,
) -> Interference:
    """Evaluate each process on the lattice `log_batch` x `log_batch` x `KNOT_PERCENTS`.

    `alone_ms[m]` has the shape (batches, percents): each model's solo time there. `peak` as in the class.
    """
    count, sizes, shares = len(processes), log_batch.size, KNOT_PERCENTS.size
    table = np.zeros((count, count, sizes, sizes, shares, 2))
    delay, item = np.zeros((count, count)), np.zeros((count, count))
    own, other, share = (
        g.ravel() for g in np.meshgrid(*map(np.arange, (sizes, sizes, shares)), indexing="ij")
    )
    batch = np.exp(log_batch)
    for m, process in enumerate(processes):
        # The deviation is computed where the two shares fill the GPU, as they do in a plan.
        base = alone_ms[m][own, shares - 1 - share]
        for n in range(count):
            their_load = batch[other] / alone_ms[n][other, share] / peak[n]
            rows = Rows(
                batch=batch[own],
                alone_ms=base,
                alone_deviation=np.zeros(own.size),
                load=batch[own] / base / peak[m],
                slowdown=np.zeros(own.size),
                neighbour=np.full((own.size, 1), n),
                their_batch=batch[other][:, None],
                their_percent=KNOT_PERCENTS[share][:, None],
                their_load=their_load[:, None],
                present=np.ones((own.size, 1), dtype=np.bool_),
            )
            mean, deviation = process.at(rows)
            delay[m, n], item[m, n] = process.delays_ms(n)
            apart = (delay[m, n] + item[m, n] * batch[own]) / base + process.excess_factor() * rows.excess()
            table[m, n, ..., 0] = (mean - apart).reshape(sizes, sizes, shares)
            table[m, n, ..., 1] = deviation.reshape(sizes, sizes, shares)
    rising = np.maximum.accumulate(np.maximum.accumulate(table[..., 0], axis=3), axis=4)
    falling = table[..., ::-1, ::-1, 0]
    falling = np.minimum.accumulate(np.minimum.accumulate(falling, axis=3), axis=4)[..., ::-1, ::-1]
    table[..., 0] = (rising + falling) / 2.0
    return Interference(
        log_batch=log_batch,
        percent=KNOT_PERCENTS,
        table=table,
        delay_ms=delay,
        item_ms=item,
        excess=np.array([p.excess_factor() for p in processes]),
        further_ms=np.array([p.further_delay_ms() for p in processes]),
        peak=peak,
        known=known,
    )


def _features(rows: Rows, scales: Scales) -> FloatArray:
    """Of each neighbour: 1, scaled 1 / t0, scaled b / t0, u_j; 0 where there is none. Shape (n, w, 4)."""
    ones = np.ones_like(rows.their_load)
    delay = ones * (scales.delay_ms / rows.alone_ms)[:, None]
    item = ones * (scales.item_ms * rows.batch / rows.alone_ms)[:, None]
    features: FloatArray = np.stack([ones, delay, item, rows.their_load], axis=-1) * rows.present[..., None]
    return features


def _terms(rows: Rows, scales: Scales) -> FloatArray:
    """The trend's columns: the features summed over neighbours, excess, and scaled count; shape (n, 6)."""
    count = scales.delay_ms * rows.further() / rows.alone_ms
    return np.column_stack([_features(rows, scales).sum(axis=1), rows.excess(), count])


def _trend(rows: Rows, scales: Scales, further_ms: float) -> FloatArray:
    """Non-negative coefficients of `_terms`, by least squares: no term may speed a model up."""
    trend = np.zeros(6)
    trend[5] = further_ms / scales.delay_ms
    if not rows.slowdown.size:
        return trend
    terms = _terms(rows, scales)
    counted = bool(rows.further().any())
    columns = terms if counted else terms[:, :5]
    target = rows.slowdown if counted else rows.slowdown - terms[:, 5] * trend[5]
    ridge = RIDGE * np.sqrt(len(columns)) * np.eye(columns.shape[1])
    solution = non_negative_fit(
        np.vstack([columns, ridge]), np.concatenate([target, np.zeros(columns.shape[1])])
    )
    trend[: solution.size] = solution
    return trend


def _covariance(a: Rows, b: Rows, scales: Scales) -> FloatArray:
    fa, fb = _features(a, scales), _features(b, scales)
    covariance: FloatArray = (fa.sum(axis=1) * SHARED_SD**2) @ fb.sum(axis=1).T
    along = ((np.log(a.batch)[:, None] - np.log(b.batch)) / BATCH_SCALE) ** 2
    for i in range(a.present.shape[1]):
        for j in range(b.present.shape[1]):
            same = (a.neighbour[:, i, None] == b.neighbour[:, j]) & a.present[:, i, None] & b.present[:, j]
            theirs = np.log(a.their_batch[:, i, None] / b.their_batch[:, j]) / NEIGHBOUR_BATCH_SCALE
            shares = (a.their_percent[:, i, None] - b.their_percent[:, j]) / NEIGHBOUR_SHARE_SCALE
            rest = REST_SD**2 * np.exp(-0.5 * (along + theirs**2 + shares**2))
            covariance += same * ((fa[:, i] * PAIR_SD**2) @ fb[:, j].T + rest)
    return covariance


def _own_variance(rows: Rows, scales: Scales) -> FloatArray:
    """The diagonal of `_covariance(rows, rows)` for points with distinct neighbours."""
    features = _features(rows, scales)
    variance: FloatArray = (features.sum(axis=1) ** 2) @ SHARED_SD**2
    variance += np.sum((features**2) @ PAIR_SD**2 + REST_SD**2 * rows.present, axis=1)
    return variance

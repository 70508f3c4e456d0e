"""P99 and mean of queues, each solved once while a plan is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.latency.queueing.turns import SojournTimes, bound_order, bound_turns
from controlplane.planning.judge.layout import Layout

_DEVIATIONS = 2.326
"""By which the 99th percentile of a batch's own time lies above its mean, for a normal."""


@dataclass(slots=True)
class QueueCache:
    """Queues solved so far: the judge asks about most of what the strategy has asked."""

    known: dict[bytes, tuple[float, float]] = field(default_factory=dict)
    bounds: dict[bytes, SojournTimes] = field(default_factory=dict)

    def solve(
        self,
        rate: FloatArray,
        curves: FloatArray,
        batch: IntArray,
        servers: IntArray,
        dispersion: FloatArray,
    ) -> FloatArray:
        """Mean and P99 of each row's queue, (n, 2); see `latency.queueing`."""
        from controlplane.latency.queueing import batch_queue

        beyond = np.arange(curves.shape[1]) >= batch[:, None]
        question = np.column_stack([rate, batch, servers, dispersion, np.where(beyond, 0.0, curves)])
        keys = [row[: 4 + b].tobytes() for row, b in zip(question, batch.tolist(), strict=True)]
        rows = {key: n for n, key in enumerate(keys) if key not in self.known}
        if rows:
            new = np.array(list(rows.values()))
            solved = batch_queue.solve(rate[new], curves[new], batch[new], servers[new], dispersion[new])
            pairs = zip(solved.mean_ms.tolist(), solved.p99_ms.tolist(), strict=True)
            self.known.update(zip(rows, pairs, strict=True))
        return np.array([self.known[key] for key in keys])

    def bound(
        self, rate: Sequence[float], curves: Sequence[FloatArray], ranks: Sequence[int] | None = None
    ) -> SojournTimes:
        """Bounds for models that take turns, or for single requests in order: `latency.queueing.turns`."""
        rows = [np.array([r, c.size, *c]) for r, c in zip(rate, curves, strict=True)]
        key = repr(ranks).encode() + np.concatenate(rows).tobytes()
        if key not in self.bounds:
            each = [float(c[-1]) for c in curves]
            self.bounds[key] = bound_order(rate, each, ranks) if ranks else bound_turns(rate, curves)
        return self.bounds[key]


def sojourn_times(
    rate: FloatArray,
    curves: FloatArray,
    batch: IntArray,
    servers: IntArray,
    dispersion: FloatArray,
    frontend_ms: FloatArray,
    jitter: FloatArray,
    queues: QueueCache | None = None,
) -> SojournTimes:
    """The queue of each row: `latency.queueing`, plus the time outside it and a batch's own spread."""
    if not rate.size:
        return SojournTimes(np.empty(0), np.empty(0))
    solved = (queues or QueueCache()).solve(rate, curves, batch, servers, dispersion)
    own = curves[np.arange(rate.size), batch - 1]
    load = rate / servers * own / MILLIS_PER_SECOND
    p99_ms = with_jitter(solved[:, 1], curves[:, 0], own, load, jitter)
    return SojournTimes(solved[:, 0] + frontend_ms, p99_ms + frontend_ms)


def with_jitter(
    p99: FloatArray,
    first: FloatArray,
    full: FloatArray | float,
    load: FloatArray,
    jitter: FloatArray | float,
) -> FloatArray:
    """The P99 of queues whose batches deviate from their times by `jitter`, relatively; shapes broadcast.

    `p99` is that of a queue without it, `first` and `full` are t(1) and t(b), `load` the requests that arrive
    at a server within t(b). What arrives in a batch's time has the variance load + (load jitter)^2, not load:
    a backlog, which is what a P99 has beyond t(b), grows with it, and a wait within a batch's time with its
    root. The deviation of the request's own batch is independent of that, so their squares add up: 99th
    percentiles of both together are rarer than one in a hundred (docs/results/simulator.md).
    """
    if not np.any(jitter):
        return p99
    own = np.minimum(p99, full)
    more = 1.0 + load * jitter**2
    waits = np.maximum(own - first, 0.0) * np.sqrt(more) + (p99 - own) * more
    return np.asarray(first + np.hypot(waits, _DEVIATIONS * jitter * own))


def turn_sojourn_times(
    layout: Layout, curves: Sequence[FloatArray], queues: QueueCache
) -> Iterator[tuple[list[tuple[int, int]], SojournTimes]]:
    """The columns of each partition with several models, and their waits.

    `curves` is from `estimates.layout_curves`. The waits are bounds for every order of the models
    (`bound_turns`) or, where the plan relies on the gateway's, for that one (`bound_order`). Constant
    arrivals count as Poisson ones, which come in thicker clumps; of bursty arrivals no bound is known, so
    their waits are infinite.
    """
    partitions: dict[tuple[int, int], list[int]] = {}
    columns = layout.columns()
    for n, ((i, _), queue) in enumerate(columns):
        if queue.partition.turns:
            partitions.setdefault((i, queue.index), []).append(n)
    for own in partitions.values():
        places = [columns[n][0] for n in own]
        rate = [float(layout.rate[at] / layout.client_batch[at]) for at in places]
        if any(layout.dispersion[at] > 1.0 for at in places):
            unknown = np.full(len(own), np.inf)
            yield places, SojournTimes(unknown, unknown)
            continue
        served = [columns[n][1].served for n in own]
        if columns[own[0]][1].partition.ordered:
            each = [curves[n][-1:] + layout.turnaround_ms[at] for at, n in zip(places, own, strict=True)]
            bound = queues.bound(rate, each, [model.rank or 0 for model in served])
        else:
            bound = queues.bound(rate, [curves[n] for n in own])
        frontend_ms = np.array([layout.frontend_ms[at] for at in places])
        spread_ms = max(layout.jitter[at] * curves[n][-1] for at, n in zip(places, own, strict=True))
        p99_ms = bound.p99_ms + frontend_ms + _DEVIATIONS * spread_ms
        yield places, SojournTimes(bound.mean_ms + frontend_ms, p99_ms)

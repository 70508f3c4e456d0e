"""Times and waits of every queue of a plan, and which promises they keep. Pools are judged as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.plan import Plan, PlannedGpu, Rule
from controlplane.latency.protocol import BoolArray, FloatArray
from controlplane.planning.judge.estimates import Times
from controlplane.planning.judge.layout import Layout, ServedQueue
from controlplane.planning.judge.queues import Queues, Waits, waits
from controlplane.planning.judge.turns import layout_curves, layout_times, turn_waits
from controlplane.planning.protocol import Device

SLACK = 1e-6
"""Relative: sums of floats are no violations."""

_PoolKey = tuple[str, int, tuple[tuple[str, float], ...]]


@dataclass(frozen=True, slots=True)
class Terms:
    """What promises are judged by; `quantile` is None where means count. `queues` are those solved so far."""

    rule: Rule
    quantile: float | None = None
    queues: Queues = field(default_factory=Queues)

    @staticmethod
    def of(plan: Plan, queues: Queues | None = None) -> Terms:
        """A plan's own rule and quantile."""
        quantile = plan.quantile if plan.rule is Rule.P99 else None
        return Terms(plan.rule, quantile, Queues() if queues is None else queues)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool: how many servers, and the slowest times of 1, 2, ... requests among them."""

    servers: int
    curve: FloatArray


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is expected of every queue of a layout: (GPUs, columns); waits are NaN under half-SLO.

    `pools`: the pool of the queue at (row, column); empty under half-SLO.
    """

    times: Times
    mean_ms: FloatArray
    p99_ms: FloatArray
    pools: Mapping[tuple[int, int], Pool]

    def wait_for_turns(self, layout: Layout, curves: Sequence[FloatArray], queues: Queues) -> None:
        """Fill in the waits of the columns whose partitions serve several models."""
        for places, own in turn_waits(layout, curves, queues):
            at = tuple(np.array(places).T)
            self.mean_ms[at], self.p99_ms[at] = own.mean_ms, own.p99_ms


def layouts_of(gpus: Iterable[PlannedGpu], devices: Mapping[str, Device]) -> dict[str, Layout]:
    """One layout for each GPU type, by its name."""
    by_type: dict[str, list[PlannedGpu]] = {}
    for gpu in gpus:
        by_type.setdefault(gpu.type, []).append(gpu)
    return {name: Layout.of(own, devices[name]) for name, own in by_type.items()}


def evaluate(
    layouts: Mapping[str, Layout], devices: Mapping[str, Device], terms: Terms
) -> dict[str, Evaluation]:
    """Evaluate all GPU types at once, by name: a pool may stretch over them."""
    answers: dict[str, Evaluation] = {}
    members: dict[_PoolKey, list[tuple[str, int, int]]] = {}
    slowest: dict[_PoolKey, FloatArray] = {}
    for name, layout in layouts.items():
        nothing = np.full(layout.rate.shape, np.nan)
        latency = devices[name].latency
        expected = layout_times(latency, layout, terms.rule, terms.quantile)
        answers[name] = Evaluation(expected, nothing, nothing.copy(), {})
        if terms.rule is not Rule.P99:
            continue
        curves = layout_curves(latency, layout, terms.quantile)
        for curve, ((i, j), queue) in zip(curves, layout.columns(), strict=True):
            if queue.partition.turns:
                continue
            key = _pool_key(queue)
            members.setdefault(key, []).append((name, i, j))
            # A pool of unequal servers is no slower than one of as many of the slowest.
            slowest[key] = np.maximum(slowest[key], curve) if key in slowest else curve
        answers[name].wait_for_turns(layout, curves, terms.queues)
    pools = [Pool(len(own), slowest[key]) for key, own in members.items()]
    first = [own[0] for own in members.values()]
    answer = pool_waits([(layouts[name], (i, j)) for name, i, j in first], pools, terms.queues)
    for n, own in enumerate(members.values()):
        for name, i, j in own:
            found = answers[name]
            found.mean_ms[i, j], found.p99_ms[i, j] = answer.mean_ms[n], answer.p99_ms[n]
            assert isinstance(found.pools, dict)
            found.pools[i, j] = pools[n]
    return answers


def _pool_key(queue: ServedQueue) -> _PoolKey:
    """Queues with the same key are servers of one pool: same workloads, same parts of their rates."""
    placed = tuple((w.name, w.rate_rps) for w in queue.workloads)
    return queue.served.model, queue.served.batch, placed


def pool_waits(
    servers: Sequence[tuple[Layout, tuple[int, int]]], pools: Sequence[Pool], queues: Queues
) -> Waits:
    """The waits of each pool; `servers` names one of its servers by layout, row and column."""
    batch = np.array([p.curve.size for p in pools], dtype=np.int64)
    curves = np.ones((len(pools), int(batch.max(initial=1))))
    for n, pool in enumerate(pools):
        curves[n, : batch[n]], curves[n, batch[n] :] = pool.curve, pool.curve[-1]
    count = np.array([p.servers for p in pools], dtype=np.int64)
    return waits(
        np.array([of.rate[at] / of.client_batch[at] for of, at in servers], dtype=np.float64) * count,
        curves,
        batch,
        count,
        np.array([of.dispersion[at] for of, at in servers], dtype=np.float64),
        np.array([of.frontend_ms[at] for of, at in servers]),
        np.array([of.jitter[at] for of, at in servers]),
        queues,
    )


def kept(layout: Layout, found: Evaluation, rule: Rule) -> BoolArray:
    """Where a promise is kept: boolean (GPUs, columns), True where there is no queue."""
    held = layout.rate <= found.times.capacity_rps * (1.0 + SLACK)
    if rule is Rule.P99:
        held &= found.p99_ms <= layout.slo_ms * (1.0 + SLACK)
    else:
        held &= found.times.round_ms <= layout.slo_ms / 2.0 * (1.0 + SLACK)
    return np.asarray(held | ~layout.mask, dtype=np.bool_)

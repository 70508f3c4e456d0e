"""The one judge of queues: what is expected of each, and which of them meet their SLOs.

`judge` answers with one verdict for each queue, `evaluate` with the same as arrays. `evaluate_changed` judges
GPUs on which a shadow is active.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, LatencyModel
from controlplane.latency.queueing.turns import SojournTimes
from controlplane.planning.judge.estimates import Times, layout_curves, layout_times
from controlplane.planning.judge.layout import Layout, ServedQueue
from controlplane.planning.judge.queues import QueueCache, sojourn_times, turn_sojourn_times
from controlplane.planning.protocol import Device

SLACK = 1e-6
"""Relative: sums of floats are no violations."""

_At = tuple[int, int]
"""Row and column of a queue in its layout."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What queues are judged by; `quantile` is None where means count. `queues` are those solved so far."""

    rule: Rule
    quantile: float | None = None
    queues: QueueCache = field(default_factory=QueueCache)

    @staticmethod
    def of(plan: Plan, queues: QueueCache | None = None) -> Terms:
        """A plan's own rule and quantile."""
        quantile = plan.quantile if plan.rule is Rule.P99 else None
        return Terms(plan.rule, quantile, QueueCache() if queues is None else queues)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool: how many servers, and the slowest times of 1, 2, ... requests among them."""

    servers: int
    curve: FloatArray


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """What is expected of one queue at one server, and whether all its workloads' SLOs are met.

    `slo_ms` is the strictest. `round_ms`: a full batch of each model of the partition. `mean_ms` and `p99_ms`
    are NaN under half-SLO and infinite where the queue does not settle. `pool` is the queue's, None under
    half-SLO and where models take turns.
    """

    gpu: PlannedGpu
    partition: Partition
    served: ServedModel
    workloads: tuple[Placement, ...]
    slo_ms: float
    rate_rps: float
    capacity_rps: float
    execution_ms: float
    round_ms: float
    mean_ms: float
    p99_ms: float
    meets_slo: bool
    pool: Pool | None

    @property
    def utilisation(self) -> float:
        """The rate over the capacity."""
        return self.rate_rps / self.capacity_rps


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is expected of every queue of a layout: (GPUs, columns); waits are NaN under half-SLO.

    `pools`: the pool of the queue at (row, column); empty under half-SLO.
    """

    layout: Layout
    rule: Rule
    times: Times
    mean_ms: FloatArray
    p99_ms: FloatArray
    pools: dict[_At, Pool]

    @property
    def strain(self) -> FloatArray:
        """What is expected over what is allowed: above 1 an SLO is missed; 0 where there is no queue."""
        layout, capacity = self.layout, self.times.capacity_rps
        load = np.divide(layout.rate, capacity, out=np.zeros_like(capacity), where=capacity > 0.0)
        if self.rule is Rule.P99:
            strain = np.where(load > 1.0 + SLACK, np.inf, self.p99_ms / layout.slo_ms)
        else:
            strain = np.maximum(load, self.times.round_ms / (layout.slo_ms / 2.0))
        return np.where(layout.mask, strain, 0.0)

    @property
    def meets_slo(self) -> BoolArray:
        """Where the SLOs are met: boolean (GPUs, columns), True where there is no queue."""
        return np.asarray(self.strain <= 1.0 + SLACK, dtype=np.bool_)

    def verdicts(self, chosen: BoolArray | None = None) -> Iterator[QueueVerdict]:
        """The verdict for every queue, or for the `chosen` ones, in the order of `Layout.columns`."""
        layout, met = self.layout, self.meets_slo
        for at, queue in layout.columns():
            if chosen is not None and not chosen[at]:
                continue
            yield QueueVerdict(
                layout.gpus[at[0]],
                queue.partition,
                queue.served,
                queue.workloads,
                slo_ms=float(layout.slo_ms[at]),
                rate_rps=float(layout.rate[at]),
                capacity_rps=float(self.times.capacity_rps[at]),
                execution_ms=float(self.times.execution_ms[at]),
                round_ms=float(self.times.round_ms[at]),
                mean_ms=float(self.mean_ms[at]),
                p99_ms=float(self.p99_ms[at]),
                meets_slo=bool(met[at]),
                pool=self.pools.get(at),
            )

    def pools_of(self, row: int, partition: Partition) -> list[Pool | None]:
        """The pools of the queues of a partition of GPU `row`; None under half-SLO."""
        own = enumerate(self.layout.queues[row])
        return [self.pools.get((row, j)) for j, queue in own if queue.partition is partition]


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A queue of a layout whose waits are still to be filled in, and its times of 1, 2, ... requests."""

    found: Evaluation
    at: _At
    queue: ServedQueue
    curve: FloatArray


def judge(gpus: Iterable[PlannedGpu], devices: Mapping[str, Device], terms: Terms) -> list[QueueVerdict]:
    """Judge every queue of these GPUs, those of a type together.

    Equal queues are one pool, so alternatives to each other need a call each.
    """
    return [one for found in evaluate(gpus, devices, terms).values() for one in found.verdicts()]


def evaluate(
    gpus: Iterable[PlannedGpu], devices: Mapping[str, Device], terms: Terms
) -> dict[str, Evaluation]:
    """`judge` as arrays, by GPU type. All types are judged at once: a pool may stretch over them."""
    by_type: dict[str, list[PlannedGpu]] = {}
    for gpu in gpus:
        by_type.setdefault(gpu.type, []).append(gpu)
    answers: dict[str, Evaluation] = {}
    members: dict[object, list[Unsettled]] = {}
    for name, own in by_type.items():
        answers[name], unsettled = without_pools(Layout.of(own, devices[name]), devices[name].latency, terms)
        for one in unsettled:
            members.setdefault(pool_key(one.queue), []).append(one)
    # A pool of unequal servers is no slower than one of as many of the slowest.
    pools = [Pool(len(own), np.maximum.reduce([one.curve for one in own])) for own in members.values()]
    settle(list(members.values()), pools, terms.queues)
    return answers


def evaluate_changed(
    changed: Layout,
    rows: IntArray,
    base: Evaluation,
    device: Device,
    terms: Terms,
    guest: Sequence[Pool | None] = (),
) -> Evaluation:
    """What is expected where row n is row `rows[n]` of a plan, changed; `base` is the plan unchanged.

    The other servers of a pool stay as they are in the plan. `guest`: the pools of a row's last queues, where
    these stand there in place of a server elsewhere.
    """
    found, unsettled = without_pools(changed, device.latency, terms)
    pools = []
    for one in unsettled:
        n, j = one.at
        first_guest = len(changed.queues[n]) - len(guest)
        before = guest[j - first_guest] if j >= first_guest else base.pools.get((int(rows[n]), j))
        if before is not None and before.servers > 1:
            pools.append(Pool(before.servers, np.maximum(one.curve, before.curve)))
        else:
            pools.append(Pool(1, one.curve))
    settle([[one] for one in unsettled], pools, terms.queues)
    return found


def with_guest(host: PlannedGpu, guest: Partition, percent: float, device: Device) -> Layout:
    """A GPU with another GPU's partition beside its own ones, as the last of them."""
    more = (*host.partitions, replace(guest, percent=min(percent, 100.0)))
    return Layout.of([replace(host, partitions=more)], device)


def without_pools(layout: Layout, latency: LatencyModel, terms: Terms) -> tuple[Evaluation, list[Unsettled]]:
    """The times of a layout and the waits of models that take turns; under P99 the other queues."""
    nothing = np.full(layout.rate.shape, np.nan)
    expected = layout_times(latency, layout, terms.rule, terms.quantile)
    found = Evaluation(layout, terms.rule, expected, nothing, nothing.copy(), {})
    if terms.rule is not Rule.P99 or not layout.gpus:
        return found, []
    curves = layout_curves(latency, layout, terms.quantile)
    for places, own in turn_sojourn_times(layout, curves, terms.queues):
        at = tuple(np.array(places).T)
        found.mean_ms[at], found.p99_ms[at] = own.mean_ms, own.p99_ms
    return found, [
        Unsettled(found, at, queue, curve)
        for curve, (at, queue) in zip(curves, layout.columns(), strict=True)
        if not queue.partition.turns
    ]


def pool_key(queue: ServedQueue) -> object:
    """Queues with the same key are servers of one pool: same workloads, same parts of their rates."""
    placed = tuple((w.name, w.rate_rps) for w in queue.workloads)
    return queue.served.model, queue.served.batch, placed


def settle(members: Sequence[Sequence[Unsettled]], pools: Sequence[Pool], queues: QueueCache) -> None:
    """Fill in the waits of each pool at all its servers, whose rates and arrivals are alike."""
    answer = pool_times([(own[0].found.layout, own[0].at) for own in members], pools, queues)
    for own, pool, mean_ms, p99_ms in zip(members, pools, answer.mean_ms, answer.p99_ms, strict=True):
        for one in own:
            one.found.mean_ms[one.at], one.found.p99_ms[one.at] = mean_ms, p99_ms
            one.found.pools[one.at] = pool


def pool_times(
    first: Sequence[tuple[Layout, _At]],
    pools: Sequence[Pool],
    queues: QueueCache,
    more: FloatArray | float = 1.0,
) -> SojournTimes:
    """The waits of pools, each with the queue of a server; `more`: its rate over the planned one."""
    batch = np.array([p.curve.size for p in pools], dtype=np.int64)
    curves = np.ones((len(pools), int(batch.max(initial=1))))
    for n, pool in enumerate(pools):
        curves[n, : batch[n]], curves[n, batch[n] :] = pool.curve, pool.curve[-1]
    count = np.array([p.servers for p in pools], dtype=np.int64)
    return sojourn_times(
        np.array([of.rate[at] / of.client_batch[at] for of, at in first], dtype=np.float64) * count * more,
        curves,
        batch,
        count,
        np.array([of.dispersion[at] for of, at in first], dtype=np.float64),
        np.array([of.frontend_ms[at] for of, at in first]),
        np.array([of.jitter[at] for of, at in first]),
        queues,
    )

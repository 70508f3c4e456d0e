"""GPUs of a plan as arrays, and what a latency model and a queue say of them.

A board is all GPUs of one type: one row a GPU, one column a partition. Strategies and the judge ask the same
questions of it, so that a plan is predicted the way it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.plan import Partition, PlannedGpu, Rule
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.domain.workload import Arrivals
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, LatencyModel, Slots
from controlplane.planners.protocol import Device

MEAN_QUANTILE = 0.5
"""Queues of a model whose means alone count."""
ROWS_AT_ONCE = 4096
JITTER_P99 = 2.326
"""How many deviations of a batch's own time its 99th percentile lies above the mean, for a normal."""


@dataclass(frozen=True, slots=True)
class Board:
    """One row a GPU, one column a partition; arrays of shape (GPUs, slots).

    `rate` (per second) and `slo_ms` are those of all workloads of a partition together: the sum and the
    smallest. `constant`: its arrivals are. `client_batch`: inferences in each of its requests, of which a
    batch holds whole ones. `slots` is the question to the latency model.
    """

    gpus: tuple[PlannedGpu, ...]
    slots: Slots
    rate: FloatArray
    slo_ms: FloatArray
    constant: BoolArray
    client_batch: IntArray
    frontend_ms: FloatArray
    jitter: FloatArray

    @staticmethod
    def of(gpus: Sequence[PlannedGpu], device: Device) -> Board:
        """Raises KeyError for a model the device has no profile of: check before."""
        width = max((len(g.partitions) for g in gpus), default=0)
        shape = (len(gpus), max(width, 1))
        model, batch, percent = np.zeros(shape, dtype=np.int64), np.ones(shape), np.full(shape, 100.0)
        mask, constant = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
        rate, slo = np.zeros(shape), np.full(shape, np.inf)
        client_batch = np.ones(shape, dtype=np.int64)
        index = {name: i for i, name in enumerate(device.latency.models)}
        profiles = device.profiles
        frontend = np.array([profiles[n].frontend_ms or 0.0 for n in device.latency.models])
        jitter = np.array([profiles[n].jitter or 0.0 for n in device.latency.models])
        for i, gpu in enumerate(gpus):
            for j, p in enumerate(gpu.partitions):
                served = p.models[0]
                model[i, j], batch[i, j], percent[i, j] = index[served.model], served.batch, p.percent
                mask[i, j] = True
                rate[i, j] = sum(w.rate_rps for w in p.workloads)
                slo[i, j] = min(w.slo_ms for w in p.workloads)
                client_batch[i, j] = max(w.client_batch for w in p.workloads)
                constant[i, j] = len(p.workloads) == 1 and p.workloads[0].arrivals is Arrivals.CONSTANT
        return Board(
            tuple(gpus), Slots.of(model, batch, percent, mask), rate, slo, constant, client_batch,
            frontend[model], jitter[model],
        )  # fmt: skip

    def requests(self, row: int, column: int) -> int:
        """How many requests fill a batch of that partition."""
        return max(int(self.slots.batch[row, column]) // int(self.client_batch[row, column]), 1)

    def take(self, rows: IntArray) -> Board:
        """These rows, in this order, repeated where named twice; arrays are copies."""
        return Board(
            tuple(self.gpus[i] for i in rows.tolist()), take(self.slots, rows), self.rate[rows],
            self.slo_ms[rows], self.constant[rows], self.client_batch[rows], self.frontend_ms[rows],
            self.jitter[rows],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Times:
    """What is expected of full batches with all neighbours busy: (GPUs, slots), 0 where a slot is empty."""

    execution_ms: FloatArray
    capacity_rps: FloatArray


def times(latency: LatencyModel, slots: Slots, quantile: float | None) -> Times:
    """Ask the model; `quantile` None takes its means."""
    execution, cycle = ask(latency, slots, quantile)
    safe = np.where(slots.mask, cycle, 1.0)
    return Times(execution, np.where(slots.mask, MILLIS_PER_SECOND * slots.batch / safe, 0.0))


def ask(latency: LatencyModel, slots: Slots, quantile: float | None) -> tuple[FloatArray, FloatArray]:
    """Execution and cycle in ms of any number of GPUs, in bounded memory."""
    count = slots.mask.shape[0]
    if count <= ROWS_AT_ONCE:
        answer = latency.estimate(slots, MEAN_QUANTILE if quantile is None else quantile)
        if quantile is None:
            return answer.execution_ms, answer.cycle_ms
        return answer.execution_upper_ms, answer.cycle_upper_ms
    parts = [
        ask(latency, take(slots, np.arange(i, min(i + ROWS_AT_ONCE, count))), quantile)
        for i in range(0, count, ROWS_AT_ONCE)
    ]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def take(slots: Slots, rows: IntArray) -> Slots:
    """These rows, in this order, repeated where named twice; arrays are copies."""
    return Slots(slots.model[rows], slots.batch[rows], slots.percent[rows], slots.mask[rows])


def service_curves(
    latency: LatencyModel,
    slots: Slots,
    rows: IntArray,
    columns: IntArray,
    quantile: float | None,
    client_batch: IntArray | None = None,
) -> FloatArray:
    """Times in ms of 1, 2, ... requests in a batch at (rows, columns), all neighbours with full batches.

    `client_batch` (GPUs, slots) is how many inferences a request has, by default one. Shape (n, the most
    requests in a batch); columns beyond a slot's own batch repeat its last time. Never falls along a row: a
    batch is not faster for being larger, whatever a fit says.
    """
    each = np.ones(rows.size, dtype=np.int64) if client_batch is None else client_batch[rows, columns]
    batch = np.maximum(slots.batch[rows, columns].astype(np.int64) // each, 1)
    largest = int(batch.max(initial=1))
    curves = np.empty((rows.size, largest))
    owner = np.repeat(np.arange(rows.size), batch)
    size = np.concatenate([np.arange(1, b + 1) for b in batch]) if rows.size else np.empty(0, dtype=np.int64)
    asked = take(slots, rows[owner])
    here = np.arange(owner.size)
    asked.batch[here, columns[owner]] = size * each[owner]
    execution, _ = ask(latency, asked, quantile)
    curves[owner, size - 1] = execution[here, columns[owner]]
    for k in range(1, largest):
        curves[:, k] = np.where(k < batch, np.maximum(curves[:, k], curves[:, k - 1]), curves[:, k - 1])
    return curves


@dataclass(frozen=True, slots=True)
class Waits:
    """Times of a request in ms, infinite in an overloaded queue; shape (n,)."""

    mean_ms: FloatArray
    p99_ms: FloatArray


@dataclass(slots=True)
class Queues:
    """Queues solved while one plan is made: most partitions stay as they are between questions."""

    known: dict[bytes, tuple[float, float]] = field(default_factory=dict)

    def solve(
        self, rate: FloatArray, curves: FloatArray, batch: IntArray, servers: IntArray, constant: BoolArray
    ) -> FloatArray:
        """Mean and P99 of each row's queue, (n, 2); see `latency.queueing`."""
        from controlplane.latency import queueing

        beyond = np.arange(curves.shape[1]) >= batch[:, None]
        told = np.column_stack([rate, batch, servers, constant, np.where(beyond, 0.0, curves)])
        keys = [row[: 4 + b].tobytes() for row, b in zip(told, batch.tolist(), strict=True)]
        rows = {key: n for n, key in enumerate(keys) if key not in self.known}
        if rows:
            fresh = np.array(list(rows.values()))
            arrivals = [Arrivals.CONSTANT if c else Arrivals.POISSON for c in constant[fresh].tolist()]
            solved = queueing.solve(rate[fresh], curves[fresh], batch[fresh], servers[fresh], arrivals)
            pairs = zip(solved.mean_ms.tolist(), solved.p99_ms.tolist(), strict=True)
            self.known.update(zip(rows, pairs, strict=True))
        return np.array([self.known[key] for key in keys])


def waits(
    rate: FloatArray,
    curves: FloatArray,
    batch: IntArray,
    servers: IntArray,
    constant: BoolArray,
    frontend_ms: FloatArray,
    jitter: FloatArray,
    queues: Queues | None = None,
) -> Waits:
    """The queue of each row: `latency.queueing`, plus the time outside it and a batch's own spread."""
    if not rate.size:
        return Waits(np.empty(0), np.empty(0))
    solved = (queues or Queues()).solve(rate, curves, batch, servers, constant)
    own = curves[np.arange(rate.size), batch - 1]
    return Waits(solved[:, 0] + frontend_ms, solved[:, 1] + frontend_ms + JITTER_P99 * jitter * own)


PoolKey = tuple[tuple[str, float], ...]


def pool_key(partition: Partition) -> PoolKey:
    """Partitions with the same key are servers of one pool: same workloads, same parts of their rates."""
    return (*((w.name, w.rate_rps) for w in partition.workloads), ("batch", partition.models[0].batch))


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool: how many partitions, and the slowest times of 1, 2, ... requests among them."""

    servers: int
    curve: FloatArray


@dataclass(frozen=True, slots=True)
class Loads:
    """What is expected of every partition of a board: (GPUs, slots); waits are NaN under half-SLO.

    `pools`: the queue that (row, column) serves; empty under half-SLO.
    """

    times: Times
    mean_ms: FloatArray
    p99_ms: FloatArray
    pools: Mapping[tuple[int, int], Pool]


def loads(
    boards: Mapping[str, Board], devices: Mapping[str, Device], rule: Rule, quantile: float | None,
    queues: Queues | None = None,
) -> dict[str, Loads]:  # fmt: skip
    """Answer for all boards at once: a pool may stretch over GPU types. Keys are those of `boards`."""
    answers: dict[str, Loads] = {}
    grouped: dict[PoolKey, list[tuple[str, int, int]]] = {}
    slowest: dict[PoolKey, FloatArray] = {}
    for name, board in boards.items():
        nothing = np.full(board.rate.shape, np.nan)
        asked = times(devices[name].latency, board.slots, quantile)
        answers[name] = Loads(asked, nothing, nothing.copy(), {})
        if rule is not Rule.P99:
            continue
        rows, columns = np.nonzero(board.slots.mask)
        curves = service_curves(
            devices[name].latency, board.slots, rows, columns, quantile, board.client_batch
        )
        for curve, i, j in zip(curves, rows.tolist(), columns.tolist(), strict=True):
            key = pool_key(board.gpus[i].partitions[j])
            own = curve[: board.requests(i, j)]
            grouped.setdefault(key, []).append((name, i, j))
            # A pool of unequal servers is no slower than one of as many of the slowest.
            slowest[key] = np.maximum(slowest[key], own) if key in slowest else own
    if not grouped:
        return answers
    pools = [Pool(len(members), slowest[key]) for key, members in grouped.items()]
    first = [members[0] for members in grouped.values()]
    boards_of = [boards[name] for name, _, _ in first]
    at = [(i, j) for _, i, j in first]
    answer = pool_waits(boards_of, at, pools, queues)
    for n, members in enumerate(grouped.values()):
        for name, i, j in members:
            mine = answers[name]
            mine.mean_ms[i, j], mine.p99_ms[i, j] = answer.mean_ms[n], answer.p99_ms[n]
            assert isinstance(mine.pools, dict)
            mine.pools[i, j] = pools[n]
    return answers


def pool_waits(
    boards: Sequence[Board], at: Sequence[tuple[int, int]], pools: Sequence[Pool], queues: Queues | None
) -> Waits:
    """The waits of each pool, where partition `at[n]` of `boards[n]` is one of its servers."""
    count = len(pools)
    batch = np.array([p.curve.size for p in pools], dtype=np.int64)
    curves = np.ones((count, int(batch.max(initial=1))))
    for n, pool in enumerate(pools):
        curves[n, : batch[n]], curves[n, batch[n] :] = pool.curve, pool.curve[-1]
    servers = np.array([p.servers for p in pools], dtype=np.int64)
    pairs = list(zip(boards, at, strict=True))
    return waits(
        np.array([b.rate[x] / b.client_batch[x] for b, x in pairs], dtype=np.float64) * servers,
        curves,
        batch,
        servers,
        np.array([b.constant[x] for b, x in pairs], dtype=np.bool_),
        np.array([b.frontend_ms[x] for b, x in pairs]),
        np.array([b.jitter[x] for b, x in pairs]),
        queues,
    )

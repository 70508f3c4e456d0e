"""A component as the arrays of the event loop, and what can be read from them afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.simulate import quantiles
from controlplane.simulate.kernel import State, Wiring, advance, advance_alone
from controlplane.simulate.network import Component, Conditions, jitter_table, seed_of


@dataclass(frozen=True, slots=True)
class Loop:
    """The event loop of one component. Time only goes forward."""

    wiring: Wiring
    state: State
    alone: bool
    """Nothing shares a GPU and nothing waits on purpose: the short loop does."""

    @property
    def counts(self) -> IntArray:
        """Answers per latency bin, shape (workloads, BINS)."""
        return self.state.counts

    @property
    def totals(self) -> FloatArray:
        """Requests, drops, late ones, sum and maximum of the latencies, shape (workloads, 5)."""
        return self.state.totals

    def advance(
        self, times: FloatArray, owners: IntArray, first: IntArray, stop: IntArray, until_ms: float
    ) -> None:
        """Run every event before `until_ms`; see `kernel.advance`."""
        step = advance_alone if self.alone else advance
        step(self.wiring, self.state, times, owners, first, stop, until_ms)

    def close(self, end_ms: float) -> None:
        """Account the GPUs' time up to `end_ms`, then answer what is still under way."""
        for gpu in range(self.state.mask.size):
            self.state.mask_time[gpu, self.state.mask[gpu]] += end_ms - self.state.mask_since[gpu]
        settled = self.state.mask_time.copy()
        none = np.zeros(self.state.wake.size, dtype=np.int64)
        self.advance(np.empty(0), np.empty(0, np.int64), none, none, math.inf)
        self.state.mask_time[:] = settled

    def mask_share(self, gpu: int, whole_ms: float) -> FloatArray:
        """The share of time with each set of servers busy."""
        if not self.alone:
            return np.asarray(self.state.mask_time[gpu] / whole_ms)
        here = self.wiring.server_gpu == gpu
        busy = min(float(self.state.busy[here].sum()) / whole_ms, 1.0)
        return np.array([1.0 - busy, busy])

    def mean_batch(self, server: int) -> float:
        """Requests a batch, 0 where none ran."""
        return float(self.state.served[server]) / max(1, int(self.state.batches[server]))

    def log(self) -> FloatArray:
        """The first answers: workload, arrival, latency, batch, server; shape (answers, 5)."""
        return self.state.log[: self.state.logged[0]]


def wire(part: Component, conditions: Conditions, seed: int, answers: int) -> Loop:
    """The arrays of one component, at time 0."""
    servers, queues = part.servers, part.queues
    queue_of = {s: q for q, queue in enumerate(queues) for s in queue.servers}
    executors = [s for s, server in enumerate(servers) if s in queue_of for _ in range(server.instances)]
    place = {gpu: i for i, gpu in enumerate(part.gpus)}
    masks = max([2, *(power.size for power in part.power_w)])
    width = max([1, *(s.largest for s in servers)])
    delay = np.array([max(servers[s].delay_ms for s in q.servers) for q in queues])
    instances = np.array([sum(servers[s].instances for s in q.servers) for q in queues], dtype=np.int64)
    jittered = any(s.jitter > 0 for s in servers)
    wiring = Wiring(
        exec_server=np.array(executors, dtype=np.int64),
        exec_queue=np.array([queue_of[s] for s in executors], dtype=np.int64),
        server_gpu=np.array([place[s.gpu] for s in servers], dtype=np.int64),
        server_bit=np.array([s.bit for s in servers], dtype=np.int64),
        batch=np.array([s.batch for s in servers], dtype=np.int64),
        work=_padded([s.work_ms for s in servers], width),
        extra=_padded([s.extra_ms for s in servers], width),
        pace=_padded([s.pace for s in servers], masks),
        jitter=np.array([jitter_table(s.jitter) if jittered else np.ones(1) for s in servers]),
        salt=np.array(
            [seed_of(seed, f"{s.partition}/{s.model}").generate_state(1, np.uint64)[0] for s in servers],
            dtype=np.uint64,
        ),
        delay=delay,
        preferred=np.array([min(servers[s].batch for s in q.servers) for q in queues], dtype=np.int64),
        largest=np.array([min(servers[s].largest for s in q.servers) for q in queues], dtype=np.int64),
        ahead=2 * instances,
        limit=np.full(len(queues), conditions.waiting, dtype=np.int64),
        timeout=np.full(len(queues), conditions.timeout_ms),
        slo=np.array([s.slo_ms for s in part.streams]),
    )
    most = conditions.waiting + int((2 * instances * width).max(initial=0)) + 2
    loop = Loop(wiring, _state(wiring, part, width, masks, most, answers), _alone(wiring, part))
    if loop.alone:
        loop.state.end[:] = 0.0
    return loop


def _alone(wiring: Wiring, part: Component) -> bool:
    one_each = len(wiring.exec_server) == len(part.servers) == len(part.gpus)
    return bool(len(part.queues) == 1 and one_each and not np.any(wiring.delay > 0))


def _state(wiring: Wiring, part: Component, width: int, masks: int, most: int, answers: int) -> State:
    e, s, q, g = len(wiring.exec_server), len(part.servers), len(part.queues), len(part.gpus)
    ring = 1 << (most - 1).bit_length()
    count = np.int64
    return State(
        end=np.full(e, math.inf),
        since=np.zeros(e),
        started=np.zeros(e),
        remaining=np.zeros(e),
        stamp=np.zeros(e),
        speed=np.ones(e),
        size=np.zeros(e, count),
        member=np.zeros((e, width)),
        owner=np.zeros((e, width), count),
        running=np.zeros(s, count),
        draws=np.zeros(s, np.uint64),
        mask=np.zeros(g, count),
        wanted=np.zeros(g, count),
        mask_since=np.zeros(g),
        mask_time=np.zeros((g, masks)),
        ring=np.zeros((q, ring)),
        ring_owner=np.zeros((q, ring), count),
        head=np.zeros(q, count),
        waiting=np.zeros(q, count),
        wake=np.full(q, math.inf),
        bound=np.zeros(q, count),
        payload=np.zeros((q, int(wiring.ahead.max(initial=0)) + 2), count),
        payloads=np.zeros(q, count),
        open_payload=np.zeros(q, count),
        next_arrival=np.zeros(q, count),
        counts=np.zeros((len(part.streams), quantiles.BINS), count),
        totals=np.zeros((len(part.streams), 5)),
        served=np.zeros(s, count),
        batches=np.zeros(s, count),
        busy=np.zeros(s),
        log=np.zeros((answers, 5)),
        logged=np.zeros(1, count),
    )


def _padded(rows: list[FloatArray], width: int) -> FloatArray:
    """Rows of differing length as one array; the last value of each fills up its row."""
    table = np.empty((len(rows), width))
    for i, row in enumerate(rows):
        table[i, : row.size] = row
        table[i, row.size :] = row[-1]
    return table

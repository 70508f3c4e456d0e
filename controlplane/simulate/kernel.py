"""The event loop, compiled by numba on first use and kept in its cache; imported only when one runs.

Times are in ms. A queue is what the gateway holds for the endpoints that the same servers answer; an executor
is one instance of a model in one partition. Only batch ends, arrivals that find an executor idle, and what
wakes a batcher with a delay are events; all other arrivals are admitted when the queue is looked at next, in
their order, so limits and timeouts act on them as if each had been an event.

Coupling: a running batch has `remaining` ms of work as if alone and `pace` ms of time for each of them. When
the set of busy servers on its GPU changes, its work is brought up to date and its end moved.

The batcher with a delay is that of Triton 2.51: requests collect until the preferred size is reached or the
oldest is as old as the delay, then move into a payload; at most two payloads an instance are formed ahead;
one that is not full and not yet running takes later groups in, by the same rule; one that runs is frozen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.simulate import quantiles

SHIFT, FIRST, BINS = quantiles.SHIFT, quantiles.FIRST, quantiles.BINS
LAWS = 4096
"""Entries of a jitter table, equally likely."""
REQUESTS, DROPS, LATE, SUM_MS, MAX_MS = range(5)
"""Columns of `State.totals`."""


class Wiring(NamedTuple):
    """What does not change. E executors, S servers, Q queues, G GPUs, B the largest batch, M masks."""

    exec_server: IntArray  # (E,)
    exec_queue: IntArray  # (E,)
    server_gpu: IntArray  # (S,)
    server_bit: IntArray  # (S,) its bit in its GPU's mask of busy servers
    batch: IntArray  # (S,) the largest dynamic batch
    work: FloatArray  # (S, B) ms a batch of 1.. keeps an executor, alone on the GPU
    extra: FloatArray  # (S, B) ms a request sees beyond that: overlapped loading, the front end
    pace: FloatArray  # (S, M) ms of time a ms of work takes beside this set of busy servers
    jitter: FloatArray  # (S, 1 or LAWS) factors of the work, equally likely
    salt: NDArray[np.uint64]  # (S,) seeds the draws from `jitter`
    delay: FloatArray  # (Q,) ms; 0 is the greedy batcher
    preferred: IntArray  # (Q,) the batcher's preferred size, where it has a delay
    largest: IntArray  # (Q,) what it may send once the delay is exceeded
    ahead: IntArray  # (Q,) payloads formed ahead: two an instance
    limit: IntArray  # (Q,) requests that may wait
    timeout: FloatArray  # (Q,) ms a request may wait
    slo: FloatArray  # (W,) ms


class State(NamedTuple):
    """What changes. W workloads."""

    end: FloatArray  # (E,) when its batch ends; inf while idle
    since: FloatArray  # (E,) idle since
    started: FloatArray  # (E,)
    remaining: FloatArray  # (E,)
    stamp: FloatArray  # (E,) when `remaining` was right
    speed: FloatArray  # (E,) the pace since then
    size: IntArray  # (E,) of the running batch
    member: FloatArray  # (E, B) its requests' arrivals
    owner: IntArray  # (E, B) and workloads
    running: IntArray  # (S,) busy executors
    draws: NDArray[np.uint64]  # (S,)
    mask: IntArray  # (G,) busy servers, as the paces have it
    wanted: IntArray  # (G,) and as it is after the event at hand
    mask_since: FloatArray  # (G,)
    mask_time: FloatArray  # (G, M) ms spent with each set of busy servers
    ring: FloatArray  # (Q, power of two) arrivals that wait
    ring_owner: IntArray  # (Q, power of two)
    head: IntArray  # (Q,)
    waiting: IntArray  # (Q,)
    wake: FloatArray  # (Q,) when the queue must be looked at next
    bound: IntArray  # (Q,) of those waiting, in payloads
    payload: IntArray  # (Q, P) sizes of the payloads, oldest first
    payloads: IntArray  # (Q,)
    open_payload: IntArray  # (Q,) 1 while the last payload takes more
    next_arrival: IntArray  # (Q,) index into `times`
    counts: IntArray  # (W, BINS)
    totals: FloatArray  # (W, 5)
    served: IntArray  # (S,) requests
    batches: IntArray  # (S,)
    busy: FloatArray  # (S,) ms of executor time
    log: FloatArray  # (L, 5) workload, arrival, latency, batch, server of the first L answers
    logged: IntArray  # (1,)


@njit(cache=True, inline="always")
def _factor(wiring: Wiring, state: State, server: int) -> float:
    """The next jitter factor: splitmix64 of a counter picks from the table."""
    if wiring.jitter.shape[1] == 1:
        return float(wiring.jitter[server, 0])
    state.draws[server] += np.uint64(1)
    z = wiring.salt[server] + state.draws[server] * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(wiring.jitter[server, np.int64(z >> np.uint64(52))])


@njit(cache=True, inline="always")
def _record(
    wiring: Wiring,
    state: State,
    scratch: FloatArray,
    bits: IntArray,
    workload: int,
    arrival: float,
    latency: float,
    size: int,
    server: int,
) -> None:
    scratch[0] = latency
    index = (bits[0] >> SHIFT) - FIRST
    state.counts[workload, min(max(index, 0), BINS - 1)] += 1
    state.totals[workload, SUM_MS] += latency
    if latency > wiring.slo[workload]:
        state.totals[workload, LATE] += 1.0
    if latency > state.totals[workload, MAX_MS]:
        state.totals[workload, MAX_MS] = latency
    row = state.logged[0]
    if row < state.log.shape[0]:
        state.log[row, 0] = workload
        state.log[row, 1] = arrival
        state.log[row, 2] = latency
        state.log[row, 3] = size
        state.log[row, 4] = server
        state.logged[0] = row + 1


@njit(cache=True, inline="always")
def _expire(wiring: Wiring, state: State, q: int, now: float) -> None:
    """Drop what has waited for the timeout; requests in payloads are Triton's and stay."""
    size = state.ring.shape[1] - 1
    while state.waiting[q] > state.bound[q]:
        place = (state.head[q] + state.bound[q]) & size
        if state.ring[q, place] + wiring.timeout[q] > now:
            break
        state.totals[state.ring_owner[q, place], DROPS] += 1.0
        for i in range(state.bound[q] - 1, -1, -1):
            to, source = (state.head[q] + i + 1) & size, (state.head[q] + i) & size
            state.ring[q, to] = state.ring[q, source]
            state.ring_owner[q, to] = state.ring_owner[q, source]
        state.head[q] += 1
        state.waiting[q] -= 1


@njit(cache=True, inline="always")
def _admit(
    wiring: Wiring,
    state: State,
    q: int,
    now: float,
    times: FloatArray,
    owners: IntArray,
    stop: int,
) -> None:
    """Let in every arrival up to `now`."""
    size = state.ring.shape[1] - 1
    i = state.next_arrival[q]
    while i < stop and times[i] <= now:
        owner = owners[i]
        state.totals[owner, REQUESTS] += 1.0
        if state.waiting[q] - state.bound[q] >= wiring.limit[q]:
            _expire(wiring, state, q, times[i])
        if state.waiting[q] - state.bound[q] >= wiring.limit[q]:
            state.totals[owner, DROPS] += 1.0
        else:
            place = (state.head[q] + state.waiting[q]) & size
            state.ring[q, place] = times[i]
            state.ring_owner[q, place] = owner
            state.waiting[q] += 1
        i += 1
    state.next_arrival[q] = i
    if wiring.timeout[q] < math.inf:
        _expire(wiring, state, q, now)


@njit(cache=True, inline="always")
def _idle_executor(wiring: Wiring, state: State, q: int) -> int:
    """The executor of this queue that has been idle longest; -1 where all are busy."""
    found = -1
    for e in range(state.end.size):
        idle = wiring.exec_queue[e] == q and state.size[e] == 0
        if idle and (found < 0 or state.since[e] < state.since[found]):
            found = e
    return found


@njit(cache=True, inline="always")
def _start(wiring: Wiring, state: State, q: int, e: int, size: int, now: float) -> None:
    """Executor `e` takes the `size` oldest requests of queue `q`."""
    server = wiring.exec_server[e]
    last = state.ring.shape[1] - 1
    for i in range(size):
        place = (state.head[q] + i) & last
        state.member[e, i] = state.ring[q, place]
        state.owner[e, i] = state.ring_owner[q, place]
    state.head[q] += size
    state.waiting[q] -= size
    work = wiring.work[server, size - 1] * _factor(wiring, state, server)
    gpu = wiring.server_gpu[server]
    state.wanted[gpu] |= wiring.server_bit[server]
    pace = wiring.pace[server, state.wanted[gpu]]
    state.started[e] = now
    state.remaining[e] = work
    state.stamp[e] = now
    state.speed[e] = pace
    state.end[e] = now + work * pace
    state.size[e] = size
    state.running[server] += 1
    state.batches[server] += 1
    state.served[server] += size


@njit(cache=True, inline="always")
def _finish(wiring: Wiring, state: State, e: int, now: float, scratch: FloatArray, bits: IntArray) -> None:
    server = wiring.exec_server[e]
    size = state.size[e]
    extra = wiring.extra[server, size - 1]
    for i in range(size):
        arrival = state.member[e, i]
        _record(wiring, state, scratch, bits, state.owner[e, i], arrival, now - arrival + extra, size, server)
    state.busy[server] += now - state.started[e]
    state.end[e] = math.inf
    state.since[e] = now
    state.size[e] = 0
    state.running[server] -= 1
    if state.running[server] == 0:
        state.wanted[wiring.server_gpu[server]] &= ~wiring.server_bit[server]


@njit(cache=True, inline="always")
def _look_greedy(wiring: Wiring, state: State, q: int, now: float, times: FloatArray, stop: int) -> None:
    """Delay 0: whoever is idle takes what waits, at most its batch."""
    e = _idle_executor(wiring, state, q)
    while e >= 0 and state.waiting[q] > 0:
        _start(wiring, state, q, e, min(state.waiting[q], wiring.batch[wiring.exec_server[e]]), now)
        e = _idle_executor(wiring, state, q)
    state.wake[q] = math.inf
    if e >= 0 and state.next_arrival[q] < stop:
        state.wake[q] = times[state.next_arrival[q]]


@njit(cache=True, inline="always")
def _look_delayed(wiring: Wiring, state: State, q: int, now: float, times: FloatArray, stop: int) -> None:
    """A delay above 0: see the module's docstring."""
    last = state.ring.shape[1] - 1
    timer = math.inf
    while True:
        while state.payloads[q] > 0:
            e = _idle_executor(wiring, state, q)
            if e < 0:
                break
            size = state.payload[q, 0]
            _start(wiring, state, q, e, size, now)
            state.bound[q] -= size
            state.payloads[q] -= 1
            for i in range(state.payloads[q]):
                state.payload[q, i] = state.payload[q, i + 1]
            if state.payloads[q] == 0:
                state.open_payload[q] = 0
        pending = state.waiting[q] - state.bound[q]
        if pending == 0 or (state.open_payload[q] == 0 and state.payloads[q] >= wiring.ahead[q]):
            break
        held = state.payload[q, state.payloads[q] - 1] if state.open_payload[q] else 0
        oldest = state.ring[q, (state.head[q] + state.bound[q]) & last]
        exceeded = now >= oldest + wiring.delay[q]
        if exceeded:
            size = min(pending, wiring.largest[q] - held)
        elif held + pending >= wiring.preferred[q]:
            size = wiring.preferred[q] - held
        else:
            timer = oldest + wiring.delay[q]
            break
        if not state.open_payload[q]:
            state.payload[q, state.payloads[q]] = 0
            state.payloads[q] += 1
        state.payload[q, state.payloads[q] - 1] += size
        state.bound[q] += size
        state.open_payload[q] = 0 if held + size >= wiring.preferred[q] else 1
    if state.next_arrival[q] < stop:
        timer = min(timer, times[state.next_arrival[q]])
    state.wake[q] = timer


@njit(cache=True, inline="always")
def _retime(wiring: Wiring, state: State, now: float) -> None:
    """Bring every GPU's set of busy servers up to date, and the batches that run beside a change."""
    for gpu in range(state.mask.size):
        mask = state.wanted[gpu]
        if mask == state.mask[gpu]:
            continue
        state.mask_time[gpu, state.mask[gpu]] += now - state.mask_since[gpu]
        state.mask_since[gpu] = now
        state.mask[gpu] = mask
        for e in range(state.end.size):
            server = wiring.exec_server[e]
            if state.size[e] == 0 or wiring.server_gpu[server] != gpu:
                continue
            pace = wiring.pace[server, mask]
            if pace != state.speed[e]:
                state.remaining[e] -= (now - state.stamp[e]) / state.speed[e]
                state.stamp[e] = now
                state.speed[e] = pace
                state.end[e] = now + max(state.remaining[e], 0.0) * pace


@njit(cache=True)
def advance(
    wiring: Wiring,
    state: State,
    times: FloatArray,
    owners: IntArray,
    first: IntArray,
    stop: IntArray,
    until: float,
) -> None:
    """Run every event before `until`.

    times, owners: the arrivals before `until` that were not handed in yet, and their workloads; those of
        queue q stand at [first[q], stop[q]), ascending.
    """
    scratch = np.zeros(1)
    bits = scratch.view(np.int64)
    for q in range(state.wake.size):
        state.next_arrival[q] = first[q]
        if first[q] < stop[q] and (wiring.delay[q] > 0.0 or _idle_executor(wiring, state, q) >= 0):
            state.wake[q] = min(state.wake[q], times[first[q]])
    while True:
        now, e, q = until, -1, -1
        for i in range(state.end.size):
            if state.end[i] < now:
                now, e = state.end[i], i
        for i in range(state.wake.size):
            if state.wake[i] < now:
                now, e, q = state.wake[i], -1, i
        if e >= 0:
            q = wiring.exec_queue[e]
            _finish(wiring, state, e, now, scratch, bits)
        elif q < 0:
            break
        _admit(wiring, state, q, now, times, owners, stop[q])
        if wiring.delay[q] > 0.0:
            _look_delayed(wiring, state, q, now, times, stop[q])
        else:
            _look_greedy(wiring, state, q, now, times, stop[q])
        _retime(wiring, state, now)
    for q in range(state.wake.size):
        _admit(wiring, state, q, until, times, owners, stop[q])


@njit(cache=True)
def advance_alone(
    wiring: Wiring,
    state: State,
    times: FloatArray,
    owners: IntArray,
    first: IntArray,
    stop: IntArray,
    until: float,
) -> None:
    """`advance` for one greedy queue whose executors each have a GPU to themselves: ends are known at once.

    `state.end` holds when each executor is free.
    """
    scratch = np.zeros(1)
    bits = scratch.view(np.int64)
    state.next_arrival[0] = first[0]
    last = stop[0]
    while True:
        e = 0
        for i in range(1, state.end.size):
            if state.end[i] < state.end[e]:
                e = i
        now = state.end[e]
        if state.waiting[0] == 0:
            if state.next_arrival[0] == last:
                break
            now = max(now, times[state.next_arrival[0]])
        if now >= until:
            break
        _admit(wiring, state, 0, now, times, owners, last)
        server = wiring.exec_server[e]
        size = min(state.waiting[0], wiring.batch[server])
        if size == 0:
            continue
        work = wiring.work[server, size - 1] * _factor(wiring, state, server)
        mask = state.ring.shape[1] - 1
        late = now + work + wiring.extra[server, size - 1]
        for i in range(size):
            place = (state.head[0] + i) & mask
            arrival = state.ring[0, place]
            _record(
                wiring,
                state,
                scratch,
                bits,
                state.ring_owner[0, place],
                arrival,
                late - arrival,
                size,
                server,
            )
        state.head[0] += size
        state.waiting[0] -= size
        state.end[e] = now + work
        state.busy[server] += work
        state.batches[server] += 1
        state.served[server] += size
    _admit(wiring, state, 0, until, times, owners, last)

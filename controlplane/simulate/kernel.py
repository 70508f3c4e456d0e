"""The event loop, compiled; imported only when a simulation runs.

Times are in ms. A server is one model in one partition: a queue, and an executor for each of its instances.
Events are batch ends, arrivals that find an executor idle, wake-ups of a batcher with a delay, and arrivals
at a pool, which are bound to a server at once. Other arrivals are admitted, in order, at the next event of
their queue, so limits act on them as if each had been an event.

Coupling: a running batch has `remaining` ms of work as if alone and `pace` ms of time for each of them. When
the set of busy servers on its GPU changes, its work is brought up to date and its end moved.

The batcher with a delay is that of Triton 2.51: requests collect until the preferred size is reached or the
oldest is as old as the delay, then move into a payload; at most two payloads an instance are formed ahead. It
also serves without a delay where the preferred size is no whole number of requests. An instance that fetches
a payload joins later ones that are older and fit.
Models of one partition take turns, as with `--rate-limit=execution_count`: a batch starts when none of the
partition runs, and next goes the model with the fewest batches, of equals the first. What waits gathers.

All compiled functions are in this file: numba's cache does not notice a change of another file.
"""

from __future__ import annotations

import math

import numpy as np

from controlplane.kernels import kernel
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.simulate.records import Records, State
from controlplane.simulate.result import BINS, FIRST, SHIFT


@kernel
def _factor(jitter: FloatArray, servers: Records, s: int) -> float:
    """The next jitter factor: splitmix64 of a counter picks from the table."""
    if jitter.shape[1] == 1:
        return float(jitter[s, 0])
    servers[s].draws += np.uint64(1)
    z = servers[s].salt + servers[s].draws * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(jitter[s, np.int64(z >> np.uint64(52))])


@kernel
def _leave(tallies: Records, in_flight: Records, w: int, s: int, now: float) -> None:
    """A request of workload `w` is no longer in flight at server `s`."""
    pool = tallies[w].pool
    if pool >= 0:
        in_flight[pool, s].count -= 1
        in_flight[pool, s].since = max(in_flight[pool, s].since, now)


@kernel
def _admit(
    servers: Records,
    q: int,
    ring: Records,
    tallies: Records,
    now: float,
    arrivals: Records,
) -> None:
    """Admit every arrival of the queue's own up to `now`."""
    wrap = ring.shape[1] - 1
    i, stop = servers[q].next, servers[q].stop
    waiting, head = servers[q].waiting, servers[q].head
    room = servers[q].limit + servers[q].bound
    while i < stop and arrivals[i].arrival <= now:
        w = arrivals[i].workload
        tallies[w].requests += 1
        if waiting >= room:
            tallies[w].drops += 1
        else:
            ring[q, (head + waiting) & wrap] = arrivals[i]
            waiting += 1
        i += 1
    servers[q].next = i
    servers[q].waiting = waiting


@kernel
def _expire(
    servers: Records,
    q: int,
    ring: Records,
    tallies: Records,
    in_flight: Records,
    now: float,
) -> None:
    """Drop the oldest requests that have waited too long, as Triton does where a batch starts."""
    wrap = ring.shape[1] - 1
    while servers[q].waiting > 0 and now - ring[q, servers[q].head & wrap].arrival > servers[q].drop:
        w = ring[q, servers[q].head & wrap].workload
        tallies[w].drops += 1
        _leave(tallies, in_flight, w, q, now)
        servers[q].waiting -= 1
        servers[q].head = servers[q].head + 1 if servers[q].waiting > 0 else 0


@kernel
def _fewest(pools: Records, pool: int, pool_member: IntArray, in_flight: Records) -> int:
    """Return the pool's server with the fewest requests in flight, of equals the one unchanged longest."""
    best = pool_member[pool, 0]
    for i in range(1, pools[pool].members):
        s = pool_member[pool, i]
        more = in_flight[pool, s].count - in_flight[pool, best].count
        if more < 0 or (more == 0 and in_flight[pool, s].since < in_flight[pool, best].since):
            best = s
    return int(best)


@kernel
def _idle_executor(executors: Records, servers: Records, s: int) -> int:
    """Return the executor of this server that has been idle longest; -1 where none may start a batch."""
    for other in range(servers[s].turn_first, servers[s].turn_last):
        if other != s and servers[other].running > 0:
            return -1
    found = -1
    for e in range(servers[s].first, servers[s].last):
        if executors[e].size == 0 and (found < 0 or executors[e].since < executors[found].since):
            found = e
    return found


@kernel
def _next_turn(servers: Records, ring: Records, s: int) -> int:
    """Return the server of this one's partition that goes next.

    Of those with requests, the one with the fewest batches; by an order the one whose first request is due.
    """
    best, least = -1, math.inf
    for other in range(servers[s].turn_first, servers[s].turn_last):
        if servers[other].waiting > 0:
            due = float(servers[other].batches)
            if servers[other].after >= 0.0:
                due = ring[other, servers[other].head & (ring.shape[1] - 1)].arrival + servers[other].after
            if due < least:
                best, least = other, due
    return s if best < 0 else int(best)


@kernel
def _take(servers: Records, q: int, size: int, ring: Records, member: Records, e: int) -> None:
    """Executor `e` takes the `size` oldest requests of server `q`."""
    head = servers[q].head
    for i in range(size):
        member[e, i] = ring[q, (head + i) & (ring.shape[1] - 1)]
    servers[q].waiting -= size
    # An empty ring starts at 0 again, so only as much memory is touched as requests wait at once.
    servers[q].head = head + size if servers[q].waiting > 0 else 0


@kernel
def _run(
    executors: Records,
    e: int,
    servers: Records,
    gpus: Records,
    size: int,
    now: float,
    work_ms: FloatArray,
    pace: FloatArray,
    jitter: FloatArray,
) -> None:
    """Executor `e` starts a batch of `size`."""
    s = executors[e].server
    gpu = servers[s].gpu
    gpus[gpu].wanted |= servers[s].bit
    work = work_ms[s, size - 1] * _factor(jitter, servers, s)
    executors[e].pace = pace[s, gpus[gpu].wanted]
    executors[e].remaining = work
    executors[e].stamp = now
    executors[e].end = now + work * executors[e].pace
    executors[e].size = size
    servers[s].running += 1
    servers[s].batches += 1
    servers[s].served += size


@kernel
def _stop(executors: Records, e: int, servers: Records, gpus: Records, now: float) -> None:
    """Executor `e`'s batch ends."""
    s = executors[e].server
    executors[e].end = math.inf
    executors[e].since = now
    executors[e].size = 0
    servers[s].running -= 1
    if servers[s].running == 0:
        gpus[servers[s].gpu].wanted &= ~servers[s].bit


@kernel
def _bind(
    pools: Records,
    pool: int,
    servers: Records,
    q: int,
    ring: Records,
    tallies: Records,
    in_flight: Records,
    now: float,
    arrivals: Records,
) -> None:
    """A pool's next arrival, now, goes to one of its queues."""
    one = arrivals[pools[pool].next]
    w = one.workload
    pools[pool].next += 1
    tallies[w].requests += 1
    if servers[q].waiting - servers[q].bound >= servers[q].limit:
        tallies[w].drops += 1
        return
    ring[q, (servers[q].head + servers[q].waiting) & (ring.shape[1] - 1)] = one
    servers[q].waiting += 1
    in_flight[pool, q].count += 1
    in_flight[pool, q].since = now


@kernel
def _form(servers: Records, q: int, payload: IntArray, ring: Records, now: float) -> bool:
    """Run Triton's batcher: move the requests that are due into a payload; return False once it sleeps."""
    one = servers[q]
    one.timer = math.inf
    while True:
        waiting = one.waiting - one.bound
        if waiting == 0 or one.payloads >= one.ahead:
            return False
        held = payload[q, one.payloads - 1] if one.open else 0
        pending, best, full, saturated = 0, 0, False, False
        for _ in range(waiting):
            if held + pending > 0:
                if held + pending + 1 > one.preferred and best == 0:
                    best = pending
                    saturated = True
                if held + pending + 1 > one.largest:
                    full = True
                    break
            pending += 1
            if held + pending == one.preferred:
                best = pending
        due = ring[q, (one.head + one.bound) & (ring.shape[1] - 1)].arrival + one.delay
        exceeded = pending == 0 or (one.delay > 0.0 and now >= due)
        if best > 0 and not exceeded:
            pending = best
        elif pending > 0 and (full or held + pending >= one.preferred):
            saturated = True
        elif not exceeded and one.delay > 0.0:
            one.next_preferred = one.preferred - held
            if held == 0:
                one.timer = due
                return False
        if pending > 0:
            if not one.open:
                payload[q, one.payloads] = 0
                one.payloads += 1
                one.open = 1
            payload[q, one.payloads - 1] += pending
            one.bound += pending
        if saturated:
            one.open = 0
            one.next_preferred = 0
        if pending > 0:
            return True


@kernel
def _fetch(servers: Records, q: int, payload: IntArray, ring: Records, now: float) -> int:
    """Give an idle instance the oldest payload, and those after it that are older than the delay and fit."""
    one = servers[q]
    size = 0
    while one.payloads > 0:
        next_size = payload[q, 0]
        if size > 0:
            oldest = ring[q, (one.head + size) & (ring.shape[1] - 1)].arrival
            if one.delay == 0.0 or now - oldest <= one.delay:
                break
        if one.payloads == 1:  # a payload that was considered stays closed, even where it does not fit
            one.open = 0
            one.next_preferred = 0
        if size > 0 and size + next_size > one.largest:
            break
        size += next_size
        one.payloads -= 1
        for i in range(one.payloads):
            payload[q, i] = payload[q, i + 1]
    one.bound -= size
    return size


@kernel
def _retime(
    executors: Records,
    gpus: Records,
    g: int,
    pace: FloatArray,
    mask_time: FloatArray,
    now: float,
) -> None:
    """Update a GPU's set of busy servers, and the ends of the batches that run beside the change."""
    mask = gpus[g].wanted
    if mask == gpus[g].mask:
        return
    mask_time[g, gpus[g].mask] += now - gpus[g].since
    gpus[g].since = now
    gpus[g].mask = mask
    for e in range(gpus[g].first_executor, gpus[g].last_executor):
        if executors[e].size == 0:
            continue
        new = pace[executors[e].server, mask]
        if new != executors[e].pace:
            left = executors[e].remaining - (now - executors[e].stamp) / executors[e].pace
            executors[e].remaining = max(left, 0.0)
            executors[e].stamp = now
            executors[e].pace = new
            executors[e].end = now + executors[e].remaining * new


@kernel
def _look_ahead(gpus: Records, g: int, executors: Records, servers: Records) -> None:
    """Find this GPU's next event: the end of a batch, or the wake-up of a queue."""
    nearest, e, q = math.inf, -1, -1
    for i in range(gpus[g].first_executor, gpus[g].last_executor):
        if executors[i].end < nearest:
            nearest, e = executors[i].end, i
    for i in range(gpus[g].first, gpus[g].last):
        if servers[i].wake < nearest:
            nearest, e, q = servers[i].wake, -1, i
    gpus[g].next, gpus[g].ends, gpus[g].wakes = nearest, e, q


@kernel
def _wake(servers: Records, q: int, idle: int, arrivals: Records) -> None:
    """An arrival that finds an executor idle is an event of its queue."""
    if servers[q].next < servers[q].stop and (idle >= 0 or not servers[q].greedy):
        servers[q].wake = min(servers[q].wake, arrivals[servers[q].next].arrival)


@kernel
def _next_event(
    gpus: Records, pools: Records, arrivals: Records, until: float
) -> tuple[float, int, int, int]:
    """Return the next time, and the executor that ends, the queue that wakes or the pool; the others -1."""
    now, e, q, pool = until, -1, -1, -1
    for i in range(gpus.size):
        if gpus[i].next < now:
            now, e, q = gpus[i].next, gpus[i].ends, gpus[i].wakes
    for i in range(pools.size):
        if pools[i].next < pools[i].stop and arrivals[pools[i].next].arrival < now:
            now, e, q, pool = arrivals[pools[i].next].arrival, -1, -1, i
    return now, e, q, pool


@kernel
def _count(tallies: Records, counts: IntArray, w: int, latency: float, bits: int) -> None:
    """A request of workload `w` was answered; `bits` are those of its latency."""
    counts[w, min(max((bits >> SHIFT) - FIRST, 0), BINS - 1)] += 1
    tallies[w].sum_ms += latency
    tallies[w].late += latency > tallies[w].slo
    tallies[w].max_ms = max(tallies[w].max_ms, latency)


@kernel
def advance(state: State, logged: int, arrivals: Records, until: float) -> int:
    """Run every event before `until`; return the number of logged answers.

    arrivals: the new ones before `until`; those of a queue or a pool are at its [next, stop), ascending.
    """
    # Arrays one by one: a tuple that is passed on would count its references at every event.
    executors, servers, gpus, pools, pool_member, in_flight, tallies = state[:7]
    member, ring, payload = state[7:10]
    work_ms, extra_ms, pace, jitter, mask_time, counts, log = state[10:]
    scratch = np.zeros(1)
    bits = scratch.view(np.int64)
    for q in range(servers.size):
        _wake(servers, q, _idle_executor(executors, servers, q), arrivals)
    for g in range(gpus.size):
        _look_ahead(gpus, g, executors, servers)
    while True:
        now, e, q, pool = _next_event(gpus, pools, arrivals, until)
        if max(e, q, pool) < 0:
            break
        if pool >= 0:
            q = _fewest(pools, pool, pool_member, in_flight)
        if e >= 0:
            q, size = executors[e].server, executors[e].size
            for i in range(size):
                w, arrival = member[e, i].workload, member[e, i].arrival
                latency = now - arrival + extra_ms[q, size - 1]
                scratch[0] = latency
                _count(tallies, counts, w, latency, bits[0])
                _leave(tallies, in_flight, w, q, now)
                if logged < log.shape[0]:
                    log[logged, 0], log[logged, 1], log[logged, 2] = w, arrival, latency
                    log[logged, 3], log[logged, 4] = size, q
                    logged += 1
            _stop(executors, e, servers, gpus, now)
        for s in range(servers[q].turn_first, servers[q].turn_last):
            _admit(servers, s, ring, tallies, now, arrivals)
        if pool >= 0:
            _bind(pools, pool, servers, q, ring, tallies, in_flight, now, arrivals)
        loose = servers[q].waiting - servers[q].bound
        room = servers[q].payloads < servers[q].ahead
        awake = e >= 0 or now >= servers[q].timer or (room and loose >= servers[q].next_preferred)
        while True:
            q = _next_turn(servers, ring, q)
            idle = _idle_executor(executors, servers, q)
            if servers[q].greedy:
                if idle < 0 or servers[q].waiting == 0:
                    break
                _expire(servers, q, ring, tallies, in_flight, now)
                if servers[q].waiting == 0:
                    continue
                size = min(servers[q].waiting, servers[q].batch)
            elif idle >= 0 and servers[q].payloads > 0:
                size = _fetch(servers, q, payload, ring, now)
                awake = True
            elif awake and _form(servers, q, payload, ring, now):
                continue
            else:
                break
            _take(servers, q, size, ring, member, idle)
            _run(executors, idle, servers, gpus, size, now, work_ms, pace, jitter)
        for s in range(servers[q].turn_first, servers[q].turn_last):
            servers[s].wake = servers[s].timer
            _wake(servers, s, idle, arrivals)
        g = servers[q].gpu
        _retime(executors, gpus, g, pace, mask_time, now)
        _look_ahead(gpus, g, executors, servers)
    for q in range(servers.size):
        _admit(servers, q, ring, tallies, until, arrivals)
    return logged

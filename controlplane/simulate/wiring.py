"""A component as the arrays of the event loop, and the readings from them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.simulate import records
from controlplane.simulate.network import JITTER_ENTRIES, Component, Conditions, jitter_table, seed_of
from controlplane.simulate.result import BINS


class Loop:
    """The event loop of one component, from time 0 on; it logs the first `answers` requests.

    state: all that it reads and writes. logged: the number of requests in `state.log`.
    """

    def __init__(self, part: Component, conditions: Conditions, seed: int, answers: int) -> None:
        servers, streams = part.servers, part.streams
        masks = max([2, *(power.size for power in part.power_w)])
        width = max([1, *(s.largest for s in servers)])
        ahead = 2 * max([0, *(s.instances for s in servers)])
        self._routes = [
            (d, route.servers[0]) for d, route in enumerate(part.routes) if len(route.servers) == 1
        ]
        shared = [(d, route) for d, route in enumerate(part.routes) if len(route.servers) > 1]
        self._pool_routes = [d for d, _ in shared]
        pools = _made(records.POOL, len(shared), members=[len(route.servers) for _, route in shared])
        pool_member = np.zeros((len(shared), max([1, *pools["members"]])), np.int64)
        tallies = _made(records.TALLY, len(streams), slo=[s.slo_ms for s in streams], pool=-1)
        for p, (_, route) in enumerate(shared):
            pool_member[p, : len(route.servers)] = route.servers
            tallies["pool"][list(route.streams)] = p
        entries = JITTER_ENTRIES if any(s.jitter > 0 for s in servers) else 1
        ring = 1 << (conditions.waiting + ahead * width + 1).bit_length()
        known = _servers(part, conditions, seed)
        executor_of = np.repeat(np.arange(len(servers)), [s.instances for s in servers])
        executors = _made(records.EXECUTOR, executor_of.size, server=executor_of, end=math.inf, pace=1.0)
        self.logged = 0
        self.state = records.State(
            executors=executors,
            servers=known,
            gpus=_gpus(part, known),
            pools=pools,
            pool_member=pool_member,
            in_flight=np.zeros((len(shared), len(servers)), records.IN_FLIGHT),
            tallies=tallies,
            member=np.zeros((executors.size, width), records.REQUEST),
            ring=np.zeros((len(servers), ring), records.REQUEST),
            payload=np.zeros((len(servers), ahead + 2), np.int64),
            work_ms=_padded([s.work_ms for s in servers], width),
            extra_ms=_padded([s.extra_ms for s in servers], width),
            pace=_padded([s.pace for s in servers], masks),
            jitter=np.array([jitter_table(s.jitter)[:entries] for s in servers]).reshape(-1, entries),
            mask_time=np.zeros((len(part.gpus), masks)),
            counts=np.zeros((len(streams), BINS), np.int64),
            log=np.zeros((answers, 5)),
        )

    def advance(self, arrivals: records.Records, bounds: IntArray, until_ms: float) -> None:
        """Run every event before `until_ms`.

        arrivals: all new ones before it, `records.REQUEST`; those of route d are at
        [bounds[d], bounds[d + 1]), ascending.
        """
        # Imports numba, which a command that does not simulate need not wait for.
        from controlplane.simulate import kernel

        servers, pools = self.state.servers, self.state.pools
        servers["next"] = servers["stop"] = 0
        for route, server in self._routes:
            servers[server]["next"], servers[server]["stop"] = bounds[route], bounds[route + 1]
        pools["next"], pools["stop"] = bounds[self._pool_routes], bounds[1:][self._pool_routes]
        self.logged = kernel.advance(self.state, self.logged, arrivals, until_ms)

    def close(self, end_ms: float) -> None:
        """Account the GPUs' time up to `end_ms`, then answer the requests still in flight."""
        mask_time = self.state.mask_time
        for gpu, now in enumerate(self.state.gpus):
            mask_time[gpu, now["mask"]] += end_ms - now["since"]
        settled = mask_time.copy()
        none = np.zeros(len(self._routes) + len(self._pool_routes) + 1, dtype=np.int64)
        self.advance(np.empty(0, records.REQUEST), none, math.inf)
        mask_time[:] = settled


def _made(kind: np.dtype[np.void], count: int, **fields: ArrayLike) -> records.Records:
    """Return so many records with these fields, the others 0."""
    made = np.zeros(count, kind)
    for name, values in fields.items():
        made[name] = values
    return made


def _servers(part: Component, conditions: Conditions, seed: int) -> records.Records:
    servers, turns = part.servers, part.turns()
    place = {gpu: i for i, gpu in enumerate(part.gpus)}
    last = np.cumsum([s.instances for s in servers], dtype=np.int64)
    return _made(
        records.SERVER,
        len(servers),
        gpu=[place[s.gpu] for s in servers],
        bit=[s.bit for s in servers],
        first=last - [s.instances for s in servers],
        last=last,
        turn_first=[own.start for own in turns],
        turn_last=[own.stop for own in turns],
        after=[-1.0 if s.after_ms is None else s.after_ms for s in servers],
        batch=[s.batch for s in servers],
        salt=[seed_of(seed, f"{s.partition}/{s.model}").generate_state(1, np.uint64)[0] for s in servers],
        greedy=[s.greedy for s in servers],
        delay=[s.delay_ms for s in servers],
        preferred=[s.preferred for s in servers],
        largest=[s.largest for s in servers],
        ahead=[2 * s.instances for s in servers],
        limit=conditions.waiting,
        drop=[s.drop_ms for s in servers],
        wake=math.inf,
        timer=math.inf,
    )


def _gpus(part: Component, servers: records.Records) -> records.Records:
    last = np.cumsum(np.bincount(servers["gpu"], minlength=len(part.gpus)))
    first = np.append(0, last[:-1])
    edges = np.append(0, servers["last"])
    return _made(
        records.GPU,
        len(part.gpus),
        first=first,
        last=last,
        first_executor=edges[first],
        last_executor=edges[last],
    )


def _padded(rows: list[FloatArray], width: int) -> FloatArray:
    """Return rows of differing length as one array, padded with the last value of each."""
    table = np.empty((len(rows), width))
    for i, row in enumerate(rows):
        table[i, : row.size] = row
        table[i, row.size :] = row[-1]
    return table

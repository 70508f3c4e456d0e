"""The simulator's event loop, whose servers and routes change between two windows of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.simulate.network import Component, Conditions, Server
from controlplane.simulate.wiring import Loop

MOST_ANSWERS = 1 << 16
"""Between two looks of the guard."""


class LiveLoop(Loop):
    """`Loop` with changes; a queue and its executors are known by their number in the component."""

    def __init__(self, part: Component, conditions: Conditions, seed: int) -> None:
        super().__init__(part, conditions, seed, MOST_ANSWERS)
        self._limit = conditions.waiting

    def retime(self, servers: Mapping[int, Server]) -> None:
        """Give these queues the times of other shares; a batch that runs keeps the work that it has."""
        for number, server in servers.items():
            for table, row in (
                (self._state.work_ms, server.work_ms),
                (self._state.extra_ms, server.extra_ms),
                (self._state.pace, server.pace),
            ):
                table[number, : row.size] = row
                table[number, row.size :] = row[-1]

    def lead(self, route: int, queues: Sequence[int]) -> None:
        """Send the new requests of a route to these queues."""
        if route in self._pool_routes:
            pool = self._pool_routes.index(route)
            self._state.pools["members"][pool] = len(queues)
            self._state.pool_member[pool, : len(queues)] = queues
        else:
            self._routes = [(r, queues[0] if r == route else q) for r, q in self._routes]

    def admit(self, queue: int, *, open_: bool) -> None:
        """Let a queue take requests, or refuse every one."""
        self._state.queues["limit"][queue] = self._limit if open_ else 0

    def held(self, queue: int) -> int:
        """Return the requests that wait or run."""
        first, last = self._state.servers["first"][queue], self._state.servers["last"][queue]
        return int(self._state.queues["waiting"][queue] + self._state.executors["size"][first:last].sum())

    def answered(self) -> FloatArray:
        """Return the answers since the call before: workload, arrival, latency, batch, queue."""
        if self._logged == MOST_ANSWERS:
            raise InputError(
                f"{MOST_ANSWERS} answers between two looks are too many to simulate", field="--guard"
            )
        rows = self._state.log[: self._logged].copy()
        self._logged = 0
        return rows

    def hand_over(self, source: int, target: int | None, now_ms: float) -> None:
        """Send what a queue holds to another one, with the arrivals it had; without a target it is lost."""
        arrived, owners = self._cleared(source)
        self._count_in_flight(source, owners, -1, now_ms)
        room = 0 if target is None else self._limit - int(self._state.queues["waiting"][target])
        np.add.at(self.tallies["drops"], owners[room:], 1)
        if target is None:
            return
        arrived, owners = arrived[:room], owners[:room]
        self._count_in_flight(target, owners, 1, now_ms)
        state, queue = self._state, self._state.queues[target]
        places = (int(queue["head"] + queue["waiting"]) + np.arange(arrived.size)) & (state.ring.shape[1] - 1)
        state.ring[target, places], state.ring_owner[target, places] = arrived, owners
        queue["waiting"] += arrived.size
        queue["wake"] = min(float(queue["wake"]), now_ms)

    def _cleared(self, queue: int) -> tuple[FloatArray, IntArray]:
        """Empty a queue and end its batches; return the arrivals and workloads, oldest first."""
        state, one = self._state, self._state.queues
        wrap = state.ring.shape[1] - 1
        places = (int(one["head"][queue]) + np.arange(int(one["waiting"][queue]))) & wrap
        times, owners = [state.ring[queue, places]], [state.ring_owner[queue, places]]
        for e in range(int(state.servers["first"][queue]), int(state.servers["last"][queue])):
            size = int(state.executors["size"][e])
            times.append(state.member[e, :size].copy())
            owners.append(state.owner[e, :size].copy())
            state.executors["size"][e], state.executors["end"][e] = 0, math.inf
        state.servers["running"][queue] = 0
        state.gpus["wanted"][state.servers["gpu"][queue]] &= ~state.servers["bit"][queue]
        for name in ("head", "waiting", "bound", "payloads", "open", "next_preferred"):
            one[name][queue] = 0
        one["wake"][queue] = one["timer"][queue] = math.inf
        arrived, owner = np.concatenate(times), np.concatenate(owners)
        order = np.argsort(arrived, kind="stable")
        return arrived[order], owner[order]

    def _count_in_flight(self, queue: int, owners: IntArray, sign: int, now_ms: float) -> None:
        pools = self.tallies["pool"][owners]
        for pool in np.unique(pools[pools >= 0]):
            self._state.in_flight["count"][pool, queue] += sign * int((pools == pool).sum())
            self._state.in_flight["since"][pool, queue] = now_ms

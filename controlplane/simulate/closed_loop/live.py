"""The simulator's event loop, whose servers and routes change between two windows of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from controlplane.domain.errors import InputError
from controlplane.latency.protocol import FloatArray
from controlplane.simulate.network import Component, Conditions, Server
from controlplane.simulate.records import Records
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
                (self.state.work_ms, server.work_ms),
                (self.state.extra_ms, server.extra_ms),
                (self.state.pace, server.pace),
            ):
                table[number, : row.size] = row
                table[number, row.size :] = row[-1]

    def lead(self, route: int, queues: Sequence[int]) -> None:
        """Send the new requests of a route to these queues."""
        if route in self._pool_routes:
            pool = self._pool_routes.index(route)
            self.state.pools["members"][pool] = len(queues)
            self.state.pool_member[pool, : len(queues)] = queues
        else:
            self._routes = [(r, queues[0] if r == route else q) for r, q in self._routes]

    def admit(self, queue: int, *, open_: bool) -> None:
        """Let a queue take requests, or refuse every one."""
        self.state.servers["limit"][queue] = self._limit if open_ else 0

    def held(self, queue: int) -> int:
        """Return the requests that wait or run."""
        one = self.state.servers[queue]
        return int(one["waiting"] + self.state.executors["size"][one["first"] : one["last"]].sum())

    def answered(self) -> FloatArray:
        """Return the answers since the call before: workload, arrival, latency, batch, queue."""
        if self.logged == MOST_ANSWERS:
            raise InputError(
                f"{MOST_ANSWERS} answers between two looks are too many to simulate", field="--guard"
            )
        rows = self.state.log[: self.logged].copy()
        self.logged = 0
        return rows

    def hand_over(self, source: int, target: int | None, now_ms: float) -> None:
        """Send what a queue holds to another one, with the arrivals it had; without a target it is lost."""
        requests = self._cleared(source)
        self._count_in_flight(source, requests, -1, now_ms)
        if target is None:
            np.add.at(self.state.tallies["drops"], requests["workload"], 1)
            return
        one = self.state.servers[target]
        room = self._limit - int(one["waiting"])
        np.add.at(self.state.tallies["drops"], requests["workload"][room:], 1)
        taken, ring = requests[:room], self.state.ring
        self._count_in_flight(target, taken, 1, now_ms)
        ring[target, (int(one["head"] + one["waiting"]) + np.arange(taken.size)) & (ring.shape[1] - 1)] = (
            taken
        )
        one["waiting"] += taken.size
        one["wake"] = min(float(one["wake"]), now_ms)

    def _cleared(self, queue: int) -> Records:
        """Empty a queue and end its batches; return their requests, oldest first."""
        state, one = self.state, self.state.servers[queue]
        places = (int(one["head"]) + np.arange(int(one["waiting"]))) & (state.ring.shape[1] - 1)
        requests = [state.ring[queue, places]]
        for e in range(int(one["first"]), int(one["last"])):
            requests.append(state.member[e, : int(state.executors["size"][e])].copy())
            state.executors["size"][e], state.executors["end"][e] = 0, math.inf
        state.gpus["wanted"][one["gpu"]] &= ~one["bit"]
        for name in ("running", "head", "waiting", "bound", "payloads", "open", "next_preferred"):
            one[name] = 0
        one["wake"] = one["timer"] = math.inf
        together = np.concatenate(requests)
        oldest_first: Records = together[np.argsort(together["arrival"], kind="stable")]
        return oldest_first

    def _count_in_flight(self, queue: int, requests: Records, sign: int, now_ms: float) -> None:
        pools = self.state.tallies["pool"][requests["workload"]]
        for pool in np.unique(pools[pools >= 0]):
            self.state.in_flight["count"][pool, queue] += sign * int((pools == pool).sum())
            self.state.in_flight["since"][pool, queue] = now_ms

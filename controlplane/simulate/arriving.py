"""The arrivals of a component's workloads, window by window."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from controlplane.latency.protocol import FloatArray, IntArray
from controlplane.simulate.arrivals import ArrivalStream, Demand, Trace
from controlplane.simulate.network import Component, seed_of


class Arriving:
    """A stream of arrivals for each workload; those without a demand follow the plan's rate."""

    def __init__(self, part: Component, demands: Mapping[str, Demand | Trace], seed: int) -> None:
        self._routes = part.routes
        self._streams = [
            ArrivalStream(
                demands.get(s.name, Demand.of(s.placement.arrivals, s.rate_rps, s.placement.dispersion)),
                np.random.default_rng(seed_of(seed, s.name)),
            )
            for s in part.streams
        ]

    def window(self, until_ms: float) -> tuple[FloatArray, IntArray, IntArray]:
        """Return all arrivals before `until_ms`, their workloads, and the bounds of each route's part."""
        times: list[FloatArray] = []
        owners: list[IntArray] = []
        bounds = [0]
        for route in self._routes:
            some = [self._streams[s].until(until_ms) for s in route.streams]
            owner = [np.full(t.size, s, dtype=np.int64) for t, s in zip(some, route.streams, strict=True)]
            if len(some) == 1:
                times.append(some[0])
                owners.append(owner[0])
            else:
                together = np.concatenate(some)
                order = np.argsort(together, kind="stable")
                times.append(together[order])
                owners.append(np.concatenate(owner)[order])
            bounds.append(bounds[-1] + times[-1].size)
        edges = np.array(bounds, dtype=np.int64)
        if len(times) == 1:
            return times[0], owners[0], edges
        whole = np.concatenate(times) if times else np.empty(0)
        return whole, np.concatenate(owners) if owners else np.empty(0, np.int64), edges

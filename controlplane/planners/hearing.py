"""What the exact queue says of items where they stand, and how that corrects the tables a search runs on.

GPUs that did not change are not asked again, and no queue is solved twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planners import waiting
from controlplane.planners.board import JITTER_P99, Queues, service_curves, times, waits
from controlplane.planners.growth import padded
from controlplane.planners.menu import POOL_CARE, Correction, Item, Menu
from controlplane.planners.packing import Packing
from controlplane.planners.standby import SLACK
from controlplane.planners.verify import LARGEST_BATCH

CARE = 0.999
"""Times what the exact queue says an item tolerates: neighbours may still change a little."""
OVERLOADED = 0.97
"""The same where the queue does not settle and says nothing."""
BARELY = 0.005
"""A slowdown below this is none: what differs is the table's own error."""
MOST_EXCESS = 20.0
"""Neighbours' effect on a request is taken as at most this many times that on a full batch."""


@dataclass(frozen=True, slots=True)
class Said:
    """The items whose promise breaks; those and their pools (items,); how queue and table differ."""

    refused: frozenset[int]
    refusing: BoolArray
    correction: Correction


@dataclass(slots=True)
class Hearing:
    """Everything heard so far; arrays have one entry an item, where it stood when last asked.

    `pool` numbers queues: servers of one pool have the same. `heard` holds the GPUs, as (items, shares), that
    the arrays speak of.
    """

    menus: Mapping[str, Menu]
    quantile: float | None
    queues: Queues
    pool: IntArray
    rate: FloatArray
    slo_ms: FloatArray
    servers: IntArray
    constant: BoolArray
    model: IntArray
    share: IntArray
    batch: IntArray
    execution: FloatArray
    capacity: FloatArray
    curve: FloatArray
    heard: dict[str, set[tuple[tuple[int, ...], tuple[int, ...]]]] = field(default_factory=dict)

    @staticmethod
    def of(
        items: Sequence[Item], menus: Mapping[str, Menu], quantile: float | None, queues: Queues
    ) -> Hearing:
        """Nothing is heard yet."""
        number: dict[int, int] = {}
        pool = [number.setdefault(id(i), len(number)) for i in items]
        count = len(items)
        return Hearing(
            menus, quantile, queues, np.array(pool, dtype=np.int64),
            np.array([i.rate_rps for i in items], dtype=np.float64),
            np.array([i.slo_ms for i in items], dtype=np.float64),
            np.array([i.servers for i in items], dtype=np.int64),
            np.array([i.constant for i in items], dtype=np.bool_),
            np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64),
            np.ones(count, dtype=np.int64), np.zeros(count), np.zeros(count), np.ones((count, LARGEST_BATCH)),
        )  # fmt: skip

    def ask(self, packings: Mapping[str, Packing], correction: Correction) -> Said:
        """What the judge's own arithmetic says of every item where it stands."""
        full, first, outside, jitter = (np.zeros(self.rate.size) for _ in range(4))
        placed: list[int] = []
        for name, packing in packings.items():
            now = np.array([i for group in packing.groups for i in group], dtype=np.int64)
            if not now.size:
                continue
            placed += now.tolist()
            self._hear(name, packing)
            menu, profiles = self.menus[name], self.menus[name].device.profiles
            told = [profiles[n] for n in menu.device.latency.models]
            alone = menu.alone.execution
            full[now] = alone[self.model[now], self.batch[now] - 1, self.share[now]]
            first[now] = alone[self.model[now], 0, self.share[now]]
            outside[now] = np.array([p.frontend_ms or 0.0 for p in told])[self.model[now]]
            jitter[now] = np.array([p.jitter or 0.0 for p in told])[self.model[now]]
        who = np.array(sorted(placed), dtype=np.int64)
        p99 = self._p99(who, outside, jitter)
        kept = (self.rate[who] <= self.capacity[who] * (1.0 + SLACK)) & (
            p99 <= self.slo_ms[who] * (1.0 + SLACK)
        )
        amounts_to = waiting.tolerance(
            self.rate[who], np.where(np.isfinite(p99), p99 - outside[who], 1.0), full[who, None],
            first[who, None], self.servers[who], np.searchsorted(waiting.BATCHES, self.batch[who]),
            JITTER_P99 * jitter[who],
        )[:, 0]  # fmt: skip
        amounts_to = np.where(self.servers[who] > 1, amounts_to * POOL_CARE, amounts_to)
        told_now = _told(correction, who, p99, self.execution[who] / full[who], amounts_to)
        return self._together(who[~kept], who, told_now)

    def _hear(self, name: str, packing: Packing) -> None:
        """Ask the latency model about the GPUs of a type that have changed."""
        keys = {
            (tuple(g), tuple(s)): n
            for n, (g, s) in enumerate(zip(packing.groups, packing.shares, strict=True))
        }
        known = self.heard.get(name, set())
        fresh = [n for key, n in keys.items() if key not in known]
        self.heard[name] = set(keys)
        if not fresh:
            return
        # The order in which a plan lists them: sums of floats depend on it.
        pairs = [
            sorted(zip(packing.groups[n], packing.shares[n], strict=True), key=lambda p: (-p[1], p[0]))
            for n in fresh
        ]
        item, share = padded([[i for i, _ in p] for p in pairs]), padded([[s for _, s in p] for p in pairs])
        menu, here = self.menus[name], item >= 0
        slots = Slots(
            np.where(here, menu.model[item], 0),
            np.where(here, menu.batch[item, share], 1).astype(np.float64),
            np.where(here, menu.percents[share], 100.0),
            here,
        )
        expected = times(menu.device.latency, slots, self.quantile)
        rows, columns = np.nonzero(here)
        who = item[rows, columns]
        self.model[who], self.share[who] = slots.model[rows, columns], share[rows, columns]
        self.batch[who] = slots.batch[rows, columns].astype(np.int64)
        self.execution[who] = expected.execution_ms[rows, columns]
        self.capacity[who] = expected.capacity_rps[rows, columns]
        curves = service_curves(menu.device.latency, slots, rows, columns, self.quantile)
        self.curve[who] = curves[:, -1:]
        self.curve[who, : curves.shape[1]] = curves

    def _p99(self, who: IntArray, outside: FloatArray, jitter: FloatArray) -> FloatArray:
        """Of each of these items; a pool of unequal servers is taken as as many of the slowest."""
        key = self.pool[who] * (LARGEST_BATCH + 1) + self.batch[who]
        _, one, queue, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        slowest = np.zeros((one.size, LARGEST_BATCH))
        np.maximum.at(slowest, queue, self.curve[who])
        lead = who[one]
        answer = waits(
            self.rate[lead] * count, slowest, self.batch[lead], count, self.constant[lead], outside[lead],
            jitter[lead], self.queues,
        )  # fmt: skip
        p99: FloatArray = answer.p99_ms[queue]
        return p99

    def _together(self, refused: IntArray, who: IntArray, told: Correction) -> Said:
        """A pool stands or falls as one."""
        count = int(self.pool.max(initial=0)) + 1
        least, most = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(least, self.pool[who], told.scale[who])
        np.maximum.at(most, self.pool[who], told.excess[who])
        scale, excess = told.scale.copy(), told.excess.copy()
        scale[who], excess[who] = least[self.pool[who]], most[self.pool[who]]
        bad = np.isin(self.pool, self.pool[refused])
        return Said(frozenset(refused.tolist()), bad, Correction(scale, excess))


def _told(
    now: Correction, who: IntArray, p99: FloatArray, slowdown: FloatArray, amounts_to: FloatArray
) -> Correction:
    """Scale and excess by the exact P99: `amounts_to` is the slowdown at which the table would give it."""
    scale, excess = now.scale.copy(), now.excess.copy()
    settles, barely = np.isfinite(p99), slowdown < 1.0 + BARELY
    beside = (amounts_to * now.scale[who] / CARE - 1.0) / np.where(barely, 1.0, slowdown - 1.0)
    scale[who] = np.where(
        settles, np.where(barely, CARE * slowdown / amounts_to, now.scale[who]), now.scale[who] * OVERLOADED
    )
    excess[who] = np.where(
        settles, np.where(barely, 1.0, np.clip(beside, 1.0, MOST_EXCESS)), 2.0
    )  # fmt: skip
    return Correction(scale, excess)

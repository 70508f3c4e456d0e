"""The exact queue's word on the contents of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, Slots
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.exact.gpu_contents import Contents
from controlplane.planning.judge.estimates import service_curves
from controlplane.planning.judge.evaluate import SLACK
from controlplane.planning.judge.queues import waits


@dataclass(slots=True)
class QueueJudge:
    """Asks the exact queue which sets hold, and at what smallest shares.

    A queue with longer service waits longer: what is known of one curve t(k) answers for all above or below
    it, so most questions never reach the queue. A pool's servers are each asked as if all were like it.
    """

    table: ToleranceTable
    items: Sequence[Item]
    known: dict[tuple[int, int], tuple[list[FloatArray], list[FloatArray]]] = field(default_factory=dict)

    def settle(self, asked: Contents) -> tuple[BoolArray, Contents]:
        """Which of these sets hold, and the smallest shares at which they do.

        The shares of `asked` are right or too small: they rise where a P99 is missed.
        """
        table, present = self.table, asked.item >= 0
        percents, latency = table.gpu_type.percents, table.gpu_type.device.latency
        item, share = np.where(present, asked.item, 0), np.where(present, asked.share, 0)
        last = percents.size - 1
        servers = np.array([i.servers for i in self.items])
        fits = np.ones(item.shape[0], dtype=np.bool_)
        live = np.arange(item.shape[0])
        while live.size:
            own, here, at = item[live], present[live], share[live]
            slots = Slots(
                model=np.where(here, table.model[own], 0),
                batch=np.where(here, table.batch[own, at], 1).astype(np.float64),
                percent=np.where(here, percents[at], 100.0),
                mask=here,
            )
            rows, columns = np.nonzero(here)
            its, batch = own[rows, columns], slots.batch[rows, columns].astype(np.int64)
            curves = service_curves(latency, slots, rows, columns, table.gpu_type.quantile)
            pools = servers[its] > 1
            late = np.zeros(its.size, dtype=np.bool_)
            late[~pools] = ~self._held(its[~pools], curves[~pools], batch[~pools])
            # A pool's queue answers slowly: it is asked where nothing else rises any more.
            pools &= ~np.isin(rows, rows[late])
            late[pools] = ~self._held(its[pools], curves[pools], batch[pools])
            rows, columns = live[rows[late]], columns[late]
            fits[rows[share[rows, columns] == last]] = False
            share[rows, columns] = np.minimum(share[rows, columns] + 1, last)
            fits &= np.where(present, percents[share], 0.0).sum(axis=1) <= 100.0 + 1e-9
            changed = np.unique(rows)
            live = changed[fits[changed]]
        return fits, Contents(asked.item, np.where(present, share, -1))

    def _held(self, items: IntArray, curves: FloatArray, batch: IntArray) -> BoolArray:
        held = np.zeros(items.size, dtype=np.bool_)
        own = [(i, curve[:b]) for i, curve, b in zip(items.tolist(), curves, batch.tolist(), strict=True)]
        pending = list(range(items.size))
        while True:
            unknown: dict[tuple[int, int], list[int]] = {}
            for n in pending:
                answer = self._known(*own[n])
                if answer is None:
                    unknown.setdefault((own[n][0], own[n][1].size), []).append(n)
                else:
                    held[n] = answer
            if not unknown:
                return held
            pending = [n for group in unknown.values() for n in group]
            # The middle one of a kind answers for half of it, whatever the answer.
            asked = [
                sorted(group, key=lambda n: float(own[n][1].sum()))[len(group) // 2]
                for group in unknown.values()
            ]
            rows = np.array(asked)
            answers = self.holds(items[rows], curves[rows], batch[rows]).tolist()
            for n, answer in zip(asked, answers, strict=True):
                good, bad = self.known.setdefault((own[n][0], own[n][1].size), ([], []))
                (good if answer else bad).append(own[n][1])

    def _known(self, item: int, curve: FloatArray) -> bool | None:
        good, bad = self.known.get((item, curve.size), ((), ()))
        if good and (curve <= np.array(good)).all(axis=1).any():
            return True
        return False if bad and (curve >= np.array(bad)).all(axis=1).any() else None

    def holds(self, items: IntArray, curves: FloatArray, batch: IntArray) -> BoolArray:
        """Whether each of these items (n,) holds with t(k) as in its row of `curves`, up to its batch."""
        asked = [self.items[i] for i in items.tolist()]
        profiles = [self.table.gpu_type.device.profiles[i.model] for i in asked]
        answer = waits(
            np.array([i.rate_rps * i.servers for i in asked]),
            curves,
            batch,
            np.array([i.servers for i in asked]),
            np.array([0.0 if i.constant else 1.0 for i in asked]),
            np.array([p.frontend_ms or 0.0 for p in profiles]),
            np.array([p.jitter or 0.0 for p in profiles]),
        )
        slo = np.array([i.slo_ms for i in asked])
        return np.asarray(answer.p99_ms <= slo * (1.0 + SLACK))

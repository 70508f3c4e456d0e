"""Items onto the GPUs of one type.

Bin packing on the share that each item takes beside average neighbours, then the truth about every GPU at
once (`sizing`); items that do not fit their GPU after all are moved to another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from controlplane.latency.protocol import FloatArray
from controlplane.planning.capacity.tolerance import TYPICAL_SLOWDOWN, ToleranceTable
from controlplane.planning.joint.sizing import padded, smallest_shares

ONE_TIGHTNESS: tuple[float | None, ...] = (0.75,)
ALL_TIGHTNESSES: tuple[float | None, ...] = (None, 0.5, 0.75)
"""Packings that `Packing.fill` tries: see there."""
_LOOKS = 2
"""Packings made to see how neighbours slow items."""
_CANDIDATES = 12
"""GPUs that an item is tried on at once."""


@dataclass(slots=True)
class Packing:
    """The GPUs of one type while a plan is searched.

    `groups` are the items of each GPU, `shares` the index of each one's share, `totals` the sum in percent.
    `most`: GPUs there are, None for no limit.
    """

    table: ToleranceTable
    most: int | None
    groups: list[list[int]] = field(default_factory=list)
    shares: list[list[int]] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)

    def copy(self) -> Packing:
        """A packing that can be changed without changing this one."""
        # What stands on one GPU is only ever replaced as a whole.
        return Packing(self.table, self.most, self.groups.copy(), self.shares.copy(), self.totals.copy())

    @property
    def full(self) -> bool:
        """Whether no further GPU may be opened."""
        return self.most is not None and len(self.groups) >= self.most

    def ask(self, groups: Sequence[Sequence[int]]) -> tuple[list[bool], list[list[int]], list[float]]:
        """Which of these groups fit a GPU; their shares and totals."""
        if not groups:
            return [], [], []
        sized = smallest_shares(self.table, padded(groups))
        shares = [row[: len(g)] for row, g in zip(sized.share.tolist(), groups, strict=True)]
        return sized.fits.tolist(), shares, sized.total.tolist()

    def fill(self, items: Sequence[int], tightnesses: Sequence[float | None]) -> list[int]:
        """Pack all items at once; returns those that found no GPU.

        `tightnesses` are tried in turn and the best packing is kept: each is the part of the slowdown seen
        that items are sized for, None for `TYPICAL_SLOWDOWN`. Packed too tightly, items must move; too
        loosely, room is lost.
        """
        seen = self._slowdown_seen(items)
        best: tuple[int, Packing, list[int]] | None = None
        for part in tightnesses:
            trial = self.copy()
            slowdown = np.full_like(seen, TYPICAL_SLOWDOWN) if part is None else 1.0 + (seen - 1.0) * part
            size = self.table.percent_beside(slowdown)
            groups = _best_fit([i for i in items if np.isfinite(size[i])], size)
            lost = [i for i in items if not np.isfinite(size[i])] + trial.place(groups, size)
            count = len(trial.groups) + len(items) * len(lost)
            if best is None or count < best[0]:
                best = (count, trial, lost)
        assert best is not None
        _, trial, lost = best
        self.groups, self.shares, self.totals = trial.groups, trial.shares, trial.totals
        return lost

    def place(self, groups: list[list[int]], size: FloatArray) -> list[int]:
        """Open a GPU for each group and move what does not fit there; returns items that find no GPU."""
        evicted = sorted(self._open_all(groups, size), key=lambda i: -float(size[i]))
        return [i for i in evicted if not self.insert(i)]

    def _slowdown_seen(self, items: Sequence[int]) -> FloatArray:
        """How neighbours slow each item in packings made to see just that; shape (items,)."""
        model = self.table.model
        slowdown = np.full(model.size, TYPICAL_SLOWDOWN)
        for _ in range(_LOOKS):
            size = self.table.percent_beside(slowdown)
            groups = _best_fit([i for i in items if np.isfinite(size[i])], size)
            rows = padded([g for g in groups if len(g) > 1])
            if not rows.size:
                break
            seen = smallest_shares(self.table, rows).slowdown
            item, own = rows[rows >= 0], seen[rows >= 0]
            count = np.bincount(model[item], minlength=int(model.max()) + 1)
            mean = np.bincount(model[item], own, count.size) / np.maximum(count, 1)
            known = (model >= 0) & (count[model] > 0)
            slowdown = np.where(known, mean[model], slowdown)
            slowdown[item] = np.maximum(slowdown[item], own)
        return slowdown

    def _open_all(self, groups: list[list[int]], size: FloatArray) -> list[int]:
        """Open a GPU for each group, without the items that do not fit; returns those."""
        evicted: list[int] = []
        while groups:
            again = []
            for group, fits, shares, total in zip(groups, *self.ask(groups), strict=True):
                if fits and not self.full:
                    self._append(group, shares, total)
                elif fits or len(group) == 1:
                    evicted.extend(group)
                else:
                    out = min(group, key=lambda i: float(size[i]))
                    evicted.append(out)
                    again.append([i for i in group if i != out])
            groups = again
        return evicted

    def insert(self, item: int) -> bool:
        """Put an item on the GPU that it leaves fullest, or on a new one."""
        return self.squeeze(item) or self.open([item])

    def open(self, items: list[int]) -> bool:
        """Put items on a new GPU; False, and no change, where there is none or they do not fit."""
        if self.full:
            return False
        (fits,), (shares,), (total,) = self.ask([items])
        if fits:
            self._append(items, shares, total)
        return fits

    def open_with(self, items: Sequence[int], shares: Sequence[int]) -> bool:
        """Put items on a new GPU with these shares, whatever the table says they take."""
        memory = self.table.gpu_type.device.pool.device.memory_mb
        if self.full or (memory is not None and self.table.memory_mb[list(items)].sum() > memory):
            return False
        total = float(self.table.gpu_type.percents[list(shares)].sum())
        self._append(list(items), list(shares), total)
        return True

    def smallest_percent(self, item: int) -> float:
        """The smallest share that holds it alone; infinite where none does."""
        return float(self.table.smallest_percent[item])

    def squeeze(self, item: int) -> bool:
        """Put an item on a GPU that is in use: the fullest one that holds it."""
        least, likely = self.smallest_percent(item), float(self.table.likely_percent[item])
        room = 100.0 - np.array(self.totals)
        order = np.argsort(room, kind="stable")
        order = order[room[order] >= least - 1e-9]
        roomy = order[room[order] >= likely - 1e-9]
        # The fullest first; then some of all others, so that room anywhere is found; last those where it
        # fits only if neighbours hardly slow it.
        others = roomy[_CANDIDATES:]
        if others.size > _CANDIDATES:
            others = others[np.linspace(0, others.size - 1, _CANDIDATES).astype(int)]
        tight = order[room[order] < likely - 1e-9][-_CANDIDATES:]
        for some in (roomy[:_CANDIDATES].tolist(), others.tolist(), tight.tolist()):
            fits, shares, totals = self.ask([[*self.groups[g], item] for g in some])
            held = [n for n, ok in enumerate(fits) if ok]
            if held:
                n = max(held, key=lambda n: totals[n])
                self._set(some[n], [*self.groups[some[n]], item], shares[n], totals[n])
                return True
        return False

    def swap(self, item: int, chance: np.random.Generator) -> int | None:
        """Put an item in the place of a smaller one; returns that one, None where there is none."""
        least = self.table.smallest_percent
        others = np.fromiter(chain.from_iterable(self.groups), dtype=np.int64)
        gpu = np.repeat(np.arange(len(self.groups)), [len(g) for g in self.groups])
        room = (100.0 - np.array(self.totals))[gpu]
        gain = least[item] - least[others]
        near = np.flatnonzero((gain > 1e-9) & (gain <= room + 2.5 + 1e-9))
        order = np.lexsort((chance.random(near.size), room[near] / 1e3 - gain[near]))[:_CANDIDATES]
        some = [(int(gpu[n]), int(others[n])) for n in near[order]]
        asked = [[*(i for i in self.groups[g] if i != other), item] for g, other in some]
        fits, shares, totals = self.ask(asked)
        for n, ok in enumerate(fits):
            if ok:
                g, other = some[n]
                self._set(g, asked[n], shares[n], totals[n])
                return other
        return None

    def replace(self, gpu: int, items: list[int]) -> bool:
        """Give a GPU these items; False, and no change, where they do not fit it."""
        (fits,), (shares,), (total,) = self.ask([items])
        if fits:
            self._set(gpu, items, shares, total)
        return fits

    def remove(self, gpu: int) -> list[int]:
        """Take a GPU away; returns its items."""
        out = self.groups.pop(gpu)
        self.shares.pop(gpu)
        self.totals.pop(gpu)
        return out

    def discard(self, items: set[int]) -> None:
        """Take items away, and GPUs that only they used; what stays on a GPU may need less."""
        for g in range(len(self.groups) - 1, -1, -1):
            left = [i for i in self.groups[g] if i not in items]
            if not left:
                self.remove(g)
            elif len(left) < len(self.groups[g]):
                self.replace(g, left)

    def stands(self) -> list[list[tuple[int, int]]]:
        """The items of each GPU with the indices of their shares, fullest first."""
        order = sorted(range(len(self.groups)), key=lambda g: (-self.totals[g], self.groups[g]))
        return [list(zip(self.groups[g], self.shares[g], strict=True)) for g in order]

    def _append(self, group: list[int], shares: list[int], total: float) -> None:
        self.groups.append(group)
        self.shares.append(shares)
        self.totals.append(total)

    def _set(self, gpu: int, group: list[int], shares: list[int], total: float) -> None:
        self.groups[gpu], self.shares[gpu], self.totals[gpu] = group, shares, total


def _best_fit(items: Sequence[int], size: FloatArray) -> list[list[int]]:
    """Best fit decreasing on plain sizes in percent; bins are kept by their room, so that it stays linear."""
    groups: list[list[int]] = []
    room: dict[int, list[int]] = {}
    for item in sorted(items, key=lambda i: -float(size[i])):
        need = round(float(size[item]) * 10)
        fitting = [left for left, bins in room.items() if left >= need and bins]
        if fitting:
            left = min(fitting)
            g = room[left].pop()
        else:
            left, g = 1000, len(groups)
            groups.append([])
        groups[g].append(item)
        room.setdefault(left - need, []).append(g)
    return groups

"""Items onto the GPUs of one type, then onto fewer of them.

Bin packing on the share that each item takes beside average neighbours, then the truth about every GPU at
once (`capacity.sizing`); items that do not fit their GPU after all are moved to another one. Every move is
the same: `Packing.evaluate` what GPUs would hold after it, and `Packing.apply` the best that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from controlplane.latency.protocol import FloatArray
from controlplane.planning.capacity.sizing import SizedGpu, padded, smallest_shares
from controlplane.planning.capacity.tolerance import TYPICAL_SLOWDOWN, ToleranceTable

ONE_TIGHTNESS: tuple[float | None, ...] = (0.75,)
ALL_TIGHTNESSES: tuple[float | None, ...] = (None, 0.5, 0.75)
"""Packings that `Packing.fill` tries: see there."""
_LOOKS = 2
"""Packings made to see how neighbours slow items."""
_CANDIDATES = 12
"""GPUs that an item is tried on at once."""
_REPEATS = 3
"""Attempts on GPUs that could not be emptied before: only the order among equal swaps differs then."""

Stop = Callable[[], bool]


@dataclass(slots=True)
class Packing:
    """The GPUs of one type while a plan is searched. `most`: GPUs there are, None for no limit."""

    table: ToleranceTable
    most: int | None
    gpus: list[SizedGpu] = field(default_factory=list)

    def copy(self) -> Packing:
        """A packing that can be changed without changing this one."""
        return Packing(self.table, self.most, self.gpus.copy())

    @property
    def full(self) -> bool:
        """Whether no further GPU may be opened."""
        return self.most is not None and len(self.gpus) >= self.most

    @property
    def room(self) -> FloatArray:
        """What is free on each GPU, in percent."""
        return 100.0 - np.array([gpu.total for gpu in self.gpus])

    # -- moves: evaluate, then apply ---------------------------------------------------------------------

    def evaluate(self, sets: Sequence[Sequence[int]]) -> list[SizedGpu | None]:
        """What each of these sets of items takes of one GPU; None where it does not fit."""
        if not sets:
            return []
        sized = smallest_shares(self.table, padded(sets))
        rows = zip(sets, sized.fits.tolist(), sized.share.tolist(), sized.total.tolist(), strict=True)
        return [
            SizedGpu(tuple(items), tuple(shares[: len(items)]), total) if fits else None
            for items, fits, shares, total in rows
        ]

    def apply(self, sized: SizedGpu | None, gpu: int | None = None) -> bool:
        """Let a GPU, by default a new one, hold this; False, and no change, for None."""
        if sized is None:
            return False
        if gpu is None:
            self.gpus.append(sized)
        else:
            self.gpus[gpu] = sized
        return True

    def insert(self, item: int) -> bool:
        """Put an item on the GPU that it leaves fullest, or on a new one."""
        return self.best_fit_insert(item) or self.open([item])

    def open(self, items: Sequence[int]) -> bool:
        """Put items on a new GPU; False, and no change, where there is none or they do not fit."""
        return not self.full and self.apply(self.evaluate([items])[0])

    def open_with(self, items: Sequence[int], shares: Sequence[int]) -> bool:
        """Put items on a new GPU with these shares, whatever the table says they take."""
        memory = self.table.gpu_type.device.pool.device.memory_mb
        if self.full or (
            memory is not None and self.table.memory_mb[list(items), list(shares)].sum() > memory
        ):
            return False
        total = float(self.table.gpu_type.percents[list(shares)].sum())
        return self.apply(SizedGpu(tuple(items), tuple(shares), total))

    def replace(self, gpu: int, items: Sequence[int]) -> bool:
        """Give a GPU these items; False, and no change, where they do not fit it."""
        return self.apply(self.evaluate([items])[0], gpu)

    def best_fit_insert(self, item: int) -> bool:
        """Put an item on a GPU that is in use: the fullest one that holds it."""
        for some in self._hosts(item):
            found = self.evaluate([(*self.gpus[g].items, item) for g in some])
            holding = [(sized, g) for sized, g in zip(found, some, strict=True) if sized is not None]
            if holding:
                return self.apply(*max(holding, key=lambda move: move[0].total))
        return False

    def _hosts(self, item: int) -> Iterator[list[int]]:
        """GPUs to try an item on: the fullest first; then some of all others, so that room anywhere is found.

        Last those where it fits only if neighbours hardly slow it.
        """
        least, likely = self.smallest_percent(item), float(self.table.likely_percent[item])
        room = self.room
        order = np.argsort(room, kind="stable")
        order = order[room[order] >= least - 1e-9]
        roomy = order[room[order] >= likely - 1e-9]
        others = roomy[_CANDIDATES:]
        if others.size > _CANDIDATES:
            others = others[np.linspace(0, others.size - 1, _CANDIDATES).astype(int)]
        tight = order[room[order] < likely - 1e-9][-_CANDIDATES:]
        yield from (roomy[:_CANDIDATES].tolist(), others.tolist(), tight.tolist())

    def swap(self, item: int, chance: np.random.Generator) -> int | None:
        """Put an item in the place of a smaller one; returns that one, None where there is none."""
        least = self.table.smallest_percent
        others = np.fromiter(chain.from_iterable(gpu.items for gpu in self.gpus), dtype=np.int64)
        host = np.repeat(np.arange(len(self.gpus)), [len(gpu.items) for gpu in self.gpus])
        room = self.room[host]
        gain = least[item] - least[others]
        near = np.flatnonzero((gain > 1e-9) & (gain <= room + 2.5 + 1e-9))
        order = np.lexsort((chance.random(near.size), room[near] / 1e3 - gain[near]))[:_CANDIDATES]
        some = [(int(host[n]), int(others[n])) for n in near[order]]
        found = self.evaluate([[*(i for i in self.gpus[g].items if i != out), item] for g, out in some])
        for (g, out), sized in zip(some, found, strict=True):
            if self.apply(sized, g):
                return out
        return None

    def discard(self, items: set[int]) -> None:
        """Take items away, and GPUs that only they used; what stays on a GPU may need less."""
        for g in range(len(self.gpus) - 1, -1, -1):
            left = [i for i in self.gpus[g].items if i not in items]
            if not left:
                self.gpus.pop(g)
            elif len(left) < len(self.gpus[g].items):
                self.replace(g, left)

    def smallest_percent(self, item: int) -> float:
        """The smallest share that holds it alone; infinite where none does."""
        return float(self.table.smallest_percent[item])

    # -- many items at once ------------------------------------------------------------------------------

    def fill(self, items: Sequence[int], tightnesses: Sequence[float | None]) -> list[int]:
        """Pack all items at once; returns those that found no GPU.

        `tightnesses` are tried in turn and the best packing is kept: each is the part of the slowdown seen
        that items are sized for, None for `TYPICAL_SLOWDOWN`. Packed too tightly, items must move; too
        loosely, room is lost.
        """
        seen = self._slowdown_seen(items)
        tried: list[tuple[Packing, list[int]]] = []
        for part in tightnesses:
            trial = self.copy()
            slowdown = np.full_like(seen, TYPICAL_SLOWDOWN) if part is None else 1.0 + (seen - 1.0) * part
            size = self.table.percent_beside(slowdown)
            groups = _best_fit(items, size)
            lost = [i for i in items if not np.isfinite(size[i])] + trial.place(groups, size)
            tried.append((trial, lost))
        best, lost = min(tried, key=lambda made: len(made[0].gpus) + len(items) * len(made[1]))
        self.gpus = best.gpus
        return lost

    def place(self, groups: Sequence[Sequence[int]], size: FloatArray) -> list[int]:
        """Open a GPU for each group and move what does not fit there; returns items that find no GPU."""
        evicted: list[int] = []
        while groups:
            again = []
            for group, sized in zip(groups, self.evaluate(groups), strict=True):
                if sized is not None and not self.full:
                    self.apply(sized)
                elif sized is not None or len(group) == 1:
                    evicted.extend(group)
                else:
                    out = min(group, key=lambda i: float(size[i]))
                    evicted.append(out)
                    again.append([i for i in group if i != out])
            groups = again
        evicted.sort(key=lambda i: -float(size[i]))
        return [i for i in evicted if not self.insert(i)]

    def _slowdown_seen(self, items: Sequence[int]) -> FloatArray:
        """How neighbours slow each item in packings made to see just that; shape (items,)."""
        model = self.table.items.model
        slowdown = np.full(model.size, TYPICAL_SLOWDOWN)
        for _ in range(_LOOKS):
            groups = _best_fit(items, self.table.percent_beside(slowdown))
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


def _best_fit(items: Sequence[int], size: FloatArray) -> list[list[int]]:
    """Best fit decreasing on plain sizes in percent, without items of infinite size.

    Bins are kept by their room, so that it stays linear.
    """
    groups: list[list[int]] = []
    room: dict[int, list[int]] = {}
    for item in sorted((i for i in items if np.isfinite(size[i])), key=lambda i: -float(size[i])):
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


# -- fewer GPUs ------------------------------------------------------------------------------------------


def empty_gpus(packing: Packing, attempts: int, chance: np.random.Generator, stop: Stop) -> Packing:
    """Empty GPUs one by one; returns the best packing found, and changes nothing.

    Each attempt takes one of the emptiest GPUs away and places its items on the others, with at most three
    times as many swaps as it had items.
    """
    best = packing
    failed: set[tuple[int, ...]] = set()
    again = 0
    for attempt in range(attempts):
        if stop() or len(best.gpus) < 2:
            break
        order = sorted(range(len(best.gpus)), key=lambda g: (best.gpus[g].total, g))[: 8 + attempt]
        candidates = [g for g in order if _is_room_for(best, g)]
        gpu = next((g for g in candidates if best.gpus[g].items not in failed), None)
        if gpu is None:
            again += 1
            if not candidates or again > _REPEATS:
                break
            gpu = candidates[chance.integers(len(candidates))]
        failed.add(best.gpus[gpu].items)
        trial = best.copy()
        if _place_all(trial, list(trial.gpus.pop(gpu).items), chance, stop):
            best = trial
    return best


def _is_room_for(packing: Packing, gpu: int) -> bool:
    """Whether the others have, all together, the room that a GPU's items take at least."""
    used = sum(g.total for g in packing.gpus)
    others = 100.0 * (len(packing.gpus) - 1) - used + packing.gpus[gpu].total
    return bool(others >= packing.table.smallest_percent[list(packing.gpus[gpu].items)].sum())


def _place_all(trial: Packing, queue: list[int], chance: np.random.Generator, stop: Stop) -> bool:
    swaps = 3 * len(queue) + 3
    while queue:
        queue.sort(key=trial.smallest_percent)
        item = queue.pop()
        if trial.best_fit_insert(item):
            continue
        if swaps <= 0 or stop():
            return False
        swaps -= 1
        out = trial.swap(item, chance)
        if out is None:
            return False
        queue.append(out)
    return True

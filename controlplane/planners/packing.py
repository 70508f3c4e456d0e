"""Items onto the GPUs of one type: fill, repair, and empty GPUs one by one.

Bin packing on what each item takes beside average neighbours, then the truth about every GPU at once
(`grow`); what does not fit its GPU after all is put elsewhere. The search then tries to dissolve GPUs: their
items go where they fit, or where one smaller item makes room for them and takes their place in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from controlplane.domain.plan import PlannedGpu
from controlplane.latency.protocol import FloatArray
from controlplane.planners.finish import gpu_of, partition_of
from controlplane.planners.growth import grow, padded
from controlplane.planners.menu import TYPICAL_SLOWDOWN, Item, Menu
from controlplane.planners.protocol import Device

LOOKS = 2
"""Packings made to see how neighbours slow items."""
FIRST_LOOK: tuple[float | None, ...] = (0.75,)
THOROUGH: tuple[float | None, ...] = (None, 0.5, 0.75)
"""For `Packing.fill`."""
REPEATS = 3
"""Attempts on GPUs that failed before: only the order among equal swaps differs then."""
WINDOW = 256
"""GPUs among which one is dissolved."""
CANDIDATES = 12
"""GPUs an item is tried on at once."""


@dataclass(slots=True)
class Packing:
    """The GPUs of one type while a plan is searched.

    `groups` are item numbers per GPU, `shares` the index of each one's share, `totals` the sum in percent.
    `most`: GPUs there are, None for no end.
    """

    menu: Menu
    quantile: float | None
    most: int | None
    groups: list[list[int]] = field(default_factory=list)
    shares: list[list[int]] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)

    def copy(self) -> Packing:
        """One that can be changed without changing this."""
        # What stands on one GPU is only ever replaced as a whole.
        return Packing(
            self.menu, self.quantile, self.most, list(self.groups), list(self.shares), list(self.totals)
        )

    def part(self, gpus: Sequence[int]) -> Packing:
        """These GPUs only."""
        return Packing(
            self.menu, self.quantile, self.most, [self.groups[g] for g in gpus],
            [self.shares[g] for g in gpus], [self.totals[g] for g in gpus],
        )  # fmt: skip

    @property
    def full(self) -> bool:
        """Whether no further GPU may be opened."""
        return self.most is not None and len(self.groups) >= self.most

    def ask(self, groups: Sequence[Sequence[int]]) -> tuple[list[bool], list[list[int]], list[float]]:
        """Which of these groups fit a GPU; their shares and totals."""
        if not groups:
            return [], [], []
        grown = grow(self.menu, padded(groups), self.quantile)
        shares = [row[: len(g)] for row, g in zip(grown.share.tolist(), groups, strict=True)]
        return grown.fits.tolist(), shares, grown.total.tolist()

    def fill(self, items: Sequence[int], hopes: Sequence[float | None]) -> list[int]:
        """Pack all items at once; returns those that found no GPU.

        `hopes` are tried in turn and the best packing is kept: each is the part of the slowdown seen that
        items are sized for, None for `TYPICAL_SLOWDOWN`. Packed too tightly, items must move; too loosely,
        room is lost.
        """
        observed = self._observed(items)
        best: tuple[int, Packing, list[int]] | None = None
        for hope in hopes:
            trial = self.copy()
            guess = (
                np.full_like(observed, TYPICAL_SLOWDOWN) if hope is None else 1.0 + (observed - 1.0) * hope
            )
            size = self.menu.beside(guess)
            groups = best_fit([i for i in items if np.isfinite(size[i])], size)
            lost = [i for i in items if not np.isfinite(size[i])] + trial.place(groups, size)
            count = len(trial.groups) + len(items) * len(lost)
            if best is None or count < best[0]:
                best = (count, trial, lost)
        assert best is not None
        _, trial, lost = best
        self.groups, self.shares, self.totals = trial.groups, trial.shares, trial.totals
        return lost

    def place(self, groups: list[list[int]], size: FloatArray) -> list[int]:
        """Open a GPU for each group, and find another for who is too much there; returns who finds none."""
        evicted = sorted(self._realize(groups, size), key=lambda i: -float(size[i]))
        return [i for i in evicted if not self.insert(i)]

    def _observed(self, items: Sequence[int]) -> FloatArray:
        """How neighbours slow each item in packings that are made to see just that; shape (items,)."""
        menu = self.menu
        slowdown = np.full(menu.model.size, TYPICAL_SLOWDOWN)
        for _ in range(LOOKS):
            size = menu.beside(slowdown)
            groups = best_fit([i for i in items if np.isfinite(size[i])], size)
            rows = padded([g for g in groups if len(g) > 1])
            if not rows.size:
                break
            seen = grow(menu, rows, self.quantile).slowdown
            who, how = rows[rows >= 0], seen[rows >= 0]
            model = menu.model[who]
            count = np.bincount(model, minlength=int(menu.model.max()) + 1)
            mean = np.bincount(model, how, count.size) / np.maximum(count, 1)
            known = (menu.model >= 0) & (count[menu.model] > 0)
            slowdown = np.where(known, mean[menu.model], slowdown)
            slowdown[who] = np.maximum(slowdown[who], how)
        return slowdown

    def _realize(self, groups: list[list[int]], size: FloatArray) -> list[int]:
        """Open a GPU for each group, without those that do not fit after all; returns them."""
        evicted: list[int] = []
        while groups:
            fits, shares, totals = self.ask(groups)
            again = []
            for group, ok, share, total in zip(groups, fits, shares, totals, strict=True):
                if ok and not self.full:
                    self.groups.append(group)
                    self.shares.append(share)
                    self.totals.append(total)
                elif ok or len(group) == 1:
                    evicted.extend(group)
                else:
                    out = min(group, key=lambda i: float(size[i]))
                    evicted.append(out)
                    again.append([i for i in group if i != out])
            groups = again
        return evicted

    def insert(self, item: int) -> bool:
        """Put an item on the GPU that it leaves fullest, or on a new one."""
        return self.squeeze(item) or self.open(item)

    def least(self, item: int) -> float:
        """The smallest share that holds it alone, in percent; infinite where none does."""
        return float(self.menu.least_percent[item])

    def open(self, item: int) -> bool:
        """Put an item on a new GPU."""
        if self.full:
            return False
        fits, shares, totals = self.ask([[item]])
        if fits[0]:
            self.groups.append([item])
            self.shares.append(shares[0])
            self.totals.append(totals[0])
        return fits[0]

    def settle(self, items: Sequence[int], shares: Sequence[int]) -> bool:
        """Put items on a new GPU with these shares, whatever the menu says they take."""
        memory = self.menu.device.pool.device.memory_mb
        if self.full or (memory is not None and self.menu.memory_mb[list(items)].sum() > memory):
            return False
        self.groups.append(list(items))
        self.shares.append(list(shares))
        self.totals.append(float(self.menu.percents[list(shares)].sum()))
        return True

    def squeeze(self, item: int) -> bool:
        """Put an item on a GPU that is in use; the fullest one that holds it."""
        least, likely = self.least(item), float(self.menu.likely_percent[item])
        room = 100.0 - np.array(self.totals) if self.totals else np.empty(0)
        order = np.argsort(room, kind="stable")
        order = order[room[order] >= least - 1e-9]
        roomy = order[room[order] >= likely - 1e-9]
        # The fullest first; then some of all others, so that room anywhere is found; last those where it
        # fits only if neighbours hardly slow it.
        others = roomy[CANDIDATES:]
        if others.size > CANDIDATES:
            others = others[np.linspace(0, others.size - 1, CANDIDATES).astype(int)]
        tight = order[room[order] < likely - 1e-9][-CANDIDATES:]
        for some in (roomy[:CANDIDATES].tolist(), others.tolist(), tight.tolist()):
            fits, shares, totals = self.ask([[*self.groups[g], item] for g in some])
            held = [n for n, ok in enumerate(fits) if ok]
            if held:
                n = max(held, key=lambda n: totals[n])
                self._set(some[n], [*self.groups[some[n]], item], shares[n], totals[n])
                return True
        return False

    def swap(self, item: int, chance: np.random.Generator) -> int | None:
        """Put an item in the place of a smaller one; returns that one, None where nobody gives way."""
        least = self.menu.least_percent
        others = np.fromiter(chain.from_iterable(self.groups), dtype=np.int64)
        gpu = np.repeat(np.arange(len(self.groups)), [len(g) for g in self.groups])
        room = (100.0 - np.array(self.totals))[gpu]
        gain = least[item] - least[others]
        near = np.flatnonzero((gain > 1e-9) & (gain <= room + 2.5 + 1e-9))
        order = np.lexsort((chance.random(near.size), room[near] / 1e3 - gain[near]))[:CANDIDATES]
        some = [(int(gpu[n]), int(others[n])) for n in near[order]]
        asked = [[*(i for i in self.groups[g] if i != other), item] for g, other in some]
        fits, shares, totals = self.ask(asked)
        for n, ok in enumerate(fits):
            if ok:
                g, other = some[n]
                self._set(g, asked[n], shares[n], totals[n])
                return other
        return None

    def regrow(self, gpu: int, group: list[int]) -> bool:
        """Give a GPU these items; False, and no change, where they do not fit it."""
        fits, shares, totals = self.ask([group])
        if fits[0]:
            self._set(gpu, group, shares[0], totals[0])
        return fits[0]

    def remove(self, gpu: int) -> list[int]:
        """Take a GPU away; returns its items."""
        out = self.groups.pop(gpu)
        self.shares.pop(gpu)
        self.totals.pop(gpu)
        return out

    def discard(self, items: set[int]) -> None:
        """Take items away, and GPUs that only they used; what is left on a GPU may need less."""
        for g in range(len(self.groups) - 1, -1, -1):
            left = [i for i in self.groups[g] if i not in items]
            if not left:
                self.remove(g)
            elif len(left) < len(self.groups[g]):
                self.regrow(g, left)

    def _set(self, gpu: int, group: list[int], share: list[int], total: float) -> None:
        self.groups[gpu], self.shares[gpu], self.totals[gpu] = group, share, total


def best_fit(items: Sequence[int], size: FloatArray) -> list[list[int]]:
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


Stop = Callable[[], bool]


def dissolve(packing: Packing, iterations: int, chance: np.random.Generator, stop: Stop) -> Packing:
    """Empty GPUs one by one, at most `iterations` attempts; returns the best packing found.

    Each attempt takes one of the emptiest GPUs away and places its items on the others; at most three times
    as many swaps as it had items. Many GPUs are taken a window at a time: an attempt then costs the same
    whatever their number, and within a window nearly all that fits anywhere fits.
    """
    windows = -(-len(packing.groups) // WINDOW)
    if windows <= 1:
        return _dissolve(packing, iterations, chance, stop)
    order = sorted(range(len(packing.groups)), key=lambda g: (packing.totals[g], g))
    joined = Packing(packing.menu, packing.quantile, packing.most)
    for n in range(windows):
        part = _dissolve(packing.part(order[n::windows]), iterations // windows, chance, stop)
        joined.groups += part.groups
        joined.shares += part.shares
        joined.totals += part.totals
    return joined


def _dissolve(packing: Packing, iterations: int, chance: np.random.Generator, stop: Stop) -> Packing:
    best = packing
    failed: set[tuple[int, ...]] = set()
    again = 0
    for attempt in range(iterations):
        if stop() or len(best.groups) < 2:
            break
        order = sorted(range(len(best.groups)), key=lambda g: (best.totals[g], g))[: 8 + attempt]
        fresh = next((g for g in order if tuple(best.groups[g]) not in failed and _room_for(best, g)), None)
        if fresh is None:
            again += 1
            candidates = [g for g in order if _room_for(best, g)]
            if not candidates or again > REPEATS:
                break
            fresh = candidates[chance.integers(len(candidates))]
        failed.add(tuple(best.groups[fresh]))
        trial = best.copy()
        if _place_all(trial, list(trial.remove(fresh)), chance, stop):
            best = trial
    return best


def _room_for(packing: Packing, gpu: int) -> bool:
    """Whether the others have, all together, the room that a GPU's items take at least."""
    others = 100.0 * (len(packing.groups) - 1) - sum(packing.totals) + packing.totals[gpu]
    return bool(others >= packing.menu.least_percent[packing.groups[gpu]].sum())


def _place_all(trial: Packing, queue: list[int], chance: np.random.Generator, stop: Stop) -> bool:
    swaps = 3 * len(queue) + 3
    while queue:
        queue.sort(key=trial.least)
        item = queue.pop()
        if trial.squeeze(item):
            continue
        if swaps <= 0 or stop():
            return False
        swaps -= 1
        out = trial.swap(item, chance)
        if out is None:
            return False
        queue.append(out)
    return True


def planned(
    packings: Mapping[str, Packing], items: Sequence[Item], devices: Mapping[str, Device]
) -> tuple[PlannedGpu, ...]:
    """The GPUs of all types as values, fullest first."""
    gpus: list[PlannedGpu] = []
    number: dict[int, int] = {}
    for name, packing in packings.items():
        device, menu = devices[name], packing.menu
        order = sorted(range(len(packing.groups)), key=lambda g: (-packing.totals[g], packing.groups[g]))
        for n, g in enumerate(order):
            pairs = sorted(
                zip(packing.groups[g], packing.shares[g], strict=True), key=lambda p: (-p[1], p[0])
            )
            partitions = []
            for i, share in pairs:
                item = items[i]
                number[id(item)] = number.get(id(item), 0) + 1
                suffix = f"-{number[id(item)]}" if item.servers > 1 else ""
                partitions.append(
                    partition_of(
                        item.name + suffix, item.workloads, float(menu.percents[share]),
                        int(menu.batch[i, share]), item.memory_mb(device), 1.0 / item.servers,
                    )
                )  # fmt: skip
            gpus.append(gpu_of(n, device, partitions))
    return tuple(gpus)

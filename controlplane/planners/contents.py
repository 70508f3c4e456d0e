"""What one GPU may hold: every set of items that fits it, with the least share of each.

Adding an item slows the others and never speeds them up, so a set fits only where all its subsets do: sets
grow item by item from those that fit.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.domain.plan import MOST_SERVERS
from controlplane.domain.workload import Workload
from controlplane.latency.calibration import Calibrated
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray, LatencyModel, Slots
from controlplane.planners.board import service_curves, waits
from controlplane.planners.grouping import Group, families
from controlplane.planners.growth import SLACK, grow
from controlplane.planners.kinds import TABLE_ERROR
from controlplane.planners.menu import Alone, Correction, Item, Menu
from controlplane.planners.protocol import PlanRequest
from controlplane.planners.standby import SLACK as JUDGED

FEW_WORKLOADS = 4
"""So few may meet in any company, and in pools of more sizes; more only in runs by SLO."""
POOLS_OF_FEW, POOLS_OF_MORE = 4, 2
"""Sizes of a pool that are tried, from the smallest that holds its workloads on."""


@dataclass(frozen=True, slots=True)
class Way:
    """Some workloads served by `item.servers` partitions; `owners` are their numbers, as bits.

    `device` is the GPU type they must be on, None for any mix: servers that share a queue are of one type.
    """

    item: Item
    owners: int
    device: str | None

    def may_use(self, device: str) -> bool:
        """Whether its partitions may be on GPUs of this type."""
        return self.device is None or self.device == device


@dataclass(frozen=True, slots=True)
class Contents:
    """Sets of items that fit one GPU: item numbers and the index of each one's share, -1 where empty.

    Both have the shape (sets, slots). A set's items are in rising order.
    """

    item: IntArray
    share: IntArray

    def take(self, rows: IntArray) -> Contents:
        """These sets."""
        return Contents(self.item[rows], self.share[rows])


@dataclass(frozen=True, slots=True)
class Options:
    """All ways to serve all workloads, numbered.

    `menus` holds what each way is on each GPU type, `hopeful` the same with every error of the waiting table
    taken in the ways' favour: what it refuses, the exact queue refuses.
    """

    ways: tuple[Way, ...]
    workloads: int
    menus: Mapping[str, Menu]
    hopeful: Mapping[str, Menu]
    quantile: float | None

    @staticmethod
    def of(
        workloads: Sequence[Workload], request: PlanRequest, alone: Mapping[str, Alone],
        quantile: float | None,
    ) -> Options:  # fmt: skip
        """Every group and, of each, the smallest pools that hold it."""
        few = len(workloads) <= FEW_WORKLOADS
        number = {w.name: n for n, w in enumerate(workloads)}
        groups = [g for family in families(workloads, request.rule) for g in _companies(family, few)]
        owners = [sum(1 << number[w.name] for w in group) for group in groups]
        at = [(g, servers) for g in range(len(groups)) for servers in range(1, MOST_SERVERS + 1)]
        items = [Item(groups[g], servers) for g, servers in at]
        menus = {n: Menu.of(items, d, request.rule, quantile, alone[n]) for n, d in request.devices.items()}
        hold = {n: np.isfinite(_hopeful(m, quantile).smallest(1.0)) for n, m in menus.items()}
        # Under P99 a pool is on one type; else its partitions need not know of each other.
        types: list[str | None] = [None] if quantile is None else list(request.devices)
        most = POOLS_OF_FEW if few else POOLS_OF_MORE
        chosen: list[tuple[int, str | None]] = []
        for name in types:
            holds = np.any(list(hold.values()), axis=0) if name is None else hold[name]
            left = [most] * len(groups)
            for i, (g, servers) in enumerate(at):
                # One partition is on whatever type it is on.
                if holds[i] and left[g]:
                    left[g] -= 1
                    chosen.append((i, None if servers == 1 else name))
        chosen = sorted(set(chosen), key=lambda way: (way[0], way[1] or ""))
        rows = np.array([i for i, _ in chosen], dtype=np.int64)
        taken = {n: _taken(m, rows) for n, m in menus.items()}
        return Options(
            tuple(Way(items[i], owners[at[i][0]], name) for i, name in chosen), len(workloads), taken,
            {n: _hopeful(m, quantile) for n, m in taken.items()}, quantile,
        )  # fmt: skip

    def alone(self, device: str) -> FloatArray:
        """The least percent of each way alone on a GPU of this type; infinite where it does not fit."""
        here = [way.may_use(device) for way in self.ways]
        return np.where(here, self.hopeful[device].smallest(1.0), np.inf)


def _taken(menu: Menu, rows: IntArray) -> Menu:
    """These items of a menu."""
    names = ("model", "batch", "execution_tolerance", "cycle_tolerance", "memory_mb", "least")
    more = ("least_percent", "likely_percent")
    return replace(menu, **{name: getattr(menu, name)[rows] for name in names + more})


def _companies(family: Group, few: bool) -> list[Group]:
    """Which of a family may share a queue."""
    size = len(family)
    if few:
        return [g for n in range(1, size + 1) for g in itertools.combinations(family, n)]
    return [family[i:j] for i in range(size) for j in range(i + 1, size + 1)]


def _hopeful(menu: Menu, quantile: float | None) -> Menu:
    """With every error taken in the ways' favour."""
    scale = unsteady(menu.device.latency) / (1.0 - (0.0 if quantile is None else TABLE_ERROR))
    if scale == 1.0:
        return menu
    items = menu.least.size
    cycle = replace(menu, cycle_tolerance=menu.cycle_tolerance * scale)
    return cycle.corrected(Correction(np.full(items, scale), np.ones(items)))


def unsteady(latency: LatencyModel) -> float:
    """How much faster a model may be beside more neighbours than beside fewer, by measured factors."""
    if not isinstance(latency, Calibrated):
        return 1.0
    told: dict[str, list[float]] = {}
    for f in latency.factors:
        told.setdefault(f.model, [1.0]).append(f.factor)
    return max(max(factors) / min(factors) for factors in told.values())


def contents_of(options: Options, device: str, most: int) -> Contents | None:
    """All sets of ways that fit a GPU of this type by its hopeful menu; None for more than `most`.

    A set serves a workload in one way at most, and holds no more of a pool than it has servers.
    """
    ways = options.ways
    size = options.alone(device)
    level = [[i] for i in range(len(ways)) if np.isfinite(size[i])]
    found: list[Contents] = []
    count = 0
    while level:
        rows = np.array(level, dtype=np.int64)
        grown = grow(options.hopeful[device], rows, options.quantile)
        fitting = Contents(rows[grown.fits], grown.share[grown.fits])
        count += fitting.item.shape[0]
        if count > most:
            return None
        found.append(fitting)
        level = _larger(fitting.item, size, ways)
        if len(level) > most:
            return None
    return _joined(found)


def _larger(fitting: IntArray, size: FloatArray, ways: Sequence[Way]) -> list[list[int]]:
    """Each set with one item more, in the order of the items, where plain sizes leave room."""
    level = []
    for row, room in zip(fitting.tolist(), (100.0 - size[fitting].sum(axis=1)).tolist(), strict=True):
        owners = functools.reduce(operator.or_, (ways[i].owners for i in row))
        for i in range(row[-1], len(ways)):
            if size[i] > room + SLACK:
                continue
            if not ways[i].owners & owners or (i == row[-1] and row.count(i) < ways[i].item.servers):
                level.append([*row, i])
    return level


def _joined(found: Sequence[Contents]) -> Contents:
    width = max(len(found), 1)

    def joined(parts: list[IntArray]) -> IntArray:
        padded = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1) for p in parts]
        return np.concatenate([np.empty((0, width), dtype=np.int64), *padded])

    return Contents(joined([f.item for f in found]), joined([f.share for f in found]))


@dataclass(slots=True)
class Judge:
    """Asks the exact queue which sets hold, and at what least shares.

    A queue with longer service waits longer: what is known of one curve t(k) answers for all above or below
    it, so most questions never reach the queue. A pool's servers are each asked as if all were like it.
    """

    menu: Menu
    items: Sequence[Item]
    quantile: float
    known: dict[tuple[int, int], tuple[list[FloatArray], list[FloatArray]]] = field(default_factory=dict)

    def settle(self, asked: Contents) -> tuple[BoolArray, Contents]:
        """Which of these sets hold, and the least shares at which they do.

        The shares of `asked` are right or too small: they rise where a P99 is missed.
        """
        menu, present = self.menu, asked.item >= 0
        item, share = np.where(present, asked.item, 0), np.where(present, asked.share, 0)
        last = menu.percents.size - 1
        servers = np.array([i.servers for i in self.items])
        fits = np.ones(item.shape[0], dtype=np.bool_)
        live = np.arange(item.shape[0])
        while live.size:
            who, here, at = item[live], present[live], share[live]
            slots = Slots(
                model=np.where(here, menu.model[who], 0),
                batch=np.where(here, menu.batch[who, at], 1).astype(np.float64),
                percent=np.where(here, menu.percents[at], 100.0),
                mask=here,
            )
            rows, columns = np.nonzero(here)
            its, batch = who[rows, columns], slots.batch[rows, columns].astype(np.int64)
            curves = service_curves(menu.device.latency, slots, rows, columns, self.quantile)
            pools = servers[its] > 1
            late = np.zeros(its.size, dtype=np.bool_)
            late[~pools] = ~self._held(its[~pools], curves[~pools], batch[~pools])
            # A pool's queue answers slowly: it is asked where nothing else rises any more.
            pools &= ~np.isin(rows, rows[late])
            late[pools] = ~self._held(its[pools], curves[pools], batch[pools])
            rows, columns = live[rows[late]], columns[late]
            fits[rows[share[rows, columns] == last]] = False
            share[rows, columns] = np.minimum(share[rows, columns] + 1, last)
            fits &= np.where(present, menu.percents[share], 0.0).sum(axis=1) <= 100.0 + SLACK
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
                told = self._known(*own[n])
                if told is None:
                    unknown.setdefault((own[n][0], own[n][1].size), []).append(n)
                else:
                    held[n] = told
            if not unknown:
                return held
            pending = [n for group in unknown.values() for n in group]
            # The middle one of a kind answers for half of it, whatever the answer.
            asked = [
                sorted(group, key=lambda n: float(own[n][1].sum()))[len(group) // 2]
                for group in unknown.values()
            ]
            rows = np.array(asked)
            for n, told in zip(
                asked, self.holds(items[rows], curves[rows], batch[rows]).tolist(), strict=True
            ):
                good, bad = self.known.setdefault((own[n][0], own[n][1].size), ([], []))
                (good if told else bad).append(own[n][1])

    def _known(self, item: int, curve: FloatArray) -> bool | None:
        good, bad = self.known.get((item, curve.size), ((), ()))
        if good and (curve <= np.array(good)).all(axis=1).any():
            return True
        return False if bad and (curve >= np.array(bad)).all(axis=1).any() else None

    def holds(self, items: IntArray, curves: FloatArray, batch: IntArray) -> BoolArray:
        """Whether each of these items (n,) holds with t(k) as in its row of `curves`, up to its batch."""
        asked = [self.items[i] for i in items.tolist()]
        profiles = [self.menu.device.profiles[i.model] for i in asked]
        answer = waits(
            np.array([i.rate_rps * i.servers for i in asked]),
            curves,
            batch,
            np.array([i.servers for i in asked]),
            np.array([i.constant for i in asked]),
            np.array([p.frontend_ms or 0.0 for p in profiles]),
            np.array([p.jitter or 0.0 for p in profiles]),
        )
        slo = np.array([i.slo_ms for i in asked])
        return np.asarray(answer.p99_ms <= slo * (1.0 + JUDGED))

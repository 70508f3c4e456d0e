"""One plan in the making: groups of workloads on GPUs, built by tables and corrected by the exact queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.plan import Infeasible, Rule
from controlplane.latency.protocol import FloatArray
from controlplane.planning.capacity.families import Group
from controlplane.planning.capacity.items import Item
from controlplane.planning.capacity.options import ServingOption
from controlplane.planning.capacity.planned import planned_gpus
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.joint.context import Context
from controlplane.planning.joint.dissolve import dissolve
from controlplane.planning.joint.packing import ALL_TIGHTNESSES, ONE_TIGHTNESS, Packing
from controlplane.planning.joint.queue_check import QueueCheck, Verdict
from controlplane.planning.joint.queue_sharing.grouping import FixedGpu, Grouping
from controlplane.planning.judge.finalise import Draft

DEFAULT_ITERATIONS = 24
"""Attempts to empty a GPU, and as many more for every hundred groups."""
_STEP = 0.005
"""At least so much is taken from what a late item tolerates."""
_PATIENCE = 6
"""Corrections after which the step doubles each time: what is late then is far from what the table says."""
_MOST_CORRECTIONS = 12
_MOST_REPACKED = 2
"""Times that GPUs are dissolved again after corrections."""
_MOST_OPTIONS = 4
"""Options of a group that are tried when the exact queue refuses the ones before."""

Packings = dict[str, Packing]
"""By GPU type."""


@dataclass(slots=True)
class Search:
    """One plan in the making.

    `items` are the servers of every option of every group, `home` the GPU type of each and `owner` its
    group's number. `options` are the items of each group's options, cheapest first, and `chosen` the option
    in use. `lost` are the groups that found no GPU. `fixed`: see `Grouping`.
    """

    context: Context
    groups: tuple[Group, ...]
    iterations: int
    fixed: tuple[FixedGpu, ...]
    lost: set[int] = field(default_factory=set)
    items: list[Item] = field(default_factory=list)
    home: list[str] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    options: list[list[list[int]]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    tables: dict[str, ToleranceTable] = field(default_factory=dict)

    @staticmethod
    def of(
        context: Context,
        grouping: Grouping,
        options: Sequence[Sequence[ServingOption]],
        iterations: int | None = None,
    ) -> Search:
        """With each group's `options`; `iterations`: attempts to empty a GPU, None for the usual number."""
        usual = DEFAULT_ITERATIONS * (1 + len(grouping.groups) // 100)
        attempts = usual if iterations is None else iterations
        search = Search(context, grouping.groups, attempts, grouping.fixed_gpus)
        for number, own in enumerate(options):
            search.options.append([])
            for option in own[:_MOST_OPTIONS]:
                first = len(search.items)
                search.items += [option.item] * option.item.servers
                search.home += [option.gpu_type] * option.item.servers
                search.owner += [number] * option.item.servers
                search.options[-1].append(list(range(first, len(search.items))))
        search.tables = {n: ToleranceTable.of(search.items, t) for n, t in context.gpu_types.items()}
        return search

    # -- two ways to a plan ------------------------------------------------------------------------------

    def pack(self) -> Draft:
        """GPUs for all groups."""
        self._start()
        check = QueueCheck.of(self.items, self.tables, self.context.queues)
        scale = np.ones(len(self.items))
        if not self._under_p99:
            packings = self._dissolved(self._construct(scale), self.context.request.seed)
            return self._draft(packings)
        if any(len(group) > 1 for group in self.groups):
            # Groups are cut to what pools just carry, which is closer to the limit than the table is right.
            scale = check.ask(self._each_alone(), scale).scale
        packings = self._construct(scale)
        _, scale = self._correct(packings, check, scale)
        # Corrections leave room behind: use it, as long as the result costs less.
        for again in range(_MOST_REPACKED):
            before, lost = list(self.chosen), set(self.lost)
            trial = self._dissolved(packings, self.context.request.seed + again)
            if self._cost(trial) >= self._cost(packings):
                break
            late, corrected = self._correct(trial, check, scale)
            if len(self.lost) > len(lost) or late or self._cost(trial) >= self._cost(packings):
                self.chosen, self.lost = before, lost
                break
            packings, scale = trial, corrected
        return self._draft(packings)

    def place(self, gpus: Mapping[str, Sequence[Sequence[int]]]) -> Draft:
        """These groups, by number, on these GPUs of each type, as far as they fit."""
        self._start()
        left = [list(options[0]) for options in self.options]
        packings: Packings = {}
        over: list[int] = []
        for name, packing in self._empty().items():
            items = [[left[group].pop(0) for group in gpu] for gpu in gpus[name]]
            over += packing.place(items, packing.table.likely_percent)
            packings[name] = packing
        for i in over:
            self._next_option(packings, i)
        packings = self._dissolved(packings, self.context.request.seed)
        if self._under_p99:
            check = QueueCheck.of(self.items, self.tables, self.context.queues)
            late, _ = self._correct(packings, check, np.ones(len(self.items)))
            self.lost |= {self.owner[i] for i in late}
        return self._draft(packings)

    @property
    def _under_p99(self) -> bool:
        return self.context.request.rule is Rule.P99

    def _draft(self, packings: Packings) -> Draft:
        """The plan as it stands, and the groups that are not in it: why is said of the plan that is kept."""
        lost = tuple(Infeasible(w.name, "") for n in sorted(self.lost) for w in self.groups[n])
        stands = {name: packing.stands() for name, packing in packings.items()}
        gpus = planned_gpus(stands, self.items, {name: p.table for name, p in packings.items()})
        return Draft(gpus, lost, self.context.stopped_by, queues=self.context.queues)

    def _cost(self, packings: Packings) -> float:
        return sum(self.context.gpu_types[name].price * len(p.groups) for name, p in packings.items())

    # -- options of groups -------------------------------------------------------------------------------

    def _start(self) -> None:
        """Serve every group by its cheapest option."""
        self.chosen = [0] * len(self.groups)
        self.lost = {n for n, options in enumerate(self.options) if not options}

    def _items_in_use(self) -> list[int]:
        chosen = zip(self.options, self.chosen, strict=True)
        return [i for options, now in chosen if now < len(options) for i in options[now]]

    def _in_use(self, item: int) -> bool:
        """Whether its group is still served by this item's option."""
        options, chosen = self.options[self.owner[item]], self.chosen[self.owner[item]]
        return chosen < len(options) and item in options[chosen]

    def _next_option(self, packings: Packings, item: int) -> None:
        """Serve an item's group by the next option that finds room; it is lost where none does."""
        if not self._in_use(item):
            return
        number = self.owner[item]
        options = self.options[number]
        while True:
            for packing in packings.values():
                packing.discard(set(options[self.chosen[number]]))
            self.chosen[number] += 1
            if self.chosen[number] == len(options):
                break
            if all(self._insert(packings, i) for i in options[self.chosen[number]]):
                return
        self.lost.add(number)

    def _insert(self, packings: Packings, item: int) -> bool:
        """Put an item on a GPU of its type, else of another."""
        order = sorted(packings, key=lambda name: name != self.home[item])
        return any(packings[name].insert(item) for name in order)

    # -- packings ----------------------------------------------------------------------------------------

    def _empty(self, scale: FloatArray | None = None) -> Packings:
        counts = {n: d.pool.count for n, d in self.context.request.devices.items()}
        return {
            n: Packing(table if scale is None else table.corrected(scale), counts[n])
            for n, table in self.tables.items()
        }

    def _each_alone(self) -> Packings:
        """Every item on a GPU of its own, except those with fixed neighbours."""
        packings = {n: Packing(table, None) for n, table in self.tables.items()}
        fixed = self._open_fixed(packings)
        for i in self._items_in_use():
            if i not in fixed:
                packing = packings[self.home[i]]
                packing.open_with([i], [packing.table.gpu_type.percents.size - 1])
        return packings

    def _construct(self, scale: FloatArray) -> Packings:
        """Pack each type's items; what finds no GPU of its type tries the others."""
        packings = self._empty(scale)
        fixed = self._open_fixed(packings)
        active = [i for i in self._items_in_use() if i not in fixed]
        over: list[int] = []
        for name, packing in packings.items():
            mine = [i for i in active if self.home[i] == name]
            over += packing.fill(mine, ALL_TIGHTNESSES)
        for i in over:
            if self._in_use(i) and not any(p.insert(i) for n, p in packings.items() if n != self.home[i]):
                self._next_option(packings, i)
        return packings

    def _open_fixed(self, packings: Packings) -> set[int]:
        """Open the GPUs of which the grouping says what stands there; returns the items that do."""
        in_use = zip(self.options, self.chosen, strict=True)
        left = [list(options[0]) if options and not now else [] for options, now in in_use]
        placed: set[int] = set()
        for gpu in self.fixed:
            parts = [(left[group].pop(0), share) for group, share in gpu if left[group]]
            homes = {self.home[i] for i, _ in parts}
            if len(homes) == 1 and packings[homes.pop()].open_with(*zip(*parts, strict=True)):
                placed |= {i for i, _ in parts}
        return placed

    def _dissolved(self, packings: Packings, seed: int) -> Packings:
        """The same items on fewer GPUs."""
        chance, stop = np.random.default_rng(seed), self.context.stop
        return {n: dissolve(p.copy(), self.iterations, chance, stop) for n, p in packings.items()}

    # -- corrections by the exact queue ------------------------------------------------------------------

    def _correct(
        self, packings: Packings, check: QueueCheck, scale: FloatArray
    ) -> tuple[frozenset[int], FloatArray]:
        """Give late items larger shares until none is late; returns those that still are, and the scale."""
        verdict = check.ask(packings, scale)
        for turn in range(_MOST_CORRECTIONS):
            if not verdict.late:
                break
            step = 1.0 - _STEP * 2.0 ** max(turn + 1 - _PATIENCE, 0)
            scale = np.where(verdict.late_pools, np.minimum(verdict.scale, scale * step), scale)
            self._resize(packings, scale, verdict)
            verdict = check.ask(packings, scale)
        return verdict.late, scale

    def _resize(self, packings: Packings, scale: FloatArray, verdict: Verdict) -> None:
        """Size the GPUs of late items (and of their whole pools) again, by what the items tolerate now."""
        touched = set(np.flatnonzero(verdict.late_pools).tolist())
        evicted: list[int] = []
        for name, packing in packings.items():
            packing.table = self.tables[name].corrected(scale)
            for g in range(len(packing.groups) - 1, -1, -1):
                if touched.isdisjoint(packing.groups[g]):
                    continue
                group = list(packing.groups[g])
                while group and not packing.replace(g, group):
                    out = min(group, key=packing.smallest_percent)
                    group.remove(out)
                    evicted.append(out)
                if not group:
                    packing.remove(g)
        evicted.sort(key=lambda i: -min(p.smallest_percent(i) for p in packings.values()))
        pending = [i for i in evicted if not any(p.squeeze(i) for p in packings.values())]
        for packing in packings.values():
            pending = packing.fill(pending, ONE_TIGHTNESS)
        for i in pending:
            self._next_option(packings, i)

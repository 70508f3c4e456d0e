"""One plan in the making: groups packed by tables, corrected by the exact queue, and GPUs emptied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.plan import Infeasible, Rule
from controlplane.latency.protocol import FloatArray
from controlplane.planning.capacity.context import Context
from controlplane.planning.capacity.items import Group, Item
from controlplane.planning.capacity.options import ServingOption
from controlplane.planning.capacity.sizing import planned_gpus
from controlplane.planning.capacity.tolerance import ToleranceTable
from controlplane.planning.joint.grouping import FixedGpu, Grouping
from controlplane.planning.joint.packing import ALL_TIGHTNESSES, ONE_TIGHTNESS, Packing, empty_gpus
from controlplane.planning.joint.queue_check import QueueCheck, Verdict
from controlplane.planning.judge.finalise import Draft

DEFAULT_ITERATIONS = 24
"""Attempts to empty a GPU, and as many more for every hundred groups."""
_STEP = 0.005
"""At least so much is taken from what a late item tolerates."""
_PATIENCE = 6
"""Corrections after which the step doubles each time: what is late then is far from what the table says."""
_MOST_CORRECTIONS = 12
_MOST_REPACKED = 2
"""Times that GPUs are emptied again after corrections."""
_MOST_OPTIONS = 4
"""Options of a group that are tried when the exact queue refuses the ones before."""

Packings = dict[str, Packing]
"""By GPU type."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One server of one option, by number, of one group, by number."""

    group: int
    option: int
    item: Item
    gpu_type: str


@dataclass(slots=True)
class Search:
    """One plan in the making.

    `units` are the servers of every option of every group. `options` are, of each group, the units of each
    option by number, cheapest first, and `chosen` the option in use: beyond the last one where a group found
    no GPU. `fixed`: see `Grouping`.
    """

    context: Context
    groups: tuple[Group, ...]
    iterations: int
    fixed: tuple[FixedGpu, ...]
    units: list[Unit] = field(default_factory=list)
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
        groups = tuple(pool.group for pool in grouping.pools)
        usual = DEFAULT_ITERATIONS * (1 + len(groups) // 100)
        search = Search(context, groups, usual if iterations is None else iterations, grouping.fixed_gpus)
        for group, own in enumerate(options):
            search.options.append([])
            for n, option in enumerate(own[:_MOST_OPTIONS]):
                first = len(search.units)
                search.units += [Unit(group, n, option.item, option.gpu_type)] * option.item.servers
                search.options[-1].append(list(range(first, len(search.units))))
        search.chosen = [0] * len(search.groups)
        items = [unit.item for unit in search.units]
        search.tables = {n: ToleranceTable.of(items, t) for n, t in context.gpu_types.items()}
        return search

    # -- two ways to a plan ------------------------------------------------------------------------------

    def pack(self) -> Draft:
        """GPUs for all groups."""
        scale = np.ones(len(self.units))
        if not self._under_p99:
            return self._draft(self._emptied(self._construct(scale), 0))
        check = self._queue_check()
        if any(len(group) > 1 for group in self.groups):
            # Groups are cut to what pools just carry, which is closer to the limit than the table is right.
            scale = check.ask(self._each_alone(), scale).scale
        packings = self._construct(scale)
        _, scale = self._correct(packings, check, scale)
        # Corrections leave room behind: use it, as long as the result costs less.
        for again in range(_MOST_REPACKED):
            before, lost = list(self.chosen), len(self._lost)
            trial = self._emptied(packings, again)
            if self._cost(trial) >= self._cost(packings):
                break
            late, corrected = self._correct(trial, check, scale)
            if len(self._lost) > lost or late or self._cost(trial) >= self._cost(packings):
                self.chosen = before
                break
            packings, scale = trial, corrected
        return self._draft(packings)

    def place(self, gpus: Mapping[str, Sequence[Sequence[int]]]) -> Draft:
        """These groups, by number, on these GPUs of each type, as far as they fit."""
        left = [list(options[0]) for options in self.options]
        packings = self._empty()
        over: list[int] = []
        for name, packing in packings.items():
            units = [[left[group].pop(0) for group in gpu] for gpu in gpus[name]]
            over += packing.place(units, packing.table.likely_percent)
        for i in over:
            self._next_option(packings, i)
        packings = self._emptied(packings, 0)
        if self._under_p99:
            late, _ = self._correct(packings, self._queue_check(), np.ones(len(self.units)))
            for group in {self.units[i].group for i in late}:
                self.chosen[group] = len(self.options[group])
        return self._draft(packings)

    @property
    def _under_p99(self) -> bool:
        return self.context.request.rule is Rule.P99

    def _queue_check(self) -> QueueCheck:
        return QueueCheck.of([unit.item for unit in self.units], self.tables, self.context.queues)

    def _draft(self, packings: Packings) -> Draft:
        """The plan as it stands, and the groups that are not in it: why is said of the plan that is kept."""
        lost = tuple(Infeasible(w.name, "") for n in self._lost for w in self.groups[n])
        fullest_first = {
            name: sorted(packing.gpus, key=lambda gpu: (-gpu.total, gpu.items))
            for name, packing in packings.items()
        }
        tables = {name: packing.table for name, packing in packings.items()}
        gpus = planned_gpus(fullest_first, [unit.item for unit in self.units], tables)
        return Draft(gpus, lost, self.context.stopped_by, queues=self.context.queues)

    def _cost(self, packings: Packings) -> float:
        return sum(self.context.gpu_types[name].price * len(p.gpus) for name, p in packings.items())

    # -- options of groups -------------------------------------------------------------------------------

    @property
    def _lost(self) -> list[int]:
        """The groups that found no GPU."""
        chosen = zip(self.chosen, self.options, strict=True)
        return [group for group, (now, options) in enumerate(chosen) if now == len(options)]

    def _units_in_use(self) -> list[int]:
        chosen = zip(self.chosen, self.options, strict=True)
        return [i for now, options in chosen if now < len(options) for i in options[now]]

    def _next_option(self, packings: Packings, unit: int) -> None:
        """Serve a unit's group by the next option that finds room; it is lost where none does."""
        group, option = self.units[unit].group, self.units[unit].option
        if self.chosen[group] != option:  # it is served otherwise by now
            return
        options = self.options[group]
        while True:
            for packing in packings.values():
                packing.discard(set(options[self.chosen[group]]))
            self.chosen[group] += 1
            if self.chosen[group] == len(options):
                return
            # On a GPU of its type, else of another.
            own = self.units[options[self.chosen[group]][0]].gpu_type
            order = sorted(packings, key=lambda name: name != own)
            if all(any(packings[name].insert(i) for name in order) for i in options[self.chosen[group]]):
                return

    # -- packings ----------------------------------------------------------------------------------------

    def _empty(self) -> Packings:
        devices = self.context.request.devices
        return {n: Packing(table, devices[n].pool.count) for n, table in self.tables.items()}

    def _each_alone(self) -> Packings:
        """Every unit on a GPU of its own, except those with fixed neighbours."""
        packings = {n: Packing(table, None) for n, table in self.tables.items()}
        fixed = self._open_fixed(packings)
        for i in self._units_in_use():
            if i not in fixed:
                packing = packings[self.units[i].gpu_type]
                packing.open_with([i], [packing.table.gpu_type.percents.size - 1])
        return packings

    def _construct(self, scale: FloatArray) -> Packings:
        """Pack each type's units; what finds no GPU of its type tries the others."""
        packings = self._empty()
        for packing in packings.values():
            packing.table = packing.table.corrected(scale)
        fixed = self._open_fixed(packings)
        active = [i for i in self._units_in_use() if i not in fixed]
        over: list[int] = []
        for name, packing in packings.items():
            mine = [i for i in active if self.units[i].gpu_type == name]
            over += packing.fill(mine, ALL_TIGHTNESSES)
        for i in over:
            unit = self.units[i]
            others = (packing for name, packing in packings.items() if name != unit.gpu_type)
            if self.chosen[unit.group] == unit.option and not any(p.insert(i) for p in others):
                self._next_option(packings, i)
        return packings

    def _open_fixed(self, packings: Packings) -> set[int]:
        """Open the GPUs of which the grouping says what stands there; returns the units that do."""
        chosen = zip(self.chosen, self.options, strict=True)
        left = [list(options[0]) if options and not now else [] for now, options in chosen]
        placed: set[int] = set()
        for gpu in self.fixed:
            parts = [(left[part.group].pop(0), part.share) for part in gpu if left[part.group]]
            homes = {self.units[i].gpu_type for i, _ in parts}
            if len(homes) == 1 and packings[homes.pop()].open_with(*zip(*parts, strict=True)):
                placed |= {i for i, _ in parts}
        return placed

    def _emptied(self, packings: Packings, again: int) -> Packings:
        """The same units on fewer GPUs; copies."""
        chance, stop = np.random.default_rng(self.context.request.seed + again), self.context.stop
        return {n: empty_gpus(p.copy(), self.iterations, chance, stop) for n, p in packings.items()}

    # -- corrections by the exact queue ------------------------------------------------------------------

    def _correct(
        self, packings: Packings, check: QueueCheck, scale: FloatArray
    ) -> tuple[frozenset[int], FloatArray]:
        """Give late units larger shares until none is late; returns those that still are, and the scale."""
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
        """Size the GPUs of late units (and of their whole pools) again, by what the units tolerate now."""
        touched = set(np.flatnonzero(verdict.late_pools).tolist())
        evicted: list[int] = []
        for name, packing in packings.items():
            packing.table = self.tables[name].corrected(scale)
            # What no longer fits the GPUs of the touched units is taken away, the smallest first.
            for g in range(len(packing.gpus) - 1, -1, -1):
                units = list(packing.gpus[g].items)
                if touched.isdisjoint(units):
                    continue
                while units and not packing.replace(g, units):
                    out = min(units, key=packing.smallest_percent)
                    units.remove(out)
                    evicted.append(out)
                if not units:
                    packing.gpus.pop(g)
        evicted.sort(key=lambda i: -min(p.smallest_percent(i) for p in packings.values()))
        pending = [i for i in evicted if not any(p.best_fit_insert(i) for p in packings.values())]
        for packing in packings.values():
            pending = packing.fill(pending, ONE_TIGHTNESS)
        for i in pending:
            self._next_option(packings, i)

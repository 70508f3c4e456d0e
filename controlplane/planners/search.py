"""One plan in the making: groups on GPUs, built by tables and put right by the exact queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.plan import Infeasible, PlannedGpu, Rule
from controlplane.domain.workload import Workload
from controlplane.planners.board import Queues
from controlplane.planners.bound import prices
from controlplane.planners.finish import Draft
from controlplane.planners.grouping import Group, Grouping, Stand, by_slo
from controlplane.planners.hearing import Hearing, Said
from controlplane.planners.kinds import Kind, kinds_of, with_servers
from controlplane.planners.menu import Alone, Correction, Item, Menu
from controlplane.planners.packing import FIRST_LOOK, THOROUGH, Packing, dissolve, planned
from controlplane.planners.protocol import Device, PlanRequest

DEFAULT_ITERATIONS = 24
"""Attempts to empty a GPU, and as many more for every hundred workloads."""
STEP = 0.005
"""At least so much is taken from what a refused item tolerates."""
PATIENCE = 6
"""Corrections after which that doubles each time: what is refused then is far from what the table says."""
MOST_CORRECTIONS = 12
MOST_REPACKED = 2
"""Times GPUs are dissolved again after corrections."""
MANY = 400
"""Items from which one packing is made instead of several: on 1,000 they differ by less than 1 %."""
MOST_WAYS = 4
"""Ways to serve a workload that are tried when the exact queue refuses the ones before."""


@dataclass(slots=True)
class Desk:
    """What all searches for one plan share. `workloads` are in an order that the spec's does not change."""

    request: PlanRequest
    quantile: float | None
    workloads: list[Workload]
    alone: dict[str, Alone]
    started: float
    stopped_by: str = "converged"
    queues: Queues = field(default_factory=Queues)

    @staticmethod
    def of(request: PlanRequest, started: float) -> Desk:
        """For all workloads of a request; `started` by its clock."""
        quantile = request.quantile if request.rule is Rule.P99 else None
        # The order of the spec decides nothing, and names only between equals.
        workloads = sorted(request.workloads, key=lambda w: (w.model, *by_slo(w)))
        alone = {name: Alone.of(d, quantile) for name, d in request.devices.items()}
        return Desk(request, quantile, workloads, alone, started)

    def stop(self) -> bool:
        """Whether the ceiling in seconds is reached."""
        budget = self.request.budget_s
        if budget is None or self.request.clock.monotonic() - self.started < budget:
            return False
        self.stopped_by = "budget"
        return True

    @property
    def told(self) -> tuple[Mapping[str, Device], Mapping[str, Alone], Rule, float | None]:
        """What `kinds` and `grouping` ask for."""
        return self.request.devices, self.alone, self.request.rule, self.quantile


@dataclass(slots=True)
class Search:
    """One plan in the making.

    `items` are the servers of every way to serve a group, `home` the GPU type of each and `owner` its group's
    number; `ways` are the items of each way, cheapest first, and `way` the one in force. `lost` are the
    groups that found no GPU, `taken` whether none was left. `stand`: see `Grouping.gpus`.
    """

    desk: Desk
    groups: tuple[Group, ...]
    kinds: Sequence[Sequence[Kind]]
    lost: set[int] = field(default_factory=set)
    taken: bool = False
    items: list[Item] = field(default_factory=list)
    home: list[str] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    ways: list[list[list[int]]] = field(default_factory=list)
    way: list[int] = field(default_factory=list)
    menus: dict[str, Menu] = field(default_factory=dict)
    stand: tuple[Stand, ...] = ()

    @staticmethod
    def of(desk: Desk, grouping: Grouping, kinds: Sequence[Sequence[Kind]] | None = None) -> Search:
        """`kinds` of its groups, where they are known already."""
        request = desk.request
        if kinds is None:
            kinds = with_servers(kinds_of(grouping.groups, *desk.told), grouping, *desk.told)
        search = Search(desk, grouping.groups, kinds, stand=grouping.gpus)
        for number, choices in enumerate(kinds):
            search.ways.append([])
            for kind in choices[:MOST_WAYS]:
                first = len(search.items)
                search.items += [kind.item] * kind.item.servers
                search.home += [kind.device] * kind.item.servers
                search.owner += [number] * kind.item.servers
                search.ways[-1].append(list(range(first, len(search.items))))
        search.menus = {
            name: Menu.of(search.items, device, request.rule, desk.quantile, desk.alone[name])
            for name, device in request.devices.items()
        }
        return search

    @property
    def iterations(self) -> int:
        """Attempts to empty a GPU."""
        told = self.desk.request.iterations
        return DEFAULT_ITERATIONS * (1 + len(self.groups) // 100) if told is None else told

    def draft(self, gpus: tuple[PlannedGpu, ...]) -> Draft:
        """These GPUs, and who is not on them; why is told of the plan that is kept."""
        lost = tuple(Infeasible(w.name, "") for n in sorted(self.lost) for w in self.groups[n])
        return Draft(gpus, lost, self.desk.stopped_by, queues=self.desk.queues)

    def start(self) -> None:
        """Serve every group in its cheapest way."""
        self.way = [0] * len(self.groups)
        self.lost = {n for n, ways in enumerate(self.ways) if not ways}

    def active(self) -> list[int]:
        """The items in force."""
        return [
            i for ways, now in zip(self.ways, self.way, strict=True) if now < len(ways) for i in ways[now]
        ]

    def pack(self) -> tuple[PlannedGpu, ...]:
        """GPUs for all workloads."""
        request = self.desk.request
        self.start()
        correction = Correction.none(len(self.items))
        hearing = Hearing.of(self.items, self.menus, self.desk.quantile, self.desk.queues)
        if request.rule is Rule.P99:
            if any(len(group) > 1 for group in self.groups):
                # Groups are cut to what pools just carry: nearer than the table tells.
                correction = hearing.ask(self.by_itself(), correction).correction
                self.skip(correction)
            # A first packing shows what neighbours do to small batches, which no table knows.
            correction = hearing.ask(self.construct(correction, thorough=False), correction).correction
            self.start()
            self.skip(correction)
        iterations = self.iterations
        packings = self.construct(correction, thorough=True)
        if request.rule is not Rule.P99:
            return planned(self.dissolved(packings, iterations, request.seed), self.items, request.devices)
        _, correction = self.settle(packings, hearing, correction)
        # Corrections leave room behind: use it, as long as the result costs less.
        for again in range(MOST_REPACKED):
            before, lost = list(self.way), set(self.lost)
            trial = self.dissolved(packings, iterations, request.seed + again)
            if self.cost(trial) >= self.cost(packings):
                break
            refused, told = self.settle(trial, hearing, correction)
            if len(self.lost) > len(lost) or refused or self.cost(trial) >= self.cost(packings):
                self.way, self.lost = before, lost
                break
            packings, correction = trial, told
        return planned(packings, self.items, request.devices)

    def settled(self, gpus: Mapping[str, Sequence[Sequence[int]]]) -> tuple[PlannedGpu, ...]:
        """These groups, by number, on these GPUs of each type, as far as they fit."""
        self.start()
        correction = Correction.none(len(self.items))
        left = [list(ways[0]) for ways in self.ways]
        packings: dict[str, Packing] = {}
        over: list[int] = []
        for name, device in self.desk.request.devices.items():
            packings[name] = Packing(self.menus[name], self.desk.quantile, device.pool.count)
            items = [[left[n].pop(0) for n in gpu] for gpu in gpus[name]]
            over += packings[name].place(items, self.menus[name].likely_percent)
        for i in over:
            self.next_way(packings, i)
        packings = self.dissolved(packings, self.iterations, self.desk.request.seed)
        if self.desk.request.rule is Rule.P99:
            hearing = Hearing.of(self.items, self.menus, self.desk.quantile, self.desk.queues)
            refused, _ = self.settle(packings, hearing, correction)
            self.lost |= {self.owner[i] for i in refused}
        return planned(packings, self.items, self.desk.request.devices)

    def by_itself(self) -> dict[str, Packing]:
        """Every item on a whole GPU, but for those whose neighbours are settled."""
        packings = {n: Packing(menu, self.desk.quantile, None) for n, menu in self.menus.items()}
        settled = self.side_by_side(packings)
        for i in self.active():
            if i in settled:
                continue
            packing = packings[self.home[i]]
            packing.groups.append([i])
            packing.shares.append([packing.menu.percents.size - 1])
            packing.totals.append(100.0)
        return packings

    def dissolved(self, packings: Mapping[str, Packing], iterations: int, seed: int) -> dict[str, Packing]:
        """The same workloads on fewer GPUs."""
        chance = np.random.default_rng(seed)
        return {n: dissolve(p.copy(), iterations, chance, self.desk.stop) for n, p in packings.items()}

    def skip(self, correction: Correction) -> None:
        """Pass over ways to serve that the exact queue refuses whatever the share."""
        corrected = {n: m.corrected(correction).least_percent for n, m in self.menus.items()}
        # The exact queue was asked about who stands beside a given other: there the table has no say.
        heard = {group for gpu in self.stand for group, _ in gpu}
        for number, ways in enumerate(self.ways):
            while number not in heard and self.way[number] + 1 < len(ways):
                first = ways[self.way[number]][0]
                if any(np.isfinite(least[first]) for least in corrected.values()):
                    break
                self.way[number] += 1

    def cost(self, packings: Mapping[str, Packing]) -> float:
        """By `bound.prices`."""
        price = prices(self.desk.request.devices)
        return sum(price[name] * len(p.groups) for name, p in packings.items())

    def construct(self, correction: Correction, thorough: bool) -> dict[str, Packing]:
        """Pack each type's items; what finds no GPU of its type tries the others."""
        packings: dict[str, Packing] = {}
        over: list[int] = []
        for name, device in self.desk.request.devices.items():
            menu = self.menus[name].corrected(correction)
            packings[name] = Packing(menu, self.desk.quantile, device.pool.count)
        settled = self.side_by_side(packings)
        active = [i for i in self.active() if i not in settled]
        for name, packing in packings.items():
            mine = [i for i in active if self.home[i] == name]
            over += packing.fill(mine, THOROUGH if thorough and self.cheap(mine) else FIRST_LOOK)
        for i in over:
            if self.in_force(i) and not any(p.insert(i) for n, p in packings.items() if n != self.home[i]):
                self.next_way(packings, i)
        return packings

    def side_by_side(self, packings: Mapping[str, Packing]) -> set[int]:
        """Open the GPUs of which the grouping says who stands there; returns the items that do."""
        in_force = zip(self.ways, self.way, strict=True)
        left = [list(ways[0]) if ways and not now else [] for ways, now in in_force]
        placed: set[int] = set()
        for gpu in self.stand:
            parts = [(left[group].pop(0), share) for group, share in gpu if left[group]]
            homes = {self.home[i] for i, _ in parts}
            if len(homes) == 1 and packings[homes.pop()].settle(*zip(*parts, strict=True)):
                placed |= {i for i, _ in parts}
        return placed

    def in_force(self, item: int) -> bool:
        """Whether its group is still served in this item's way."""
        number = self.owner[item]
        return self.way[number] < len(self.ways[number]) and item in self.ways[number][self.way[number]]

    def cheap(self, items: Sequence[int]) -> bool:
        """Whether several packings are affordable: under P99 the latency model answers slowly."""
        return self.desk.request.rule is not Rule.P99 or len(items) <= MANY

    def next_way(self, packings: Mapping[str, Packing], item: int) -> None:
        """Serve an item's group in the next way that finds room; it is lost where none does."""
        if not self.in_force(item):
            return
        number = self.owner[item]
        ways = self.ways[number]
        while True:
            for packing in packings.values():
                packing.discard(set(ways[self.way[number]]))
            self.way[number] += 1
            if self.way[number] == len(ways):
                break
            if all(self.place(packings, i) for i in ways[self.way[number]]):
                return
        self.lost.add(number)
        self.taken = all(p.full for p in packings.values())

    def place(self, packings: Mapping[str, Packing], item: int) -> bool:
        """Put an item on a GPU of its type, else of another."""
        order = sorted(packings, key=lambda n: n != self.home[item])
        return any(packings[n].insert(item) for n in order)

    def settle(
        self, packings: dict[str, Packing], hearing: Hearing, correction: Correction
    ) -> tuple[frozenset[int], Correction]:
        """Give more to what the exact queue refuses until it refuses nothing; returns what it still does."""
        said = hearing.ask(packings, correction)
        for turn in range(MOST_CORRECTIONS):
            if not said.refused:
                break
            step = 1.0 - STEP * 2.0 ** max(turn + 1 - PATIENCE, 0)
            now, told = said.refusing, said.correction
            correction = Correction(
                np.where(now, np.minimum(told.scale, correction.scale * step), correction.scale),
                np.where(now, np.maximum(told.excess, correction.excess / step), correction.excess),
            )
            self.correct(packings, correction, said)
            said = hearing.ask(packings, correction)
        return said.refused, correction

    def correct(self, packings: dict[str, Packing], correction: Correction, said: Said) -> None:
        """Grow the GPUs of refused items (and of their whole pool) again, by what they tolerate now."""
        touched = set(np.flatnonzero(said.refusing).tolist())
        evicted: list[int] = []
        for name, packing in packings.items():
            packing.menu = self.menus[name].corrected(correction)
            for g in range(len(packing.groups) - 1, -1, -1):
                if touched.isdisjoint(packing.groups[g]):
                    continue
                group = list(packing.groups[g])
                while group and not packing.regrow(g, group):
                    out = min(group, key=packing.least)
                    group.remove(out)
                    evicted.append(out)
                if not group:
                    packing.remove(g)
        evicted.sort(key=lambda i: -min(p.least(i) for p in packings.values()))
        pending = [i for i in evicted if not any(p.squeeze(i) for p in packings.values())]
        for packing in packings.values():
            pending = packing.fill(pending, FIRST_LOOK)
        for i in pending:
            self.next_way(packings, i)

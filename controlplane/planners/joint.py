"""The default strategy: batch, share, GPU, servers and shadow chosen together.

Each workload's ways to be served come from `kinds`, each share's worth from `menu`; `packing` builds and
improves. The tables a search runs on are guides: before a plan leaves, the exact
queue is asked about every partition, and what it refuses is given more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.domain.plan import Infeasible, Plan, PlannedGpu, Rule
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import BoolArray
from controlplane.planners import waiting
from controlplane.planners.board import JITTER_P99, Board, loads
from controlplane.planners.changes import renamed
from controlplane.planners.finish import Draft, finish, gpu_of, partition_of
from controlplane.planners.keep import kept
from controlplane.planners.kinds import Kind, kinds_of
from controlplane.planners.menu import POOL_CARE, Alone, Correction, Item, Menu
from controlplane.planners.packing import FIRST_LOOK, THOROUGH, Packing, dissolve
from controlplane.planners.proof import proven
from controlplane.planners.protocol import PlanRequest
from controlplane.planners.refusal import refusal
from controlplane.planners.standby import held

DEFAULT_ITERATIONS = 24
"""Attempts to empty a GPU, and as many more for every hundred workloads."""
ALL_TAKEN = "all GPUs are taken"
CARE = 0.999
"""Times what the exact queue says an item tolerates: neighbours may still change a little."""
OVERLOADED = 0.97
"""The same where the queue does not settle and says nothing."""
STEP = 0.995
"""At least so much is taken from what a refused item tolerates."""
BARELY = 0.005
"""A slowdown below this is none: what differs is the table's own error."""
MOST_EXCESS = 20.0
"""Neighbours' effect on a request is taken as at most this many times that on a full batch."""
MOST_CORRECTIONS = 12
MANY = 400
"""Items from which one packing is made instead of several: on 1,000 they differ by less than 1 %."""
MOST_WAYS = 4
"""Ways to serve a workload that are tried when the exact queue refuses the ones before."""


@dataclass(frozen=True, slots=True)
class Joint:
    """See the module."""

    name: str = "joint"
    rule: Rule = Rule.P99
    latency_model: str = "ours"

    def plan(self, request: PlanRequest) -> Plan:
        """See `Strategy.plan`."""
        started = request.clock.monotonic()
        draft = _Search.of(request, started).run()
        if request.previous is None:
            return finish(self.name, request, draft, started)
        fresh = finish(
            self.name, request, replace(draft, gpus=renamed(draft.gpus, request.previous)), started
        )
        gpus = kept(request.previous, request)
        if gpus is None:
            return fresh
        same = finish(self.name, request, replace(draft, gpus=gpus, infeasible=()), started)
        # What runs now moves nothing: it stays unless another plan costs less.
        worth = (len(fresh.infeasible), sum(g.price_per_hour for g in fresh.gpus))
        return same if same.verified and (0, sum(g.price_per_hour for g in same.gpus)) <= worth else fresh


def strategy() -> Joint:
    """The default strategy."""
    return Joint()


@dataclass(frozen=True, slots=True)
class _Said:
    """The GPUs, the items whose promise breaks, those and their pools, and how queue and table differ."""

    gpus: tuple[PlannedGpu, ...]
    refused: frozenset[int]
    refusing: BoolArray
    correction: Correction


def _cost(said: _Said) -> float:
    return sum(g.price_per_hour for g in said.gpus)


@dataclass(slots=True)
class _Search:
    request: PlanRequest
    quantile: float | None
    workloads: list[Workload]
    alone: dict[str, Alone]
    kinds: list[list[Kind]]
    started: float
    stopped_by: str = "converged"
    lost: dict[str, Infeasible] = field(default_factory=dict)
    banned: set[str] = field(default_factory=set)

    @staticmethod
    def of(request: PlanRequest, started: float) -> _Search:
        quantile = request.quantile if request.rule is Rule.P99 else None
        # The order of the spec decides nothing, and names only between equals.
        workloads = sorted(request.workloads, key=lambda w: (w.model, w.slo_ms, w.rate_rps, w.name))
        alone = {name: Alone.of(d, quantile) for name, d in request.devices.items()}
        kinds = kinds_of(workloads, request.devices, alone, request.rule, quantile)
        return _Search(request, quantile, workloads, alone, kinds, started)

    def stop(self) -> bool:
        """Whether the ceiling in seconds is reached."""
        budget = self.request.budget_s
        if budget is None or self.request.clock.monotonic() - self.started < budget:
            return False
        self.stopped_by = "budget"
        return True

    def run(self) -> Draft:
        for w, ways in zip(self.workloads, self.kinds, strict=True):
            if not ways:
                self.refuse(w)
        ways_left = [list(ways) for ways in self.kinds]
        for _ in range(MOST_WAYS):
            self.banned = set()
            gpus = self.pack([ways[0] if ways else None for ways in ways_left])
            if not self.banned:
                break
            for w, ways in zip(self.workloads, ways_left, strict=True):
                if w.name in self.banned:
                    self.lost.pop(w.name, None)
                    del ways[0]
                    if not ways:
                        self.refuse(w)
        lost = tuple(self.lost[w.name] for w in self.request.workloads if w.name in self.lost)
        draft = Draft(gpus, lost, self.stopped_by)
        return proven(
            draft, self.workloads, self.kinds, self.request, self.alone, self.quantile, self.stop
        )  # fmt: skip

    def refuse(self, workload: Workload) -> None:
        """Note that nothing holds a workload."""
        self.lost[workload.name] = refusal(workload, self.request, self.alone, self.quantile)

    def pack(self, chosen: Sequence[Kind | None]) -> tuple[PlannedGpu, ...]:
        """GPUs for workloads served in these ways."""
        request = self.request
        items: list[Item] = []
        homes: list[str] = []
        for kind in chosen:
            if kind is not None:
                items += [kind.item] * kind.item.servers
                homes += [kind.device] * kind.item.servers
        menus = {
            name: Menu.of(items, device, request.rule, self.quantile, self.alone[name])
            for name, device in request.devices.items()
        }
        correction = Correction.none(len(items))
        if request.rule is Rule.P99:
            # A first packing shows what neighbours do to small batches, which no table knows.
            first = self.construct(menus, correction, items, homes, iterations=0)
            correction = self.ask_queue(first, menus, items, correction).correction
            self.lost = {n: i for n, i in self.lost.items() if not i.reason.startswith(ALL_TAKEN)}
        iterations = request.iterations
        if iterations is None:
            iterations = DEFAULT_ITERATIONS * (1 + len(self.workloads) // 100)
        packings = self.construct(menus, correction, items, homes, iterations)
        best = self.settle(packings, menus, items, correction)
        if request.rule is not Rule.P99 or self.banned:
            return best.gpus
        # The corrections left room behind: use it, and keep the result where it costs less.
        lost = dict(self.lost)
        again = {
            n: dissolve(p.copy(), iterations, random.Random(request.seed), self.stop)
            for n, p in packings.items()
        }
        if sum(len(p.groups) for p in again.values()) < len(best.gpus):
            second = self.settle(again, menus, items, best.correction)
            if not second.refused and not self.banned and _cost(second) < _cost(best):
                return second.gpus
            self.lost, self.banned = lost, set()
        return best.gpus

    def construct(
        self, menus: Mapping[str, Menu], correction: Correction, items: Sequence[Item], homes: Sequence[str],
        iterations: int,
    ) -> dict[str, Packing]:  # fmt: skip
        """Pack each type's items; what finds no GPU of its type tries the others."""
        packings: dict[str, Packing] = {}
        over: list[int] = []
        for name, device in self.request.devices.items():
            packing = Packing(menus[name].corrected(correction), self.quantile, device.pool.count)
            mine = [i for i, home in enumerate(homes) if home == name]
            over += packing.fill(mine, THOROUGH if iterations and self.cheap(mine) else FIRST_LOOK)
            packings[name] = dissolve(packing, iterations, random.Random(self.request.seed), self.stop)
        for i in over:
            if not any(p.insert(i) for n, p in packings.items() if n != homes[i]):
                self.give_up(packings, items, i)
        return packings

    def cheap(self, items: Sequence[int]) -> bool:
        """Whether several packings are affordable: under P99 the latency model answers slowly."""
        return self.request.rule is not Rule.P99 or len(items) <= MANY

    def give_up(self, packings: Mapping[str, Packing], items: Sequence[Item], item: int) -> None:
        """No GPU is left for an item: its workload goes, with all its servers."""
        for w in items[item].workloads:
            if any(not p.full for p in packings.values()):
                # Not for want of GPUs: the exact queue refuses this way to serve it.
                self.banned.add(w.name)
            types = ", ".join(f"{d.pool.count} {n}" for n, d in self.request.devices.items())
            self.lost[w.name] = Infeasible(w.name, f"{ALL_TAKEN}: {types}")
        same = {i for i, other in enumerate(items) if other is items[item]}
        for packing in packings.values():
            for g in range(len(packing.groups) - 1, -1, -1):
                left = [i for i in packing.groups[g] if i not in same]
                if not left:
                    packing.remove(g)
                elif len(left) < len(packing.groups[g]):
                    packing.regrow(g, left)

    def settle(
        self, packings: dict[str, Packing], menus: Mapping[str, Menu], items: Sequence[Item],
        correction: Correction,
    ) -> _Said:  # fmt: skip
        """Ask the exact queue; give more to what it refuses until it refuses nothing."""
        said = self.ask_queue(packings, menus, items, correction)
        for _ in range(MOST_CORRECTIONS):
            if not said.refused:
                break
            now, told = said.refusing, said.correction
            correction = Correction(
                np.where(now, np.minimum(told.scale, correction.scale * STEP), correction.scale),
                np.where(now, np.maximum(told.excess, correction.excess / STEP), correction.excess),
            )
            self.correct(packings, menus, items, correction, said.refused)
            said = self.ask_queue(packings, menus, items, correction)
        return replace(said, correction=correction)

    def ask_queue(
        self, packings: Mapping[str, Packing], menus: Mapping[str, Menu], items: Sequence[Item],
        correction: Correction,
    ) -> _Said:  # fmt: skip
        """What the judge's own arithmetic says of every item where it stands."""
        gpus, at = self.planned(packings, items)
        rule, devices = self.request.rule, self.request.devices
        if rule is not Rule.P99:
            return _Said(gpus, frozenset(), np.zeros(len(items), dtype=np.bool_), correction)
        boards = {
            name: Board.of([g for g in gpus if g.type == name], devices[name])
            for name, p in packings.items()
            if p.groups
        }
        found = loads(boards, devices, rule, self.quantile)
        scale, excess = correction.scale.copy(), correction.excess.copy()
        refused: set[int] = set()
        for name, board in boards.items():
            kept = held(board, found[name], rule)
            execution, p99 = found[name].times.execution_ms, found[name].p99_ms
            for i, row in enumerate(at[name]):
                for j, n in enumerate(row):
                    scale[n], excess[n] = self._told(
                        menus[name], items[n], board, (i, j), float(execution[i, j]), float(p99[i, j]),
                        scale[n],
                    )  # fmt: skip
                    if not kept[i, j]:
                        refused.add(n)
        # A pool stands or falls as one.
        least: dict[int, float] = {}
        most: dict[int, float] = {}
        for n, item in enumerate(items):
            least[id(item)] = min(scale[n], least.get(id(item), np.inf))
            most[id(item)] = max(excess[n], most.get(id(item), 0.0))
        bad = {id(items[n]) for n in refused}
        told = Correction(np.array([least[id(i)] for i in items]), np.array([most[id(i)] for i in items]))
        return _Said(gpus, frozenset(refused), np.array([id(i) in bad for i in items], dtype=np.bool_), told)

    def _told(
        self, menu: Menu, item: Item, board: Board, at: tuple[int, int], execution: float, p99: float,
        scale: float,
    ) -> tuple[float, float]:  # fmt: skip
        """An item's scale and excess, by the exact P99 where it stands."""
        m, batch = int(board.slots.model[at]), int(board.slots.batch[at])
        if not np.isfinite(p99):
            return scale * OVERLOADED, 2.0
        share = int(np.searchsorted(menu.percents, board.slots.percent[at] - 1e-9))
        full = float(menu.alone.execution[m, batch - 1, share])
        amounts_to = waiting.effective_slowdown(
            item.rate_rps, p99 - float(board.frontend_ms[at]), full,
            float(menu.alone.execution[m, 0, share]), item.servers, waiting.BATCHES.index(batch),
            JITTER_P99 * float(board.jitter[at]),
        )  # fmt: skip
        if item.servers > 1:
            amounts_to /= POOL_CARE
        slowdown = execution / full
        if slowdown < 1.0 + BARELY:
            return CARE * slowdown / amounts_to, 1.0
        excess = (amounts_to * scale / CARE - 1.0) / (slowdown - 1.0)
        return scale, float(np.clip(excess, 1.0, MOST_EXCESS))

    def correct(
        self, packings: dict[str, Packing], menus: Mapping[str, Menu], items: Sequence[Item],
        correction: Correction, refused: frozenset[int],
    ) -> None:  # fmt: skip
        """Grow the GPUs of refused items (and of their whole pool) again, by what they tolerate now."""
        pools = {id(items[i]) for i in refused}
        touched = {i for i, item in enumerate(items) if id(item) in pools}
        evicted: list[int] = []
        for name, packing in packings.items():
            packing.menu = menus[name].corrected(correction)
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
            self.give_up(packings, items, i)

    def planned(
        self, packings: Mapping[str, Packing], items: Sequence[Item]
    ) -> tuple[tuple[PlannedGpu, ...], dict[str, list[list[int]]]]:
        """GPUs as values, and which item stands where."""
        gpus: list[PlannedGpu] = []
        at: dict[str, list[list[int]]] = {}
        number: dict[int, int] = {}
        for name, packing in packings.items():
            device, menu = self.request.devices[name], packing.menu
            order = sorted(range(len(packing.groups)), key=lambda g: (-packing.totals[g], packing.groups[g]))
            at[name] = []
            for n, g in enumerate(order):
                pairs = sorted(
                    zip(packing.groups[g], packing.shares[g], strict=True), key=lambda p: (-p[1], p[0])
                )
                at[name].append([i for i, _ in pairs])
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
        return tuple(gpus), at

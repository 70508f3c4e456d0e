"""What a plan changes about another: started, stopped, moved, resized; who joined a queue and who left it.

And what the workloads that stay ask for: another rate alone changes nothing that runs. And which endpoints
end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.plan import Partition, Placement, Plan
from controlplane.domain.workload import Workload


class Change(StrEnum):
    """What happens to a partition."""

    STARTED = "started"
    STOPPED = "stopped"
    JOINED = "joined"
    """Further workloads are served from its queue."""
    LEFT = "left"
    """Some are served from it no more."""
    MOVED = "moved"
    """To another GPU; its share may change too."""
    RESIZED = "resized"
    """Another share, batch or rate on the same GPU."""
    RENAMED = "renamed"
    """Clients call some of its workloads by another endpoint."""


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """One partition; `before` and `after` are (GPU, percent, batch), None where it does not exist.

    `workloads`: who joined or left, else all that it serves.
    """

    change: Change
    partition: str
    before: tuple[str, float, int] | None
    after: tuple[str, float, int] | None
    workloads: tuple[str, ...]


def changes(before: Plan, after: Plan) -> tuple[PartitionChange, ...]:
    """Every partition that differs, by id; a rate alone changes nothing that runs.

    One partition may be in it several times: joined, left and moved at once.
    """
    old = {p.id: (g.id, p) for g, p in before.partitions()}
    new = {p.id: (g.id, p) for g, p in after.partitions()}
    found: list[PartitionChange] = []
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name), new.get(name)
        if was is not None and now is not None and continues(was[1], now[1]):
            found += _continued(name, was, now)
            continue
        if was is not None:
            found.append(PartitionChange(Change.STOPPED, name, _told(*was), None, served(was[1])))
        if now is not None:
            found.append(PartitionChange(Change.STARTED, name, None, _told(*now), served(now[1])))
    return tuple(found)


def _continued(name: str, was: tuple[str, Partition], now: tuple[str, Partition]) -> list[PartitionChange]:
    told = name, _told(*was), _told(*now)
    before, after = served(was[1]), served(now[1])
    parts = {
        Change.JOINED: tuple(w for w in after if w not in before),
        Change.LEFT: tuple(w for w in before if w not in after),
    }
    found = [PartitionChange(change, *told, who) for change, who in parts.items() if who]
    if was[0] != now[0]:
        found.append(PartitionChange(Change.MOVED, *told, after))
    elif told[1] != told[2]:
        found.append(PartitionChange(Change.RESIZED, *told, after))
    called = {w.name: w.endpoint for w in was[1].workloads}
    if others := tuple(
        sorted(w.name for w in now[1].workloads if called.get(w.name, w.endpoint) != w.endpoint)
    ):
        found.append(PartitionChange(Change.RENAMED, *told, others))
    return found


@dataclass(frozen=True, slots=True)
class Ending:
    """An endpoint that a plan serves and the next one does not.

    `heirs`: (workload, its endpoint from now on) where what it led to stays; none where that is gone too.
    """

    endpoint: str
    workload: str
    heirs: tuple[tuple[str, str], ...]


def endings(before: Plan, after: Plan) -> tuple[Ending, ...]:
    """The endpoints that end, in the order of the plan before.

    A workload that stays is the heir of its former endpoint. Of an endpoint that bears its model's name, so
    mostly one by default, all workloads of that model are.
    """
    old = {w.endpoint: w for _, _, w in before.placements()}
    new = {w.endpoint: w for _, _, w in after.placements()}
    found = []
    for endpoint, was in old.items():
        if endpoint not in new:
            same = [w for w in new.values() if w.name == was.name]
            if not same and endpoint == was.model:
                same = [w for w in new.values() if w.model == was.model]
            found.append(Ending(endpoint, was.name, tuple((w.name, w.endpoint) for w in same)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TermChange:
    """A workload of both plans that asks for something else: which field of a spec, and its two values."""

    workload: str
    field: str
    before: float | str
    after: float | str


def terms(before: Plan, after: Plan, wanted: Sequence[Workload] = ()) -> tuple[TermChange, ...]:
    """What the workloads served in both plans ask for otherwise, by workload; rates are whole pools'.

    `wanted`: what the plan after was asked for, so that those it found infeasible are told of as well.
    """
    infeasible = {i.workload for i in after.infeasible}
    refused = {w.name: _terms(w, w.rate_rps) for w in wanted if w.name in infeasible}
    old, new = _asked(before), {**_asked(after), **refused}
    return tuple(
        TermChange(name, field, was, now)
        for name, asked in new.items()
        for field, now in asked.items()
        if name in old and not _same(was := old[name][field], now)
    )


def _asked(plan: Plan) -> dict[str, dict[str, float | str]]:
    asked: dict[str, dict[str, float | str]] = {}
    rates: dict[str, float] = {}
    for _, _, w in plan.placements():
        rates[w.name] = rates.get(w.name, 0.0) + w.rate_rps
        asked[w.name] = _terms(w, rates[w.name])
    return asked


def _terms(w: Placement | Workload, rate_rps: float) -> dict[str, float | str]:
    return {
        "model": w.model, "endpoint": w.endpoint, "slo_ms": w.slo_ms, "rate_rps": rate_rps,
        "arrivals": w.arrivals.value, "client_batch": w.client_batch, "isolated": str(w.isolated).lower(),
    }  # fmt: skip


def _same(was: float | str, now: float | str) -> bool:
    if isinstance(was, str) or isinstance(now, str):
        return was == now
    # The parts of a pool's rate add up to it but for the last digits.
    return math.isclose(was, now, rel_tol=1e-9)


def feasibility(before: Plan, after: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Workloads that were served and are infeasible now, and the other way round; by name.

    What the latter asked for before is not known: a plan holds the terms of what it serves.
    """
    return _lost(before, after), _lost(after, before)


def _lost(before: Plan, after: Plan) -> tuple[str, ...]:
    served_before, served_after = ({w.name for _, _, w in p.placements()} for p in (before, after))
    return tuple(sorted({i.workload for i in after.infeasible} & served_before - served_after))


def moves(before: Plan, after: Plan) -> int:
    """How many partitions are started on another GPU or for the first time."""
    return sum(c.change in (Change.MOVED, Change.STARTED) for c in changes(before, after))


def _told(gpu: str, partition: Partition) -> tuple[str, float, int]:
    return gpu, partition.percent, partition.models[0].batch


def served(partition: Partition) -> tuple[str, ...]:
    """Its workloads by name."""
    return tuple(sorted(w.name for w in partition.workloads))


def continues(was: Partition, now: Partition) -> bool:
    """Whether one is the other later: the same model for a workload of both. Else two share an id."""
    same = was.models[0].model == now.models[0].model
    return same and not set(served(was)).isdisjoint(served(now))

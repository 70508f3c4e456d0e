"""What a plan changes about another: partitions, endpoints, and what workloads ask for; what it predicted.

Another rate alone changes nothing that runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Shadow
from controlplane.domain.workload import ShadowPolicy, Workload

if TYPE_CHECKING:
    from controlplane.planning.protocol import Device


class Change(StrEnum):
    """What happens to a partition."""

    STARTED = "started"
    STOPPED = "stopped"
    JOINED = "joined"
    """It serves further workloads."""
    LEFT = "left"
    """It no longer serves some workloads."""
    MOVED = "moved"
    """To another GPU; its share may change too."""
    RESIZED = "resized"
    """Another share or batch on the same GPU."""
    RENAMED = "renamed"
    """Clients call some of its workloads by another endpoint."""


Place = tuple[str, float, tuple[int, ...]]
"""GPU, percent, and the batch of each model."""


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """One partition; `before` and `after` are None where it does not exist.

    `workloads` are those that joined or left, else all that it serves.
    """

    change: Change
    partition: str
    before: Place | None
    after: Place | None
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
            found.append(PartitionChange(Change.STOPPED, name, _place(*was), None, served(was[1])))
        if now is not None:
            found.append(PartitionChange(Change.STARTED, name, None, _place(*now), served(now[1])))
    return tuple(found)


def _continued(name: str, was: tuple[str, Partition], now: tuple[str, Partition]) -> list[PartitionChange]:
    where = name, _place(*was), _place(*now)
    before, after = served(was[1]), served(now[1])
    parts = {
        Change.JOINED: tuple(w for w in after if w not in before),
        Change.LEFT: tuple(w for w in before if w not in after),
    }
    found = [PartitionChange(change, *where, names) for change, names in parts.items() if names]
    if was[0] != now[0]:
        found.append(PartitionChange(Change.MOVED, *where, after))
    elif where[1] != where[2]:
        found.append(PartitionChange(Change.RESIZED, *where, after))
    called = {w.name: w.endpoint for w in was[1].workloads}
    if others := tuple(
        sorted(w.name for w in now[1].workloads if called.get(w.name, w.endpoint) != w.endpoint)
    ):
        found.append(PartitionChange(Change.RENAMED, *where, others))
    return found


@dataclass(frozen=True, slots=True)
class ShadowChange:
    """The shadow of a partition that both plans have: another share, GPU or policy; None: no shadow."""

    partition: str
    before: Shadow | None
    after: Shadow | None


def shadow_changes(before: Plan, after: Plan) -> tuple[ShadowChange, ...]:
    """Every shadow that starts anew or ends though its partition continues, by the partition's id."""
    old = {p.id: p for _, p in before.partitions()}
    both = [(old[now.id], now) for _, now in after.partitions() if now.id in old]
    pairs = [(was.id, _standing(was), _standing(now)) for was, now in both if continues(was, now)]
    return tuple(ShadowChange(*pair) for pair in pairs if _started_as(pair[1]) != _started_as(pair[2]))


def _standing(partition: Partition) -> Shadow | None:
    shadow = partition.shadow
    return None if shadow is None or shadow.policy is ShadowPolicy.NONE else shadow


def _started_as(shadow: Shadow | None) -> tuple[str, str, float] | None:
    return None if shadow is None else (shadow.policy, shadow.gpu, shadow.percent)


@dataclass(frozen=True, slots=True)
class Ending:
    """An endpoint that a plan serves and the next one does not.

    `heirs`: (workload, its endpoint from now on) of the workloads that it led to and that stay.
    """

    endpoint: str
    workload: str
    heirs: tuple[tuple[str, str], ...]


def endings(before: Plan, after: Plan) -> tuple[Ending, ...]:
    """The endpoints that end, in the order of the plan before.

    A workload that stays is the heir of its former endpoint. An endpoint with its model's name is mostly the
    default one: all workloads of that model are its heirs.
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

    `wanted`: what the plan after was asked for, so that workloads it found infeasible are compared as well.
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
    fields = ("model", "endpoint", "slo_ms", "arrivals", "dispersion", "client_batch")
    asked: dict[str, float | str] = {name: getattr(w, name) for name in fields}
    asked["drop_after_ms"] = "never" if w.drop_after_ms is None else w.drop_after_ms
    return asked | {"rate_rps": rate_rps, "isolated": str(w.isolated).lower()}


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


def _place(gpu: str, partition: Partition) -> Place:
    return gpu, partition.percent, tuple(m.batch for m in partition.models)


def served(partition: Partition) -> tuple[str, ...]:
    """Its workloads by name."""
    return tuple(sorted(w.name for w in partition.workloads))


def continues(was: Partition, now: Partition) -> bool:
    """Whether one is the other later: the same model for a workload of both. Else two share an id."""
    models = {(w.model, w.name) for w in was.workloads}
    return any((w.model, w.name) in models for w in now.workloads)


def prediction_error(plan: Plan, devices: Mapping[str, Device]) -> float:
    """The largest relative difference of an execution time; 0 for a plan without predictions."""
    return max((abs(ratio - 1.0) for _, ratio in _changed(plan.gpus, plan, devices)), default=0.0)


def changed_times(plan: Plan, devices: Mapping[str, Device], model: str, gpu_type: str) -> float:
    """The mean execution time of a model by what is known now, as a multiple of the plan's; 1 without one."""
    gpus = [gpu for gpu in plan.gpus if gpu.type == gpu_type]
    ratios = [ratio for name, ratio in _changed(gpus, plan, devices) if name == model]
    return sum(ratios) / len(ratios) if ratios else 1.0


def _changed(
    gpus: Sequence[PlannedGpu], plan: Plan, devices: Mapping[str, Device]
) -> Iterator[tuple[str, float]]:
    """Yield the model of each queue, and its execution time as a multiple of the plan's."""
    from controlplane.planning.judge.evaluate import Terms, judge  # numpy, for no verb that only looks

    for one in judge([gpu for gpu in gpus if gpu.type in devices], devices, Terms.of(plan)):
        before_ms = one.workloads[0].predicted.execution_ms if one.workloads else None
        if before_ms:
            yield one.workloads[0].model, one.execution_ms / before_ms

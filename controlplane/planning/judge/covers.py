"""What a plan survives beyond what it promises: a profile that errs, and the loss of a GPU.

A partition's shadow *covers* a factor where every server of its model may be so much slower than planned and
no P99 (or half-SLO) breaks on the GPU that serves it, while all standbys of that model are active together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from controlplane.domain.plan import Partition, PlannedGpu, Rule
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.domain.workload import LARGEST_COVER, ShadowPolicy
from controlplane.latency.protocol import BoolArray, FloatArray, IntArray
from controlplane.planning.judge.evaluate import (
    SLACK,
    Evaluation,
    Pool,
    Terms,
    Unsettled,
    pool_key,
    pool_times,
    settle,
    without_pools,
)
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.placements import with_partitions
from controlplane.planning.judge.structure import has_standby
from controlplane.planning.protocol import Device

_STEP = 0.01
_STEPS = round((LARGEST_COVER - 1.0) / _STEP)
"""Factors are 1 and so many steps more at most."""
_HOLDS = 1.0 + SLACK
_ROUNDING = 1e-9

_Queue = tuple[str, str]
"""The id of a partition and a model that it serves."""
_Member = tuple[Evaluation, tuple[int, int]]


class Case(NamedTuple):
    """A state that is asked about: the model that is slower, None where none is, and what tells it apart."""

    model: str | None
    number: int | str = 0


def with_covers(
    gpus: Sequence[PlannedGpu],
    found: Mapping[str, Evaluation],
    devices: Mapping[str, Device],
    terms: Terms,
) -> tuple[PlannedGpu, ...]:
    """The GPUs with what each shadow covers, and which partitions survive the loss of their GPU.

    `found` is what is expected of the GPUs with no shadow active; it must keep every promise. A factor of 2
    means 2 or more.
    """
    before = Before.of(found)
    covers = _covers(gpus, before, devices, terms)
    survivors = _survivors(gpus, before, devices, terms)

    def known(p: Partition) -> Partition:
        shadow = None if p.shadow is None else replace(p.shadow, covers=covers.get(p.id))
        return replace(p, shadow=shadow, survives_gpu_loss=p.id in survivors)

    return with_partitions(gpus, known)


@dataclass(frozen=True, slots=True)
class Before:
    """What is expected with no shadow active: the pool of each queue.

    `members` are the servers of one pool, each with its evaluation and its place there.
    """

    members: Mapping[object, Sequence[_Member]]
    key: Mapping[_Queue, object]
    pools: Mapping[_Queue, Pool]

    @staticmethod
    def of(found: Mapping[str, Evaluation]) -> Before:
        """By what is expected of all GPUs, by type."""
        members: dict[object, list[_Member]] = {}
        key, pools = {}, {}
        for own in found.values():
            for at, queue in own.layout.columns():
                name = queue.partition.id, queue.served.model
                key[name] = name if queue.partition.turns else pool_key(queue)
                members.setdefault(key[name], []).append((own, at))
                if at in own.pools:
                    pools[name] = own.pools[at]
        return Before(members, key, pools)


@dataclass(frozen=True, slots=True)
class _State:
    """GPUs of one type with other servers active than planned; row n belongs to the case `cases[n]`.

    `slow`: the columns of the model that is slower; `own`: those of all models of the same partitions.
    """

    device: Device
    layout: Layout
    cases: tuple[Case, ...]
    slow: BoolArray
    own: BoolArray

    def slower(self, rows: IntArray, factors: FloatArray) -> _State:
        """These rows, with `factors` for their slow columns."""
        layout, slow = self.layout.take(rows), self.slow[rows]
        np.copyto(layout.slower, factors[rows], where=slow)
        return _State(self.device, layout, tuple(self.cases[n] for n in rows.tolist()), slow, self.own[rows])


def _states(cases: Mapping[Case, Sequence[PlannedGpu]], devices: Mapping[str, Device]) -> list[_State]:
    """The GPUs of all cases by type."""
    rows: dict[str, list[tuple[Case, PlannedGpu]]] = {}
    for case, gpus in cases.items():
        for gpu in gpus:
            rows.setdefault(gpu.type, []).append((case, gpu))
    states = []
    for name, listed in rows.items():
        layout = Layout.of([gpu for _, gpu in listed], devices[name])
        slow, own = np.zeros_like(layout.mask), np.zeros_like(layout.mask)
        for at, queue in layout.columns():
            model = listed[at[0]][0].model
            slow[at], own[at] = queue.served.model == model, model in _models(queue.partition)
        states.append(_State(devices[name], layout, tuple(case for case, _ in listed), slow, own))
    return states


def _models(partition: Partition) -> list[str]:
    return [served.model for served in partition.models]


def _evaluated(
    states: Sequence[_State], before: Before, terms: Terms, *, own_alone: bool = False
) -> list[Evaluation]:
    """What is expected in each case of all its GPUs together; where `own_alone`, of the `own` columns only.

    A server of a pool that a case does not change is as it was before.
    """
    answers: list[Evaluation] = []
    members: dict[object, list[Unsettled]] = {}
    for state in states:
        found, unsettled = without_pools(state.layout, state.device.latency, terms)
        answers.append(found)
        for one in unsettled:
            if state.own[one.at] or not own_alone:
                members.setdefault((state.cases[one.at[0]], pool_key(one.queue)), []).append(one)
    pools = []
    for servers in members.values():
        old = before.pools[servers[0].queue.partition.id, servers[0].queue.served.model]
        curves = [one.curve for one in servers] + ([old.curve] if len(servers) < old.servers else [])
        pools.append(Pool(old.servers, np.maximum.reduce(curves)))
    settle(list(members.values()), pools, terms.queues)
    return answers


def kept(
    changed: Sequence[Sequence[PlannedGpu]],
    before: Before,
    devices: Mapping[str, Device],
    terms: Terms,
) -> list[bool]:
    """Whether every promise is kept on GPUs that replace those before, for each such set of them."""
    states = _states({Case(None, n): gpus for n, gpus in enumerate(changed)}, devices)
    holds = [True] * len(changed)
    for state, found in zip(states, _evaluated(states, before, terms), strict=True):
        for case, met in zip(state.cases, found.meets_slo.all(axis=1).tolist(), strict=True):
            holds[int(case.number)] &= met
    return holds


def _activated(
    gpus: Mapping[str, PlannedGpu], moving: Iterable[tuple[PlannedGpu, Partition]]
) -> tuple[dict[str, PlannedGpu], dict[str, str]]:
    """The GPUs that change where these standbys are active together, and where each is active, by partition.

    Where a GPU has no room for all of them, it has those that fit, in the plan's order. A shared one serves
    one partition at a time.
    """
    changed: dict[str, dict[str, Partition]] = {}
    active: dict[str, str] = {}
    serving: set[str] = set()
    room = {name: 100.0 - gpu.percent for name, gpu in gpus.items()}
    for gpu, partition in moving:
        shadow = partition.shadow
        assert shadow is not None
        more = shadow.percent - (partition.percent if shadow.gpu == gpu.id else 0.0)
        shared = shadow.policy is ShadowPolicy.SHARED
        if shadow.gpu not in room or more > room[shadow.gpu] + _ROUNDING or (shared and gpu.id in serving):
            continue
        if shared:
            serving.add(gpu.id)
        room[shadow.gpu] -= more
        active[partition.id] = shadow.gpu
        for name in {gpu.id, shadow.gpu} & gpus.keys():
            changed.setdefault(name, {p.id: p for p in gpus[name].partitions})
        if shadow.gpu != gpu.id and gpu.id in changed:
            del changed[gpu.id][partition.id]
        changed[shadow.gpu][partition.id] = replace(partition, percent=min(shadow.percent, 100.0))
    return {n: replace(gpus[n], partitions=tuple(own.values())) for n, own in changed.items()}, active


def _covers(
    gpus: Sequence[PlannedGpu], before: Before, devices: Mapping[str, Device], terms: Terms
) -> dict[str, float]:
    """What the shadow of each partition covers, by the partition's id."""
    named = {gpu.id: gpu for gpu in gpus}
    standing = [(gpu, p) for gpu in gpus for p in gpu.partitions if has_standby(p.shadow)]
    cases: dict[Case, list[PlannedGpu]] = {}
    serving: dict[_Queue, str] = {}
    for model in dict.fromkeys(model for _, p in standing for model in _models(p)):
        moving = [(gpu, p) for gpu, p in standing if model in _models(p)]
        changed, active = _activated(named, moving)
        now = (changed.get(gpu.id, gpu) for gpu in gpus)
        cases[Case(model)] = [gpu for gpu in now if any(model in _models(p) for p in gpu.partitions)]
        serving |= {(p.id, model): active.get(p.id, gpu.id) for gpu, p in moving}
    least = largest_factors(cases, before, devices, terms)
    return {p.id: min(least[Case(m), serving[p.id, m]] for m in _models(p)) for _, p in standing}


def largest_factors(
    cases: Mapping[Case, Sequence[PlannedGpu]],
    before: Before,
    devices: Mapping[str, Device],
    terms: Terms,
) -> dict[tuple[Case, str], float]:
    """The largest factor with which no promise breaks on a GPU, at least 1, by case and the GPU's id.

    The other servers of a pool are as before.
    """
    states = _states(cases, devices)
    found = _evaluated(states, before, terms)
    searches = [_Search.begin(state, own) for state, own in zip(states, found, strict=True)]
    while asking := [search for search in searches if search.guess()]:
        rows = [np.flatnonzero(search.open_.any(axis=1)) for search in asking]
        tried = [s.state.slower(own, 1.0 + _STEP * s.tried) for s, own in zip(asking, rows, strict=True)]
        answers = _evaluated(tried, before, terms, own_alone=True)
        for search, own, answer in zip(asking, rows, answers, strict=True):
            search.learn(own, _strain(answer))
    factors: dict[tuple[Case, str], float] = {}
    for state, planned, search in zip(states, found, searches, strict=True):
        steps = np.where(planned.meets_slo, np.where(state.own, search.best, _STEPS), 0).min(axis=1)
        keys = [(case, gpu.id) for case, gpu in zip(state.cases, state.layout.gpus, strict=True)]
        factors |= dict(zip(keys, np.round(1.0 + _STEP * steps, 2).tolist(), strict=True))
    return factors


@dataclass(slots=True)
class _Search:
    """The largest step of the grid that each `own` column bears: `best` is seen to hold, `worst` is not to.

    1 / P99 is nearly a straight line in 1 / factor, which ends where the queue saturates. So few questions
    suffice: each is the step next to where the line from `near`, the best, to `far`, the worst, meets the
    SLO, until that is the best; one more may hold where the line is a little off. Both have the shape
    (2, GPUs, columns): 1 / factor and 1 / strain. Servers of a pool have the same P99, so they stay together.
    """

    state: _State
    best: IntArray
    worst: IntArray
    tried: IntArray
    open_: BoolArray
    near: FloatArray
    far: FloatArray

    @staticmethod
    def begin(state: _State, found: Evaluation) -> _Search:
        """From what is expected at factor 1."""
        strain, layout = _strain(found), found.layout
        far = np.zeros((2, *strain.shape))
        for at, pool in found.pools.items():
            requests = layout.rate[at] / layout.client_batch[at]
            far[0][at] = requests * pool.curve[-1] / (MILLIS_PER_SECOND * pool.curve.size)
        best = np.zeros(strain.shape, dtype=np.int64)
        near = np.stack([np.ones(strain.shape), _inverse(strain)])
        return _Search(state, best, best + _STEPS + 1, best, state.own & (strain <= _HOLDS), near, far)

    def guess(self) -> bool:
        """Choose what to try next; False where nothing is open."""
        (near_x, near_y), (far_x, far_y) = self.near, self.far
        way = np.divide(near_y - 1.0 / _HOLDS, near_y - far_y, out=np.zeros_like(far_y), where=near_y > far_y)
        factor = _inverse(near_x + way * (far_x - near_x))
        step = np.minimum(np.round((factor - 1.0) / _STEP), self.worst - 1).astype(np.int64)
        self.open_ &= step > self.best
        self.tried = np.where(self.open_, step, self.best)
        return bool(self.open_.any())

    def learn(self, rows: IntArray, strain: FloatArray) -> None:
        """What came of it in these rows."""
        point = np.stack([1.0 / (1.0 + _STEP * self.tried[rows]), _inverse(strain)])
        holds = strain <= _HOLDS
        for last, known, new in ((self.best, self.near, holds), (self.worst, self.far, ~holds)):
            changed = self.open_[rows] & new
            last[rows] = np.where(changed, self.tried[rows], last[rows])
            known[:, rows] = np.where(changed, point, known[:, rows])


def _strain(found: Evaluation) -> FloatArray:
    """The largest strain of each partition, at every one of its columns."""
    return np.asarray(np.where(found.layout.same_partition, found.strain[:, None, :], 0.0).max(axis=2))


def _inverse(values: FloatArray) -> FloatArray:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0.0)


def _survivors(
    gpus: Sequence[PlannedGpu], before: Before, devices: Mapping[str, Device], terms: Terms
) -> frozenset[str]:
    """The partitions of which every promise is kept without their GPU.

    Either all standbys that its partitions have elsewhere, active together, keep it, or the rest of its pool.
    """
    named = {gpu.id: gpu for gpu in gpus}
    cases: dict[Case, list[PlannedGpu]] = {}
    stands: dict[str, str] = {}
    for gpu in gpus:
        moving = [(gpu, p) for p in gpu.partitions if has_standby(p.shadow) and p.shadow.gpu != gpu.id]
        if moving:
            others = {name: other for name, other in named.items() if name != gpu.id}
            changed, active = _activated(others, moving)
            cases[Case(None, gpu.id)] = list(changed.values())
            stands |= active
    kept = set(stands)
    for found in _evaluated(_states(cases, devices), before, terms):
        for host, met in zip(found.layout.gpus, found.meets_slo.all(axis=1).tolist(), strict=True):
            if not met:
                kept -= {p.id for p in host.partitions if stands.get(p.id) == host.id}

    def replaced(gpu: PlannedGpu, partition: Partition) -> bool:
        """Whether every server that its pools lose with this GPU has a standby that keeps its promises."""
        return all(
            found.layout.queues[i][j].partition.id in kept
            for m in partition.models
            for found, (i, j) in before.members[before.key[partition.id, m.model]]
            if found.layout.gpus[i].id == gpu.id
        )

    by_rest = _carried_by_rest(before, terms)
    return frozenset(
        p.id
        for gpu in gpus
        for p in gpu.partitions
        if all((p.id, m.model) in by_rest for m in p.models) or (p.id in kept and replaced(gpu, p))
    )


def _carried_by_rest(before: Before, terms: Terms) -> set[_Queue]:
    """The queues whose promises the rest of their pool keeps without their GPU."""
    asked: dict[tuple[object, int], list[_Queue]] = {}
    for key, members in before.members.items():
        on = Counter(found.layout.gpus[i].id for found, (i, _) in members)
        for found, (i, j) in members:
            left, queue = len(members) - on[found.layout.gpus[i].id], found.layout.queues[i][j]
            if left > 0:
                asked.setdefault((key, left), []).append((queue.partition.id, queue.served.model))
    if not asked:
        return set()
    pools = [before.members[key] for key, _ in asked]
    more = np.array([len(own) / left for own, (_, left) in zip(pools, asked, strict=True)])
    holds = [
        all(found.layout.rate[at] * factor <= found.times.capacity_rps[at] * _HOLDS for found, at in own)
        for own, factor in zip(pools, more.tolist(), strict=True)
    ]
    if terms.rule is Rule.P99:
        first = [own[0] for own in pools]
        rest = [Pool(left, before.pools[names[0]].curve) for (_, left), names in asked.items()]
        waits = pool_times([(own.layout, at) for own, at in first], rest, terms.queues, more)
        slo_ms = np.array([own.layout.slo_ms[at] for own, at in first])
        holds = list(np.array(holds) & (waits.p99_ms <= slo_ms * _HOLDS))
    return {name for names, held in zip(asked.values(), holds, strict=True) if held for name in names}

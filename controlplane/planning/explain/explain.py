"""Why a workload got its share and batch: what the next smaller and larger ones would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Infeasible, Partition, Placement, Plan, PlannedGpu, Rule
from controlplane.domain.units import spoken
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.client_batches import in_requests
from controlplane.planning.capacity.gpu_types import GpuType, gpu_types
from controlplane.planning.capacity.options import serving_options
from controlplane.planning.explain.alternatives import (
    LARGER_BATCH,
    LARGER_SHARE,
    SMALLER_BATCH,
    SMALLER_SHARE,
    Alternative,
    Subject,
    alternatives,
)
from controlplane.planning.judge.evaluate import Terms
from controlplane.planning.judge.placements import PROCESS, refusal
from controlplane.planning.judge.sources import sentence
from controlplane.planning.protocol import Device


@dataclass(frozen=True, slots=True)
class Explanation:
    """One partition of a workload: where it stands and what else it might have been.

    The first of `alternatives` is what was planned. `slo_ms` is what its queue is held to, `strictest` the
    workload with that SLO. `companions` share the queue; `together` is what they cost with it and `by_itself`
    what it would cost without them. `in_turns` are the partition's other models, of which one executes at a
    time; `in_order`: requests wait for it at the gateway. `source` says where the execution time of what was
    planned comes from. `standby`: what the partition survives and takes of the memory, as far as is known.
    """

    workload: str
    slo_ms: float
    partition: str
    gpu: str
    neighbours: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    source: str
    companions: tuple[str, ...] = ()
    strictest: str = ""
    together: str = ""
    by_itself: str = ""
    in_turns: tuple[str, ...] = ()
    in_order: bool = False
    standby: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this share, this batch and this shared queue, and how the time is known, in a sentence each."""
        planned = self.alternatives[0]
        by_name = {a.what: a for a in self.alternatives}
        reasons = [
            self._share(planned, by_name.get(SMALLER_SHARE))
            + self._slower(planned, by_name.get(LARGER_SHARE)),
            self._batch(planned, by_name),
            self.source,
        ]
        if self.companions:
            held = "" if self.strictest == self.workload else f", held to the SLO of {self.strictest}"
            reasons.append(
                f"one queue with {', '.join(self.companions)}{held}: together {self.together}; by itself "
                f"{self.workload} would take {self.by_itself}"
            )
        if self.in_turns:
            others = ", ".join(self.in_turns)
            waits = ", requests waiting at the gateway, the shortest first" if self.in_order else ""
            reasons.append(f"one server with {others}, of which one model executes at a time{waits}")
        if self.standby:
            reasons.append(self.standby)
        return tuple(reasons)

    def _share(self, planned: Alternative, smaller: Alternative | None) -> str:
        share = f"share {spoken(planned.percent)} %: "
        if smaller is None:
            return share + "there is no smaller one"
        if smaller.holds:
            return share + f"{spoken(smaller.percent)} % would hold too, but nothing needs the difference"
        return share + f"at {spoken(smaller.percent)} % {self._late(smaller)}"

    def _slower(self, planned: Alternative, larger: Alternative | None) -> str:
        """That a larger share seems slower looks like an error, but is what the latency model says."""
        if larger is None or larger.execution_ms <= planned.execution_ms:
            return ""
        longer = f"at {spoken(larger.percent)} % the latency model predicts longer ({self._times(larger)})"
        return f"; {longer}, by its fit or by its margin away from measured shares"

    def _batch(self, planned: Alternative, by_name: Mapping[str, Alternative]) -> str:
        others = [
            f"with {a.batch} {self._late(a) if not a.holds else self._times(a)}"
            for a in (by_name.get(SMALLER_BATCH), by_name.get(LARGER_BATCH))
            if a is not None
        ]
        batch = f"batch {planned.batch} ({self._times(planned)}): "
        return batch + ("; ".join(others) or "there is no other")

    def _late(self, a: Alternative) -> str:
        if self.partition not in a.breaks:
            return f"{', '.join(a.breaks)} would be late"
        if a.utilisation > 1.0:
            return f"more would arrive than it can serve (use {a.utilisation:.2f})"
        return f"it would be late ({self._times(a)})"

    def _times(self, a: Alternative) -> str:
        return f"execution {a.execution_ms:.1f} ms" if a.p99_ms is None else f"P99 {a.p99_ms:.1f} ms"


def explain(plan: Plan, workload: str, devices: Mapping[str, Device]) -> tuple[Explanation, ...] | Infeasible:
    """Every partition that serves a workload, or why none does.

    Raises InputError, with the nearest name, for a workload that is not in the plan.
    """
    for refused in plan.infeasible:
        if refused.workload == workload:
            return refused
    subjects = [
        Subject(gpu, partition, own) for gpu, partition, own in plan.placements() if own.name == workload
    ]
    if not subjects:
        names = {w.name for _, _, w in plan.placements()} | {i.workload for i in plan.infeasible}
        near = get_close_matches(workload, sorted(names), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"no workload is called {workload}{hint}", field="explain")
    return tuple(_explained(plan, subjects, devices))


def explain_queues(plan: Plan, devices: Mapping[str, Device]) -> dict[tuple[str, str], Explanation]:
    """Explain every queue of a plan, by its first partition and its model, for its strictest workload."""
    subjects: dict[tuple[str, ...], Subject] = {}
    for gpu, partition in plan.partitions():
        for model, queue in partition.queues().items():
            strictest = min(queue, key=_strictness)
            subjects.setdefault((model, *(w.name for w in queue)), Subject(gpu, partition, strictest))
    found = _explained(plan, list(subjects.values()), devices)
    return {(s.partition.id, s.own.model): e for s, e in zip(subjects.values(), found, strict=True)}


_TypesOf = Callable[[Mapping[str, Device]], Mapping[str, GpuType]]


def _types_of(rule: Rule, quantile: float) -> _TypesOf:
    """GPU types by their devices, each computed once: the times of every batch alone take milliseconds."""
    known: dict[tuple[int, ...], tuple[Mapping[str, Device], Mapping[str, GpuType]]] = {}

    def types(devices: Mapping[str, Device]) -> Mapping[str, GpuType]:
        key = tuple(map(id, devices.values()))
        if key not in known:  # the devices are kept too, so that no other object gets their ids
            known[key] = devices, gpu_types(devices, rule, quantile)
        return known[key][1]

    return types


def _strictness(placement: Placement) -> tuple[float, str]:
    return placement.slo_ms, placement.name


def _explained(plan: Plan, subjects: Sequence[Subject], devices: Mapping[str, Device]) -> list[Explanation]:
    found = alternatives(plan, subjects, devices)
    types = _types_of(plan.rule, Terms.of(plan).quantile or 0.5)
    servers: dict[str, list[tuple[PlannedGpu, Partition]]] = {}
    for gpu, partition, placement in plan.placements():
        servers.setdefault(placement.name, []).append((gpu, partition))
    explained = []
    for subject, judged in zip(subjects, found, strict=True):
        gpu, partition, own = subject.gpu, subject.partition, subject.own
        strictest = min(subject.queue, key=_strictness)
        beside = [w.name for w in partition.workloads if w.model == own.model and w.name != own.name]
        shares = Counter(f"{spoken(p.percent)} % of a {g.type}" for g, p in servers[own.name])
        standby = _standby(gpu, partition), _memory(gpu, partition, devices[gpu.type])
        one = Explanation(
            own.name,
            strictest.slo_ms,
            partition.id,
            gpu.id,
            tuple(p.id for p in gpu.partitions if p.id != partition.id),
            judged,
            sentence(gpu, partition, subject.served, devices[gpu.type]),
            tuple(beside),
            strictest.name,
            " and ".join(what if count == 1 else f"{count} times {what}" for what, count in shares.items()),
            _by_itself(servers[own.name], own.name, devices, types) if beside else "",
            tuple(m.model for m in partition.models if m.model != own.model),
            partition.ordered,
            "; ".join(filter(None, standby)),
        )
        explained.append(one)
    return explained


def _standby(gpu: PlannedGpu, partition: Partition) -> str:
    """What its shadow covers, and whether it survives the loss of its GPU."""
    shadow, survives = partition.shadow, partition.survives_gpu_loss
    said = []
    if shadow is not None and shadow.covers is not None:
        said.append(
            f"its shadow with {spoken(shadow.percent)} % covers {shadow.covers:.2f} times the planned times"
        )
    if survives is not None:
        said.append(f"it {'survives' if survives else 'does not survive'} the loss of {gpu.id}")
    return "; ".join(said)


def _memory(gpu: PlannedGpu, partition: Partition, device: Device) -> str:
    """What its server and its shadow take of the GPU's memory."""
    if partition.memory_mb is None:
        return "" if gpu.memory_mb is None else f"how much of the {gpu.memory_mb:g} MB it takes is unknown"
    process_mb = device.pool.device.hardware.get(PROCESS)
    context = "" if process_mb is None else f"{process_mb:g} MB for a process without models, "
    said = f"it takes {partition.memory_mb:g} MB ({context}weights and workspace of its planned batch)"
    shadow = partition.shadow
    if shadow is not None and shadow.memory_mb is not None:
        said += f" and its shadow {shadow.memory_mb:g} MB of {shadow.gpu}"
    if gpu.shared is not None and gpu.shared.memory_mb is not None and partition in gpu.sharers:
        said += f" and the shadow that it shares with others {gpu.shared.memory_mb:g} MB"
    return said if gpu.memory_mb is None else f"{said}; {gpu.id} has {gpu.memory_mb:g} MB"


def _by_itself(
    servers: Sequence[tuple[PlannedGpu, Partition]],
    name: str,
    devices: Mapping[str, Device],
    types: _TypesOf,
) -> str:
    """What a workload would take with a queue of its own, beside average neighbours."""
    parts = [w for _, p in servers for w in p.workloads if w.name == name]
    own, rate, k = parts[0], sum(w.rate_rps for w in parts), parts[0].client_batch
    alone = Workload(name, own.model, own.slo_ms, rate, own.endpoint, own.arrivals, client_batch=k)
    group, able = in_requests([alone], {n: d for n, d in devices.items() if refusal(alone, d) is None})
    options = serving_options([group], types(able))[0]
    return f"about {options[0].takes}" if options else "more than any pool has"

"""From a strategy's draft to a plan: predictions and their sources, shadows, totals, the judge's verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.domain.plan import Infeasible, Partition, Plan, PlannedGpu, Prediction, Totals, Violation
from controlplane.domain.units import spoken
from controlplane.domain.workload import ShadowPolicy, ShadowWish, Workload
from controlplane.planning.judge.covers import with_covers
from controlplane.planning.judge.evaluate import Evaluation, Terms, evaluate
from controlplane.planning.judge.placements import limit_together, with_partitions
from controlplane.planning.judge.queues import QueueCache
from controlplane.planning.judge.shadows import short_of_cover, wish_of, with_shadows
from controlplane.planning.judge.sources import measured_on, source_of
from controlplane.planning.judge.verify import verify
from controlplane.planning.protocol import Device, PlanRequest


@dataclass(frozen=True, slots=True)
class Draft:
    """What a strategy decided: GPUs with bare partitions, and the workloads it had to refuse.

    `queues` are those solved on the way. `phases_ms`: what the parts of planning took; the judge's is added.
    `most_extra`: see `with_shadows`.
    """

    gpus: tuple[PlannedGpu, ...]
    infeasible: tuple[Infeasible, ...] = ()
    stopped_by: str = "converged"
    bound_cost_per_hour: float | None = None
    bound_gpus: int | None = None
    queues: QueueCache = field(default_factory=QueueCache)
    phases_ms: tuple[tuple[str, float], ...] = ()
    most_extra: float | None = None

    def bounded(self, cost: float, devices: Mapping[str, Device]) -> Draft:
        """With a lower bound of the cost, counted in GPUs where all of them are free."""
        prices = {d.pool.price_per_hour for d in devices.values()}
        (price,) = prices if len(devices) == 1 else (0.0,)
        gpus = round(cost / (price or 1.0)) if len(devices) == 1 else None
        return replace(self, bound_cost_per_hour=cost if any(prices) else 0.0, bound_gpus=gpus)


def finalise(strategy: str, request: PlanRequest, draft: Draft, started_s: float) -> Plan:
    """Predict, add shadows, judge. `started_s` is when planning began, by the request's clock."""
    drafted_s = request.clock.monotonic()
    terms = Terms(request.rule, request.deciding_quantile, draft.queues)
    drafted = _with_limits(_with_distinct_ids(draft.gpus), request.workloads)
    found = evaluate(drafted, request.devices, terms)
    gpus = [gpu for name, own in found.items() for gpu in _predicted(own, request.devices[name])]
    wishes = {w.name: w.shadow for w in request.workloads}
    plan = Plan(
        strategy=strategy,
        rule=request.rule,
        latency_model=next((d.latency.name for d in request.devices.values()), ""),
        gpus=with_shadows(gpus, wishes, found, request.devices, terms, draft.most_extra),
        quantile=terms.quantile,
        seed=request.seed,
        infeasible=draft.infeasible,
    )
    judged = verify(plan, request.devices, request.workloads, draft.queues)
    violations = (*judged, *_missing_or_slow_shadows(plan, wishes))
    if not violations:
        plan = replace(plan, gpus=with_covers(plan.gpus, found, request.devices, terms))
        violations = tuple(_too_small_shadows(plan, wishes))
    now_s = request.clock.monotonic()
    phases_ms = (*draft.phases_ms, ("verify", (now_s - drafted_s) * 1000.0)) if draft.phases_ms else ()
    totals = Totals(
        gpus=len(plan.gpus),
        percent=sum(g.percent for g in plan.gpus),
        cost_per_hour=sum(g.price_per_hour for g in plan.gpus),
        lower_bound_cost_per_hour=draft.bound_cost_per_hour,
        lower_bound_gpus=draft.bound_gpus,
        planning_ms=(now_s - started_s) * 1000.0,
        stopped_by=draft.stopped_by,
        phases_ms=dict(phases_ms),
    )
    return replace(plan, verified=not violations, violations=violations, totals=totals)


def _with_distinct_ids(gpus: Sequence[PlannedGpu]) -> tuple[PlannedGpu, ...]:
    """The same partitions, none with another's id: a workload may be called as a pool's server."""
    given = {p.id for g in gpus for p in g.partitions}
    taken: set[str] = set()

    def own(partition: Partition) -> Partition:
        name, number = partition.id, 1
        while name in taken:
            number += 1
            name = f"{partition.id}.{number}"
            if name in given:
                name = partition.id
        taken.add(name)
        return partition if name == partition.id else replace(partition, id=name)

    return with_partitions(gpus, own)


def _with_limits(gpus: Sequence[PlannedGpu], workloads: Sequence[Workload]) -> tuple[PlannedGpu, ...]:
    """The same partitions with the memory limits that their workloads ask for."""
    asked = {w.name: w for w in workloads}

    def limited(partition: Partition) -> Partition:
        limit_mb = limit_together([asked[w.name] for w in partition.workloads])
        return replace(partition, memory_limit_mb=limit_mb, survives_gpu_loss=None)

    return with_partitions(gpus, limited)


def _predicted(found: Evaluation, device: Device) -> tuple[PlannedGpu, ...]:
    """The evaluated GPUs with a prediction for every placement."""
    measured = measured_on(device)
    expected = {
        (one.partition.id, one.served.model): Prediction(
            execution_ms=one.execution_ms,
            mean_ms=_finite(one.mean_ms),
            p99_ms=_finite(one.p99_ms),
            capacity_rps=one.capacity_rps,
            utilisation=one.utilisation,
            source=source_of(one.gpu, one.partition, one.served, device, measured),
            batch_ms=() if one.pool is None else tuple(one.pool.curve.tolist()),
            frontend_ms=device.profiles[one.served.model].frontend_ms or None,
        )
        for one in found.verdicts()
    }

    def placed(partition: Partition) -> Partition:
        workloads = (replace(w, predicted=expected[partition.id, w.model]) for w in partition.workloads)
        return replace(partition, workloads=tuple(workloads))

    return with_partitions(found.layout.gpus, placed)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _missing_or_slow_shadows(plan: Plan, wishes: Mapping[str, ShadowWish]) -> Iterator[Violation]:
    """Shadows that found no room, and those to which a redirect takes longer than is demanded."""
    for _, p in plan.partitions():
        wish = wish_of(p, wishes)
        if p.shadow is None:
            if wish.policy is not ShadowPolicy.NONE:
                yield Violation(p.id, "no other GPU has room for its shadow")
        elif wish.within_s is not None:
            takes_s = p.shadow.redirect_s
            how = "is unknown" if takes_s is None else f"is {takes_s:.1f} s"
            if takes_s is None or takes_s > wish.within_s:
                what = f"what a redirect to its {p.shadow.policy} shadow takes"
                yield Violation(p.id, f"{what} {how}, not {wish.within_s:g} s")


def _too_small_shadows(plan: Plan, wishes: Mapping[str, ShadowWish]) -> Iterator[Violation]:
    """Shadows that cover less than is demanded, with the share that ran out."""
    short, gpus = short_of_cover(plan, wishes), {g.id: g for g in plan.gpus}
    for _, p in plan.partitions():
        if p.id in short and p.shadow is not None:
            host, covers = gpus[p.shadow.gpu], wish_of(p, wishes).covers
            yield Violation(
                p.id,
                f"its shadow with {spoken(p.shadow.percent)} % covers {p.shadow.covers:.2f} times the times, "
                f"not {covers:g}: {host.id} has {spoken(100.0 - host.percent)} % left",
            )

"""The plan with which a fleet follows its load, written into the fleet's state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from controlplane.control.autoscaler.state import (
    Direction,
    Kind,
    Proposal,
    Propose,
    Unheld,
    followed_workloads,
)
from controlplane.domain.device import Stock
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan
from controlplane.domain.workload import GpuRequest, Spec, Workload
from controlplane.files.fleets import FleetFiles
from controlplane.files.plans import plan_hash, spec_of, write_plan
from controlplane.planning import registry
from controlplane.planning.protocol import Device as PlanningDevice
from controlplane.planning.protocol import PlanRequest, Strategy
from controlplane.planning.replan.differences import changes, prediction_error
from controlplane.planning.replan.reuse import cost_of, reused
from controlplane.planning.replan.smallest_change import (
    Changed,
    Extent,
    holds,
    judged,
    moved_cost,
    smallest_change,
    with_headroom,
)
from controlplane.report.words import counted
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet.calibrate import learn_errors
from controlplane.runtime.jobs.plan import devices_for, with_sources

_ROUNDS = 3
"""Attempts with lower rates for what no plan holds."""
_LATER = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
"""Multiples of the SLOs that no plan keeps."""
_NAMED = 3
"""Broken promises in a message."""
_KINDS = {Extent.NOTHING: Kind.HOLD, Extent.BATCHES: Kind.BATCHES, Extent.SERVERS: Kind.PLAN}


@dataclass(frozen=True, slots=True)
class Found:
    """A plan for other rates: its kind, the rate by workload that it is for, and what no plan holds."""

    kind: Kind
    plan: Plan
    rates_rps: Mapping[str, float]
    unheld: tuple[Unheld, ...] = ()


def find(
    strategy: Strategy,
    request: PlanRequest,
    planned_rps: Mapping[str, float],
    direction: Direction,
    move_price: float = 1.0,
) -> Found | None:
    """The plan for a request with the smallest change; None where none holds even the planned rates.

    Where no plan holds a workload's rate, it gets what the strategy could hold, but never less than
    `planned_rps`, the rates of the plan that runs.
    """
    unheld: dict[str, Unheld] = {}
    for attempt in range(_ROUNDS):
        cheaper = direction is Direction.DOWN
        changed = smallest_change(strategy, request, cheaper=cheaper, move_price=move_price)
        rates = {w.name: w.rate_rps for w in request.workloads}
        if changed.plan.verified and not changed.plan.infeasible:
            more, multiple = with_headroom(strategy, request, changed, cheaper=cheaper, move_price=move_price)
            rates = {name: multiple * rate for name, rate in rates.items()}
            return Found(_KINDS[more.extent], more.plan, rates, tuple(unheld.values()))
        lost = _unheld(changed, planned_rps, last=attempt == _ROUNDS - 2)
        if not lost:
            return None
        unheld |= lost
        lower = {name: one.planned_rps for name, one in unheld.items()}
        request = replace(
            request,
            workloads=tuple(replace(w, rate_rps=lower.get(w.name, w.rate_rps)) for w in request.workloads),
        )
    return None


def _unheld(changed: Changed, planned_rps: Mapping[str, float], *, last: bool) -> dict[str, Unheld]:
    """What a plan does not hold, with the rate to try next: the nearest one, at `last` what runs now."""
    found = {}
    for one in changed.plan.infeasible:
        nearest = None if last else one.nearest_rate_rps
        rate = max(planned_rps[one.workload], nearest or 0.0)
        found[one.workload] = Unheld(one.workload, rate, one.reason or "no GPU has room for it")
    for violation in changed.plan.violations:
        for name in violation.subject.split("+"):
            if name in planned_rps and name not in found:
                found[name] = Unheld(name, planned_rps[name], violation.reason)
    return found


def least_late(strategy: Strategy, request: PlanRequest, move_price: float = 1.0) -> Found | None:
    """The plan that is least late at rates that no plan holds; None where none is less late than what runs.

    It is the one for the smallest multiple of the SLOs that break now. The others hold, and the plan states
    which promises it breaks. A plan that makes any of them later than it is now is none.
    """
    gpus = None if request.previous is None else reused(request.previous, request)
    if gpus is None:
        return None
    running = judged(strategy, request, gpus)
    late = {name for one in running.violations for name in one.subject.split("+")}
    if late.isdisjoint(w.name for w in request.workloads):
        return None
    for times in _LATER:
        eased = tuple(replace(w, slo_ms=times * w.slo_ms) if w.name in late else w for w in request.workloads)
        changed = smallest_change(strategy, replace(request, workloads=eased), move_price=move_price)
        if holds(changed.plan):
            gpus = reused(changed.plan, request)
            if changed.extent is Extent.NOTHING or gpus is None:
                return None
            plan, rates = judged(strategy, request, gpus), {w.name: w.rate_rps for w in request.workloads}
            before, after = _p99s(running), _p99s(plan)
            later = any(after[name] > before[name] for name in late & after.keys())
            return None if later else Found(_KINDS[changed.extent], plan, rates)
    return None


def _p99s(plan: Plan) -> dict[str, float]:
    """The longest predicted P99 of each workload's servers, in ms."""
    found: dict[str, float] = {}
    for _, _, w in plan.placements():
        known = math.inf if w.predicted.p99_ms is None else w.predicted.p99_ms
        found[w.name] = max(known, found.get(w.name, 0.0))
    return found


class Proposed(NamedTuple):
    """The answer to a question, its plan where there is one, and the plan without further devices."""

    answer: Proposal
    plan: Plan | None = None
    without_more: Plan | None = None


def propose(files: FleetFiles, asked: Propose, workloads: Sequence[str], stock: Stock) -> Proposal:
    """Write what is `proposed`, and return the answer."""
    found = proposed(files, asked, workloads, stock)
    if found.plan is not None:
        write_plan(files.following.proposal, found.plan)
        files.following.without_more.unlink(missing_ok=True)
    if found.without_more is not None:
        write_plan(files.following.without_more, found.without_more)
    return found.answer


def proposed(files: FleetFiles, asked: Propose, workloads: Sequence[str], stock: Stock) -> Proposed:
    """Return the plan that a fleet is asked for, with the rates of these workloads, in their order.

    Where it needs more devices than there are, the plan without them is beside it. Raises InputError where
    the fleet's plan has no spec.
    """
    plan = files.plan()
    known_spec = None if plan is None else spec_of(plan)
    if plan is None or known_spec is None:
        raise InputError(f"the plan of fleet {files.fleet!r} has no spec; plan and apply again")
    spec, document = known_spec
    wanted = dict(zip(workloads, asked.rates_rps, strict=True))
    bursty = {w.name: w.dispersion for w in followed_workloads(plan)}
    served = tuple(
        replace(w, rate_rps=wanted[w.name], dispersion=bursty[w.name])
        for w in spec.workloads
        if w.name in wanted
    )
    spec = replace(spec, workloads=served)
    known = partial(
        devices_for, document=document, latency_model=plan.latency_model, profiles=files.following.profiles
    )
    devices, every = known(_within(spec, stock), cores=0)
    if asked.errors:
        learn_errors(files.following.profiles, plan, devices, asked.errors, SystemClock().wall())
        devices, every = known(_within(spec, stock), cores=0)
    error, reviewed = prediction_error(plan, devices), asked.direction is Direction.REVIEW
    off = f"execution times are up to {error:.0%} off the plan's; " if reviewed else ""

    found = _found_on(devices, served, plan, asked)
    if found is None:
        summary = f"{off}no plan holds the rates that run now{'' if off else ' and more'}"
        return Proposed(Proposal(asked.number, Kind.NONE, summary=summary, error=error))
    if found.plan.violations:
        breaks = "; ".join(f"{one.subject}: {one.reason}" for one in found.plan.violations[:_NAMED])
        off += f"no plan holds the rates that run now, and this one is less late: {breaks}; "
    # It is served as the one that runs.
    served_as = partial(
        replace,
        spec_sha256=document.sha256,
        triton_args=plan.triton_args,
        serve=plan.serve,
        spec=plan.spec,
        env=plan.env,
    )
    new = served_as(with_sources(found.plan, spec, every))
    without_more, used = None, Counter(gpu.type for gpu in new.gpus)
    if stock.grows and any(count > stock.counts.get(kind, 0) for kind, count in used.items()):
        there, _ = known(_within(spec, replace(stock, grows=False)), cores=0)
        less = _found_on(there, served, plan, asked)
        if less is not None and not less.plan.violations:
            without_more = served_as(with_sources(less.plan, spec, every))
    made = Proposal(
        asked.number,
        found.kind,
        tuple(found.rates_rps[name] for name in workloads),
        cost_of(plan.gpus),
        cost_of(new.gpus),
        moved_cost(plan, new),
        found.unheld,
        off + _summary(found.kind, plan, new),
        error,
        plan_hash(plan),
        breaks=bool(found.plan.violations),
    )
    return Proposed(made, new, without_more)


def _found_on(
    devices: Mapping[str, PlanningDevice], served: tuple[Workload, ...], plan: Plan, asked: Propose
) -> Found | None:
    """Return the plan on these devices, beside the one that runs; None where none holds what runs now.

    A review finds the least late one then.
    """
    request = PlanRequest(
        served,
        dict(devices),
        plan.rule,
        SystemClock(),
        quantile=plan.quantile if plan.quantile is not None else 0.95,
        seed=plan.seed or 1,
        previous=plan,
    )
    planned: dict[str, float] = {}
    for _, _, w in plan.placements():
        planned[w.name] = planned.get(w.name, 0.0) + w.rate_rps
    strategy = registry.strategy(plan.strategy, late_binding=plan.ordered or None)
    found = find(strategy, request, planned, asked.direction, asked.move_price)
    if found is None and asked.direction is Direction.REVIEW:
        return least_late(strategy, request, asked.move_price)
    return found


def _within(spec: Spec, stock: Stock) -> Spec:
    """The spec with no more GPUs of a type than there are, or than can come where the spec counts them."""

    def limited(gpu: GpuRequest) -> GpuRequest:
        there = stock.counts.get(gpu.type, 0)
        if stock.grows and gpu.count is not None:
            return gpu
        return replace(gpu, count=max(1, there if gpu.count is None else min(there, gpu.count)))

    return replace(spec, gpus=tuple(map(limited, spec.gpus)))


def _summary(kind: Kind, before: Plan, after: Plan) -> str:
    if kind is Kind.HOLD:
        return "the servers hold that as they are"
    partitions = counted(len({c.partition for c in changes(before, after)}), "partition")
    gpus = f"{len(before.gpus)} -> {counted(len(after.gpus), 'GPU')}"
    return f"{'batches of ' if kind is Kind.BATCHES else ''}{partitions} change, {gpus}"

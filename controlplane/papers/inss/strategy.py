"""`--strategy inss`: the most goodput of a fixed set of GPUs, problem (1)-(1f).

A trained policy places, local search polishes (or places too, where there is no policy or its plan does not
fit), enumeration chooses the batches, and `verify` decides. InSS's own latency model plans. A workload that
the request's model or rule refuses is planned again with more headroom, and then left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.domain.device import noun
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Infeasible, Plan, PlannedGpu, Rule
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, Workload
from controlplane.latency.protocol import FloatArray
from controlplane.papers.inss import policy as policies
from controlplane.papers.inss.policy import Weights
from controlplane.papers.inss.problem import (
    REJECTED,
    Bda,
    Previous,
    Problem,
    Tables,
    fits,
    goodput,
    running,
    tabulate,
)
from controlplane.papers.inss.search import Placed, place
from controlplane.papers.per_type import alone, split
from controlplane.planning.explain.infeasible import nearest_rate, nearest_slo
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.placements import gpu_of, memory_with_shadow, refusal, too_large
from controlplane.planning.protocol import OptionFile, PlanRequest

NAME = "inss"
NO_POLICY = "none"
TIGHTER = 0.9
"""A refused workload is planned again with this part of its SLO and of its GPU's speed."""
MOST_TRIES = 8
"""Tries before a workload that `verify` still refuses is left out."""


@dataclass(frozen=True, slots=True)
class Inss:
    """See the module.

    `iterations`: rounds of local search, None for the usual number. `bda`: how batches are decided. `policy`:
    the trained policy it begins with, None for the search alone.
    """

    iterations: int | None = None
    bda: Bda = Bda.EXACT
    policy: Weights | None = None
    name: str = NAME
    rule: Rule = Rule.HALF_SLO
    latency_model: str = NAME

    def plan(self, request: PlanRequest) -> Plan:
        """See `Strategy.plan`. Raises InputError for an open number of GPUs and for shadows on other GPUs."""
        started = request.clock.monotonic()
        for name, device in request.devices.items():
            if device.pool.count is None:
                raise InputError(
                    f"inss fills a fixed number of {noun([name])}s: say how many {name} there are, or plan "
                    "with joint",
                    field=f"gpus.{name}.count",
                )
        for w in request.workloads:
            if w.shadow.policy is not ShadowPolicy.NONE and w.shadow.place is not ShadowPlace.SAME_GPU:
                raise InputError(
                    f"inss fills every {noun(request.devices)}: a shadow of {w.name} has no room on another "
                    "one; let it stand on the same one (place: same-gpu), or plan with joint",
                    field=f"workloads.{w.name}.shadow",
                )
        known, unknown = known_of(request)
        if not known:
            return finalise(self.name, request, Draft((), tuple(unknown)), started)
        task = _Task(request, self, known, unknown, *tables_of(request, known))
        task.spent_ms["tables"] = (request.clock.monotonic() - started) * 1000.0
        care = np.ones(len(known))
        for attempt in range(MOST_TRIES + len(known) + 1):
            plan = finalise(self.name, request, task.draft(care), started)
            reasons = {v.subject: v.reason for v in plan.violations}
            refused = np.array([w.name in reasons for w in known], dtype=np.bool_)
            if not refused.any():
                break
            care[refused] *= TIGHTER if attempt < MOST_TRIES else 0.0
            out = [w.name for w, c in zip(known, care, strict=True) if c == 0 and w.name in reasons]
            task.judged |= {name: reasons[name] for name in out}
        return plan


def strategy(
    iterations: int | None = None,
    bda: str = Bda.EXACT,
    policy: Weights | OptionFile | str | None = None,
) -> Inss:
    """InSS; see `Inss`. `policy`: None is the built-in one, NO_POLICY the search alone."""
    weights = None if isinstance(policy, OptionFile | str) else policy or policies.built_in()
    if isinstance(policy, OptionFile):
        weights = policies.read(policy.read(), policy.name)[0]
    return Inss(iterations, Bda(bda), weights)


def known_of(request: PlanRequest) -> tuple[list[Workload], list[Infeasible]]:
    """Return the workloads with a profile that covers their client batches, and why the others have none."""

    def why(workload: Workload) -> str | None:
        reasons = [refusal(workload, d) for d in request.devices.values()]
        return None if None in reasons else "; ".join(filter(None, reasons))

    return split(request.workloads, why)


def tables_of(request: PlanRequest, workloads: Sequence[Workload]) -> tuple[list[tuple[str, int]], Tables]:
    """Return the kinds of requests of these workloads, and their tables on a request's GPUs."""
    kinds = sorted({(w.model, w.client_batch) for w in workloads})
    return kinds, tabulate(request.devices, kinds)


def problem_of(
    request: PlanRequest, workloads: Sequence[Workload], kinds: Sequence[tuple[str, int]], tables: Tables
) -> Problem:
    """Return these workloads on a request's GPUs as a problem; the last two are from `tables_of`.

    Rates and batches count the clients' requests, not inferences.
    """
    devices = list(request.devices.values())
    types = [t for t, d in enumerate(devices) for _ in range(d.pool.count or 0)]
    room = [d.pool.device.memory_mb for d in devices]
    return Problem(
        tables,
        np.array([kinds.index((w.model, w.client_batch)) for w in workloads], dtype=np.int64),
        np.array([w.rate_rps / w.client_batch for w in workloads]),
        np.array([w.slo_ms for w in workloads]),
        np.zeros(len(workloads)),
        np.array(types, dtype=np.int64),
        np.array([np.inf if (mb := room[t]) is None else mb for t in types]),
        np.array(
            [[memory_with_shadow(w, d) if w.model in d.profiles else 0.0 for d in devices] for w in workloads]
        ),
    )


@dataclass(slots=True)
class _Task:
    """One request as a problem, the time spent on it, and the workloads that `verify` refused for good."""

    request: PlanRequest
    options: Inss
    workloads: Sequence[Workload]
    unknown: Sequence[Infeasible]
    kinds: Sequence[tuple[str, int]]
    tables: Tables
    spent_ms: dict[str, float] = field(default_factory=dict)
    judged: dict[str, str] = field(default_factory=dict)

    def draft(self, care: FloatArray) -> Draft:
        """Place the workloads with this part of each SLO and GPU speed; 0 leaves a workload out."""
        request, options = self.request, self.options
        cared = [(w, c) for w, c in zip(self.workloads, care, strict=True) if c > 0]
        if not cared:
            return Draft((), (*self.unknown, *map(self._refused, self.workloads)))
        chosen = [w for w, _ in cared]
        tight = [replace(w, slo_ms=w.slo_ms * c, rate_rps=w.rate_rps / c) for w, c in cared]
        decided = place(
            problem_of(request, tight, self.kinds, self.tables),
            request.clock,
            seed=request.seed,
            before=self._before(chosen),
            policy=options.policy,
            rounds=options.iterations,
            budget_s=request.budget_s,
            bda=options.bda,
        )
        for part, ms in decided.phases_ms:
            self.spent_ms[part] = self.spent_ms.get(part, 0.0) + ms
        placed = {chosen[i].name for i in np.flatnonzero(decided.gpu >= 0)}
        lost = [self._refused(w) for w in self.workloads if w.name not in placed]
        return Draft(
            self._gpus(chosen, decided),
            (*self.unknown, *lost),
            decided.stopped_by,
            phases_ms=tuple(self.spent_ms.items()),
        )

    def _before(self, workloads: Sequence[Workload]) -> Previous | None:
        """Return where these workloads run now, for those in one partition with a share of the grid."""
        if self.request.previous is None:
            return None
        number = {
            f"{n}-{i}": (n, i) for n, d in self.request.devices.items() for i in range(d.pool.count or 0)
        }
        order = {key: k for k, key in enumerate(number)}
        gpu = np.full(len(workloads), REJECTED, dtype=np.int64)
        units = np.ones_like(gpu)
        index = {w.name: i for i, w in enumerate(workloads)}
        for on, partition, placement in self.request.previous.placements():
            i = index.get(placement.name)
            if i is None or on.id not in order or len(partition.workloads) > 1:
                continue
            grid = self.request.devices[on.type].pool.device.grid.percents()
            if partition.percent in grid:
                gpu[i], units[i] = order[on.id], grid.index(partition.percent) + 1
        return running(gpu, units)

    def _gpus(self, workloads: Sequence[Workload], decided: Placed) -> tuple[PlannedGpu, ...]:
        gpus = []
        k = 0
        for device in self.request.devices.values():
            grid = device.pool.device.grid.percents()
            for number in range(device.pool.count or 0):
                here = np.flatnonzero(decided.gpu == k).tolist()
                k += 1
                partitions = [
                    alone(w, grid[int(decided.units[i]) - 1], int(decided.batch[i]) * w.client_batch, device)
                    for i in sorted(here, key=lambda i: (-decided.units[i], i))
                    for w in (workloads[i],)
                ]
                if partitions:
                    gpus.append(gpu_of(number, device, partitions))
        return tuple(gpus)

    def _refused(self, workload: Workload) -> Infeasible:
        """Return why a workload has no place: no GPU of the set holds it alone, or the others serve more."""

        def fits_alone(w: Workload) -> bool:
            problem = problem_of(self.request, [w], self.kinds, self.tables)
            _, first = np.unique(problem.type_of, return_index=True)
            units = problem.units[first]
            whole = first[:, None], units[:, None]
            held = ~goodput(problem, *whole, self.options.bda).violated[:, 0]
            return bool((held & fits(problem, *whole)).any())

        sizes = ", ".join(f"{d.pool.count} {n}" for n, d in self.request.devices.items())
        if workload.name in self.judged:
            return Infeasible(workload.name, f"verify refuses it: {self.judged[workload.name]}")
        if fits_alone(workload):
            return Infeasible(workload.name, f"{sizes} serve more requests within their SLO without it")
        no_memory = [
            too_large(workload, d) for d in self.request.devices.values() if workload.model in d.profiles
        ]
        if no_memory and None not in no_memory:
            return Infeasible(workload.name, "; ".join(filter(None, no_memory)))
        reason = (
            f"no partition on {' or '.join(self.request.devices)} serves {workload.rate_rps:g}/s within "
            f"{workload.slo_ms:g} ms"
        )
        return Infeasible(
            workload.name, reason, nearest_slo(fits_alone, workload), nearest_rate(fits_alone, workload)
        )

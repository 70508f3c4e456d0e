"""A plan's report, and plans for other SLOs and rates: what a looser SLO would save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.workload import Workload
from controlplane.files.documents import plain
from controlplane.planning.explain.explain import explain_queues
from controlplane.ports import Progress
from controlplane.report.page.document import plan_document
from controlplane.report.page.html import page
from controlplane.runtime.jobs.plan import Planned

SLO_FACTORS = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
RATE_FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_UNCHANGED = 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """One plan; `best`: each plan that promises more also costs more or leaves out more workloads."""

    factor: float
    gpus: int
    cost_per_hour: float
    infeasible: int
    best: bool = True


def what_if(planned: Planned, progress: Progress | None = None) -> dict[str, list[Point]]:
    """Plan again with every SLO, then with every rate, multiplied; return the points by `slo` and `rate`."""
    workloads = planned.request.workloads
    changed = {
        "slo": [(f, [replace(w, slo_ms=f * w.slo_ms) for w in workloads]) for f in SLO_FACTORS],
        "rate": [(f, [replace(w, rate_rps=f * w.rate_rps) for w in workloads]) for f in RATE_FACTORS],
    }
    total = sum(map(len, changed.values()))
    found: dict[str, list[Point]] = {}
    done = 0
    for kind, steps in changed.items():
        found[kind] = []
        for factor, some in steps:
            if progress is not None:
                progress.advance(f"every {kind} {factor:g} times", done, total, None)
            found[kind].append(_point(planned, factor, some))
            done += 1
    # A smaller SLO and a larger rate promise more.
    return {"slo": frontier(found["slo"]), "rate": frontier(found["rate"][::-1])[::-1]}


def frontier(points: Sequence[Point]) -> list[Point]:
    """Mark the points, the most promising first, that no earlier one makes useless."""
    return [
        replace(
            point,
            best=not any(
                earlier.cost_per_hour <= point.cost_per_hour
                and earlier.gpus <= point.gpus
                and earlier.infeasible <= point.infeasible
                for earlier in points[:n]
            ),
        )
        for n, point in enumerate(points)
    ]


def _point(planned: Planned, factor: float, workloads: Sequence[Workload]) -> Point:
    plan = planned.plan
    if factor != _UNCHANGED:
        plan = planned.strategy.plan(replace(planned.request, workloads=tuple(workloads), previous=None))
    cost = sum(gpu.price_per_hour for gpu in plan.gpus)
    return Point(factor, len(plan.gpus), cost, len(plan.infeasible))


def plan_report(planned: Planned, other_terms: Mapping[str, Sequence[Point]] | None = None) -> str:
    """Return the report of a plan, with the costs under other SLOs and rates where they are given."""
    document = plan_document(planned.plan, explain_queues(planned.plan, planned.request.devices))
    if other_terms is not None:
        document["what_if"] = plain(other_terms)
    return page("Plan", document)

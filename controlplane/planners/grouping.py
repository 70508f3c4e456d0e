"""Which workloads share a queue.

Two workloads of one model in one partition need less than two partitions: their batches fill each other, and
what each partition costs by itself is paid once. All of a group are held to its strictest SLO, so groups are
runs of workloads ordered by SLO, and the cheapest cut into runs is a dynamic program.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload

Group = tuple[Workload, ...]
"""Workloads that share a queue, strictest SLO first."""


def by_slo(workload: Workload) -> tuple[float, float, str]:
    """The order of a group. Names decide only between equals, the order of the spec nothing."""
    return workload.slo_ms, workload.rate_rps, workload.name


def company(workload: Workload, rule: Rule) -> Hashable:
    """Workloads may share a queue where this is equal.

    One server serves them: model, client batch and shadow are the same. Poisson streams together are one;
    constant streams together are neither constant nor Poisson, and no queue here is theirs.
    """
    alone = workload.isolated or (rule is Rule.P99 and workload.arrivals is Arrivals.CONSTANT)
    shadow = workload.shadow
    told = workload.arrivals, workload.client_batch, workload.memory_mb, shadow.policy, shadow.place
    return workload.model, *told, workload.name if alone else None


def families(workloads: Sequence[Workload], rule: Rule) -> list[Group]:
    """All workloads by what may share a queue: each in one, in `by_slo` order."""
    found: dict[Hashable, list[Workload]] = {}
    for w in sorted(workloads, key=lambda w: (w.model, *by_slo(w))):
        found.setdefault(company(w, rule), []).append(w)
    return [tuple(family) for family in found.values()]

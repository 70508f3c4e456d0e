"""Which workloads may share a queue."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from controlplane.domain.plan import Rule
from controlplane.domain.workload import Arrivals, Workload

Group = tuple[Workload, ...]
"""Workloads that share a queue, strictest SLO first."""


def by_slo(workload: Workload) -> tuple[float, float, str]:
    """Sort key of a group: the SLO, then the rate. Names decide only between equals."""
    return workload.slo_ms, workload.rate_rps, workload.name


def sharing_key(workload: Workload, rule: Rule) -> Hashable:
    """Workloads with equal keys may share a queue.

    One server serves them, so model, client batch, memory and shadow must be the same. Poisson streams add up
    to a Poisson stream; constant streams add up to neither, and no queue model here covers the sum.
    """
    own_queue = workload.isolated or (rule is Rule.P99 and workload.arrivals is Arrivals.CONSTANT)
    shadow = workload.shadow
    server = workload.model, workload.client_batch, workload.memory_mb, shadow.policy, shadow.place
    return *server, workload.arrivals, workload.name if own_queue else None


def families(workloads: Sequence[Workload], rule: Rule) -> list[Group]:
    """All workloads, grouped by which of them may share a queue; each family in `by_slo` order."""
    found: dict[Hashable, list[Workload]] = {}
    for w in sorted(workloads, key=lambda w: (w.model, *by_slo(w))):
        found.setdefault(sharing_key(w, rule), []).append(w)
    return [tuple(family) for family in found.values()]

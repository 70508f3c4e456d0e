"""What of a planned P99 is which caution: the same plan judged with one after the other left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.domain.plan import Plan
from controlplane.files.plans import read_plan
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.protocol import Device
from controlplane.runtime.jobs.plan import devices_of


@dataclass(frozen=True, slots=True)
class Parts:
    """P99 of a workload in ms.

    `means`: with mean execution times in place of their upper quantile. `steady`: means, and every batch
    takes its time exactly.
    """

    planned: float
    means: float
    steady: float


def parts_of(plan_file: Path, profiles: Path) -> dict[str, Parts]:
    """By workload."""
    plan, _ = read_plan(plan_file)
    devices = devices_of(plan, profiles)
    steady = {
        kind: replace(d, profiles={m: replace(p, jitter=0.0) for m, p in d.profiles.items()})
        for kind, d in devices.items()
    }
    asked = ((devices, plan.quantile), (devices, None), (steady, None))
    found = [_p99_ms(plan, known, quantile) for known, quantile in asked]
    return {name: Parts(*(one[name] for one in found)) for name in found[0]}


def _p99_ms(plan: Plan, devices: Mapping[str, Device], quantile: float | None) -> dict[str, float]:
    verdicts = judge(plan.gpus, devices, Terms(plan.rule, quantile))
    return {w.name: one.p99_ms for one in verdicts for w in one.workloads}

"""ParvaGPU's scenarios (SC'24): A100s that `joint` takes with MIG sizes as shares, beside their planner's.

    python -m benchmarks.plans.parvagpu [--data DIR]

DIR holds the authors' measurements: a file for each model (MIG size, batch, processes, throughput and latency
of each process) and the scenarios' rates and SLOs. A partition is a MIG instance. *MIG*: one process in each.
*MIG + MPS*: up to five, as many as serve most within half the SLO: k servers in a partition, which take as
long as measured side by side and finish k batches in that time. Of the plans with at most one to five the one
with fewest GPUs counts. A layout that MIG lacks (3+3+1) counts for one GPU more. The rule is half-SLO, as
theirs. Exit code 1 where `joint` takes more GPUs than before.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import planning

from benchmarks.harness import Figures, show, table
from controlplane.domain.device import GpuPool
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.profile import Measurement, Profile
from controlplane.domain.workload import ShadowPolicy, ShadowWish, Workload
from controlplane.files import catalogue
from controlplane.latency.protocol import Estimate, FloatArray, Slots
from controlplane.planning import registry
from controlplane.planning.protocol import Device, PlanRequest

THEIRS = (2, 3, 5, 7)
SLICES, LARGEST = 7, 32
MEMORY_SLICES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Of the eight that a GPU has, by size of an instance."""
PROCESSES = {"MIG": range(1, 2), "MIG + MPS": range(1, 6)}
BEFORE = {"MIG": (2, 3, 5, 8), "MIG + MPS": (2, 3, 5, 8)}
"""GPUs of `joint`."""

Points = Mapping[tuple[int, int, int], float]
"""Latency in ms by MIG size, batch and processes."""


@dataclass(frozen=True)
class Instances:
    """A latency model: MIG instances without neighbours' effects. Times (models, sizes, batches) in ms."""

    models: tuple[str, ...]
    execution: FloatArray
    cycle: FloatArray
    name: str = "mig"

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """Instances of 5 and 6 slices do not exist: those count as 4."""
        size = np.rint(slots.percent * SLICES / 100.0).astype(np.int64)
        at = slots.model, size, np.clip(slots.batch.astype(np.int64), 1, LARGEST)
        execution, cycle = (np.where(slots.mask, t[at], 0.0) for t in (self.execution, self.cycle))
        return Estimate(execution, execution, cycle, cycle, np.zeros(size.shape[0]))


def points_of(path: Path) -> Points:
    with path.open() as rows:
        return {
            (int(r["Mig instance"]), int(r["Batch size"]), int(r["Workload Number"])): 1000.0
            * float(r["Batch size"])
            / float(r["Throughput"])
            for r in csv.DictReader(rows)
            if float(r["Throughput"]) > 0.0
        }


def times_of(points: Points, slo_ms: float, most: int) -> tuple[FloatArray, FloatArray]:
    """Execution and cycle in ms, (sizes, batches), with the processes that serve most within half the SLO."""
    execution = np.full((SLICES + 1, LARGEST + 1), 1e9)
    cycle = execution.copy()
    for (size, batch, processes), ms in sorted(points.items()):
        possible = processes <= most and batch <= LARGEST and (ms <= slo_ms / 2.0 or processes == 1)
        if possible and ms / processes < cycle[size, batch]:
            execution[size, batch], cycle[size, batch] = ms, ms / processes
    for made in (execution, cycle):
        # A batch that was not measured takes as long as the next larger one; sizes 5 and 6 are none.
        for batch in range(LARGEST - 1, -1, -1):
            missing = made[:, batch] >= 1e9
            made[missing, batch] = made[missing, batch + 1]
        made[5:7] = made[4]
    return execution, cycle


def planned(data: Path, scenario: int, processes: int) -> Plan:
    """The plan of `joint` for one scenario; models in the order of their files."""
    rows = {}
    for name in ("rate_rps", "slo_ms"):
        with (data / f"scenarios_{name}.csv").open() as lines:
            rows[name] = list(csv.reader(lines))[scenario]
    names = sorted(p.stem for p in data.glob("*.csv") if not p.stem.startswith("scenarios"))
    kind = catalogue.device("a100")
    assert kind is not None
    asked, tables, profiles = [], [], {}
    for name, rate, slo in zip(names, rows["rate_rps"], rows["slo_ms"], strict=True):
        if rate == "N/A":
            continue
        none = ShadowWish(ShadowPolicy.NONE)
        asked.append(Workload(name, name, float(slo), float(rate), endpoint=name, shadow=none))
        tables.append(times_of(points_of(data / f"{name}.csv"), float(slo), processes))
        profiles[name] = Profile(name, kind.name, kind.share_kind, points=(Measurement(100.0, LARGEST, 1.0),))
    execution, cycle = (np.array([t[n] for t in tables]) for n in (0, 1))
    latency = Instances(tuple(w.model for w in asked), execution, cycle)
    device = Device(GpuPool(kind, None, 1.0), latency, profiles)
    request = PlanRequest(tuple(asked), {"a100": device}, Rule.HALF_SLO, planning.StoppedClock())
    return registry.strategy("joint").plan(request)


def sizes_of(plan: Plan) -> list[list[int]]:
    """The instances of each GPU, larger first; 5 and 6 are made as 4."""
    found = [[round(p.percent * SLICES / 100.0) for p in gpu.partitions] for gpu in plan.gpus]
    return [sorted((4 if size in (5, 6) else size for size in own), reverse=True) for own in found]


def gpus_of(plan: Plan) -> float:
    """GPUs of a plan, with one more for a layout that MIG lacks; infinite where a workload is infeasible."""
    lacking = sum(sum(MEMORY_SLICES[size] for size in own) > MEMORY_SLICES[7] for own in sizes_of(plan))
    return math.inf if plan.infeasible else float(len(plan.gpus) + lacking)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    data, figures = parser.parse_args().data, Figures()
    if data is None:
        print("no --data: nothing to plan")
        return 0
    made = table(
        "A100s", ">scenario", ">workloads", ">theirs", *(f">{name}" for name in PROCESSES), "layouts"
    )
    for scenario, theirs in enumerate(THEIRS):
        best = {
            name: min((planned(data, scenario, most) for most in numbers), key=gpus_of)
            for name, numbers in PROCESSES.items()
        }
        for name, plan in best.items():
            before = BEFORE[name][scenario]
            figures.add(
                f"scenario {scenario + 1}, {name}", gpus_of(plan), "GPUs", at_most=before, reference=theirs
            )
        plan = best["MIG + MPS"]
        layouts = Counter("+".join(map(str, own)) for own in sizes_of(plan))
        made.add_row(
            str(scenario + 1),
            str(len({w.name for _, _, w in plan.placements()})),
            str(theirs),
            *(f"{gpus_of(own):g}" for own in best.values()),
            ", ".join(f"{n} x {own}" for own, n in layouts.most_common()),
        )
    show(made)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

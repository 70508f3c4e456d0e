"""ParvaGPU's scenarios (SC'24): A100s that `joint` takes with MIG sizes as shares, beside their planner's.

    python -m benchmarks.plans.parvagpu [--data DIR]

A partition is a MIG instance, with the times of the catalogue's A100, which are those of one process in each.
DIR holds a file of the authors for each model, with those of up to five processes (MIG size, batch,
processes, throughput and latency): as many as serve most within half the SLO, which are k servers in a
partition that take as long as measured side by side and finish k batches in that time. Of the plans with at
most one to five the one with fewest GPUs counts. A layout that MIG lacks (3+3+1) counts for one GPU more. The
rule is half-SLO, as theirs. Exit code 1 where `joint` takes more GPUs than before.
"""

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

from benchmarks.harness import Figures, csv_folder, show, table
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
BEFORE = (2, 3, 5, 8)
"""GPUs of `joint`."""
MODELS = (
    *("bert", "densenet121", "densenet169", "densenet201", "inceptionv3", "mobilenetv2"),
    *("resnet101", "resnet152", "resnet50", "vgg16", "vgg19"),
)
RATES_RPS = (
    (19, 353, 0, 0, 460, 677, 0, 0, 829, 0, 354),
    (19, 353, 308, 276, 460, 677, 393, 281, 829, 410, 354),
    (46, 728, 633, 493, 1051, 1546, 760, 543, 1463, 780, 673),
    (69, 1091, 949, 739, 1576, 2318, 1140, 815, 2195, 1169, 1010),
)
LOOSE_MS = (6434, 183, 216.5, 168.5, 418.5, 167, 211.5, 212.5, 204.5, 399.5, 396.5)
STRICT_MS = (4294, 126, 150, 119, 282, 113, 144, 146, 138, 227, 265)
SLOS_MS = (LOOSE_MS, LOOSE_MS, STRICT_MS, STRICT_MS)
"""The scenarios; a model without a rate is not in one."""

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


def points_of(model: str, data: Path | None) -> Points:
    if data is None:
        known = catalogue.profiles("a100")[model].points
        return {(round(p.percent * SLICES / 100.0), p.batch, 1): p.execution_ms for p in known}
    with (data / f"{model}.csv").open() as rows:
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


def planned(scenario: int, processes: int = 1, data: Path | None = None) -> Plan:
    """The plan of `joint` for one scenario."""
    kind, none = catalogue.device("a100"), ShadowWish(ShadowPolicy.NONE)
    assert kind is not None
    asked, tables, profiles = [], [], {}
    for name, rate_rps, slo_ms in zip(MODELS, RATES_RPS[scenario], SLOS_MS[scenario], strict=True):
        if not rate_rps:
            continue
        asked.append(Workload(name, name, float(slo_ms), float(rate_rps), endpoint=name, shadow=none))
        tables.append(times_of(points_of(name, data), float(slo_ms), processes))
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
    parser.add_argument("--data", type=csv_folder)
    data, figures = parser.parse_args().data, Figures()
    processes = {"MIG": range(1, 2)} | ({"MIG + MPS": range(1, 6)} if data else {})
    made = table("A100s", ">scenario", "processes", ">workloads", "layouts")
    for scenario, theirs in enumerate(THEIRS):
        for name, numbers in processes.items():
            plan = min((planned(scenario, most, data) for most in numbers), key=gpus_of)
            figures.add(
                f"scenario {scenario + 1}, {name}",
                *(gpus_of(plan), "GPUs"),
                at_most=BEFORE[scenario],
                reference=theirs,
            )
            layouts = Counter("+".join(map(str, own)) for own in sizes_of(plan))
            workloads = len({w.name for _, _, w in plan.placements()})
            shown = ", ".join(f"{n} x {own}" for own, n in layouts.most_common())
            made.add_row(str(scenario + 1), name, str(workloads), shown)
    show(made)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

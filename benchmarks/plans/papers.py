"""The headline figures of five papers, taken again and held against the table of docs/results/papers.md.

    python -m benchmarks.plans.papers           ten minutes of CPU: all rows
    python -m benchmarks.plans.papers --short   a minute: the rows whose section ends in a dot

A row of the page names its figure, theirs, ours, by how much ours may move, and the section here that takes
it. Exits 1 where one has moved by more. Rows without a section have a command of their own.
"""

import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import planning
import turing

from benchmarks.harness import Figures
from benchmarks.plans import gpulet, latency_aware, parvagpu, report
from benchmarks.support import inss, paella
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.profile import Profile
from controlplane.domain.workload import Workload
from controlplane.latency import registry as latency_registry
from controlplane.latency.protocol import FloatArray, Slots
from controlplane.papers.gpulet.sizing import SCHEMES
from controlplane.papers.igniter import gslice
from controlplane.papers.igniter.latency import Igniter
from controlplane.planning import registry
from controlplane.planning.protocol import Device, PlanRequest
from controlplane.runtime.jobs.compare import Question, chosen, compare
from controlplane.simulate.arrivals import Demand as Arriving
from controlplane.simulate.arrivals import Gaps
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.result import SimulationResult

PAGE = Path(__file__).parents[2] / "docs" / "results" / "papers.md"
LATE = "iGniter Fig 14, "
EVERY = 40
SHORT = "."
"""Ends the name of a section that the short form takes."""
T4_PRICE, T4_SLOWER = 0.526, 2.0
"""The surrogate of a T4: g4dn.xlarge on demand, and half a V100's computing resources (iGniter, Sec. 5.4)."""
GPU_LETS = (("A", 40.0, 23), ("R", 60.0, 18), ("V", 40.0, 6))
GSLICE = (("A", 37.5, 18), ("R", 30.0, 8), ("V", 40.0, 6))
"""iGniter's Table 1: model, share in percent, batch; gpu-lets has A on a GPU of its own, GSLICE one GPU."""
WINDOWS, WINDOW_S = 9, 10.0
STEP_PERCENT = 2.5
DELAY_RATES, DELAY_SLOS, DELAY_BATCHES, DELAY_S = (0.1, 0.25, 0.5, 0.9), (1.0, 2.0), (2, 8, 32), 20.0
"""Of Table 1's rates and SLOs, and how long each of them is simulated."""
CURVE = ("k1", "k2", "k3", "k5")
"""Of Eq 11: all that is a time."""


@dataclass(frozen=True)
class Row:
    """A row of the page's table."""

    name: str
    theirs: float | None
    ours: float
    spread: float
    section: str


def rows() -> list[Row]:
    """The rows of the page that a section takes."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 6 and cells[5].startswith("`"):
            theirs = None if cells[1] == "–" else float(cells[1])
            found.append(Row(cells[0], theirs, float(cells[2]), float(cells[3]), cells[5].strip("`")))
    return found


def shares(plan: Plan) -> float:
    return sum(gpu.percent for gpu in plan.gpus)


def placed() -> dict[str, float]:
    """iGniter's Tables 1 and 3 and Fig 14: what is planned."""
    three = [planning.workload(name, model, slo, rps) for name, model, slo, rps in planning.TABLE_1]
    found: dict[str, float] = {}
    for strategy in ("igniter", "gslice+", "gpu-lets+"):
        plan = planning.planned(strategy, three)
        found[f"iGniter Table 1, {strategy}: sum of shares, %"] = shares(plan)
    for strategy in ("igniter", "ffd+", "gslice+", "gpu-lets+"):
        plan = planning.planned(strategy, planning.published(12))
        found[f"iGniter Fig 14, {strategy}: GPUs"] = len(plan.gpus)
    return found | printed()


def printed() -> dict[str, float]:
    """Table 1's gpu-lets and GSLICE as the paper prints them: what is late side by side."""
    latency = planning.v100().latency
    asked = {name: (latency.models.index(model), slo / 2.0) for name, model, slo, _ in planning.TABLE_1}
    found: dict[str, float] = {}
    for plan, gpus in (("gpu-lets", (GPU_LETS[:1], GPU_LETS[1:])), ("GSLICE", (GSLICE,))):
        late = 0
        for gpu in gpus:
            names, percents, batches = zip(*gpu, strict=True)
            slots = Slots.of([[asked[n][0] for n in names]], [list(batches)], [list(percents)])
            taken = latency.estimate(slots, 0.5).execution_ms[0]
            late += sum(ms > asked[n][1] for n, ms in zip(names, taken, strict=True))
        found[f"iGniter Table 1, {plan} as printed: models late by Eq 1 to 11"] = late
    return found


def late() -> dict[str, float]:
    """iGniter Fig 14: workloads late by the published measurements, at even arrivals and at Poisson's."""
    with tempfile.TemporaryDirectory() as folder:
        strategies = ("igniter", "ffd+", "gslice+", "gpu-lets+", "joint")
        question = Question(report.spec_of(12, Path(folder)), Path(folder))
        found = compare(question, strategies, chosen(["even", "measured"]))
    by_name = {one.name: one.truths for one in found.strategies}
    counted: dict[str, float] = {}
    for name, seen in by_name.items():
        counted[f"{LATE}{name}: late, even arrivals"] = len(seen["even"].late)
    for name in ("igniter", "joint"):
        counted[f"{LATE}{name}: late, Poisson arrivals"] = len(by_name[name]["measured"].late)
    return counted


def t4() -> Device:
    """A surrogate: the V100's curves (Eq 11) twice as high, at a T4's price."""
    v100 = planning.v100()
    kind = replace(v100.pool.device, name="t4")

    def slower(profile: Profile) -> Profile:
        known = profile.fits["igniter"]
        fits = {name: T4_SLOWER * k if name in CURVE else k for name, k in known.items()}
        points = tuple(replace(p, execution_ms=T4_SLOWER * p.execution_ms) for p in profile.points)
        return replace(profile, device="t4", points=points, colocation=(), fits={"igniter": fits})

    profiles = {model: slower(profile) for model, profile in v100.profiles.items()}
    latency = latency_registry.build("igniter", kind, profiles)
    return Device(replace(v100.pool, device=kind, price_per_hour=T4_PRICE), latency, profiles)


def parts_of(workload: Workload, devices: Mapping[str, Device]) -> list[Workload]:
    """A workload in as few equal parts as have a place, since one may need several T4s."""
    for count in range(1, 9):
        parts = [
            replace(workload, name=f"{workload.name}-{n}", endpoint=None, rate_rps=workload.rate_rps / count)
            for n in range(count)
        ]
        if not cheapest(parts[:1], devices).infeasible:
            return parts
    raise AssertionError(workload.name)


def cheapest(workloads: Sequence[Workload], devices: Mapping[str, Device]) -> Plan:
    """iGniter's plan: on the GPU type that costs least."""
    request = PlanRequest(tuple(workloads), devices, Rule.HALF_SLO, planning.StoppedClock())
    return registry.strategy("igniter").plan(request)


@dataclass(slots=True)
class Watched(gslice.Tuning):
    """GSLICE+ on a GPU whose times it reads off ten simulated seconds at even arrivals."""

    gpu: PlannedGpu

    @property
    def shares(self) -> FloatArray:
        """The shares on the GPU's grid."""
        return np.minimum(np.ceil(self.percent / STEP_PERCENT) * STEP_PERCENT, 100.0)

    def observed(self) -> tuple[FloatArray, FloatArray]:
        """As `Tuning.observed`: of full batches and of what they serve."""
        seen, ids = self.seen(), [p.id for p in self.gpu.partitions]
        busy = {p.id: p for p in seen.gpus[0].partitions}
        requests = np.array([max(w.requests, 1) for n in ids for w in seen.workloads if w.name == n])
        busy_ms = np.array([busy[n].busy_percent * WINDOW_S * 10.0 for n in ids])
        batches = np.array([busy[n].mean_batch for n in ids])
        return busy_ms * batches / requests, 1000.0 * requests / np.maximum(busy_ms, 1e-3)

    def seen(self) -> SimulationResult:
        """Ten seconds with the shares and batches as they are; more than 100 % get their parts of it."""
        whole = max(self.shares.sum() / 100.0, 1.0)
        parts = tuple(
            replace(p, percent=float(percent / whole), models=(ServedModel(p.models[0].model, int(batch)),))
            for p, percent, batch in zip(self.gpu.partitions, self.shares, self.batch, strict=True)
        )
        demands = {p.id: Arriving(p.workloads[0].rate_rps, Gaps.CONSTANT) for p in parts}
        plan = Plan("by-hand", Rule.HALF_SLO, "ours", (replace(self.gpu, partitions=parts),))
        return simulate(plan, {"v100": planning.v100("ours").latency}, Settings(WINDOW_S, demands=demands))


def tuned() -> dict[str, float]:
    """iGniter Figs 15 and 16: its GPU of W9 and W10, and GSLICE+ there from its first shares on."""
    plan = planning.planned("igniter", planning.published(12))
    (gpu,) = (g for g in plan.gpus if "W10" in [p.id for p in g.partitions])
    asked, eq = [p.workloads[0] for p in gpu.partitions], planning.v100().latency
    ones = np.ones(len(asked))
    assert isinstance(eq, Igniter)

    def watched(batch: Sequence[float] | FloatArray, percent: Sequence[float] | FloatArray) -> Watched:
        half, rate = np.array([w.slo_ms / 2.0 for w in asked]), np.array([w.rate_rps for w in asked])
        model = np.array([eq.models.index(w.model) for w in asked])
        return Watched(eq, model, half, rate, ones, 32.0 * ones, np.array(batch), np.array(percent), gpu)

    fixed = watched([p.models[0].batch for p in gpu.partitions], [p.percent for p in gpu.partitions])
    moving = watched(ones, gslice.FIRST_PERCENT * ones)
    late = {"igniter": 0, "gslice+": 0}
    for _ in range(WINDOWS):
        late["igniter"] += fixed.seen().breaks > 0
        late["gslice+"] += moving.seen().breaks > 0
        print("GSLICE+:", dict(zip([p.id for p in gpu.partitions], moving.shares.tolist(), strict=True)))
        moving.tune_batches()
        moving.tune_shares()
    return {f"iGniter Fig 15, {name}: of 9 windows, late ones": count for name, count in late.items()}


def types() -> dict[str, float]:
    """iGniter Fig 20: a second GPU type, and the choice by cost."""
    own = {"t4": t4()}
    each = {w.name: parts_of(w, own) for w in planning.published(12)}
    plan = cheapest([part for parts in each.values() for part in parts], own | {"v100": planning.v100()})
    assert {gpu.type for gpu in plan.gpus} == {"t4"}
    print("split on T4s:", ", ".join(name for name, parts in each.items() if len(parts) > 1))
    return {
        "iGniter Fig 20: T4s": len(plan.gpus),
        "iGniter Fig 20: $/h on the cheaper type": sum(gpu.price_per_hour for gpu in plan.gpus),
    }


def gpulets() -> dict[str, float]:
    """gpulet's Fig 5 on one in so many scenarios, as its paper prints it and as its code has it."""
    printed, coded = gpulet.Bench("as printed"), gpulet.Bench("as coded")
    some = turing.scenarios()[::EVERY]
    found: dict[str, float] = {}
    for name, scheme, bench in (
        ("sbp, printed", SCHEMES["sbp"], printed),
        ("sbp 1:1, printed", gpulet.HALVES, printed),
        ("gpulet+int, as coded", SCHEMES["gpulet+int"], coded),
    ):
        held = sum(bench.placed(scheme, rates, turing.SLO_MS) is not None for rates in some)
        found[f"gpulet Fig 5, {name}: schedulable, %"] = 100.0 * held / len(some)
    return found


def goodput() -> dict[str, float]:
    """InSS: its policy's goodput as a part of the search's, where its GPUs suffice and where they do not."""
    return {
        f"InSS policy, {models} models on {gpus} GPUs: goodput over the search's": inss.policy_over_search(
            models, gpus
        )
        for models, gpus in ((6, 4), (12, 4))
    }


def served() -> dict[str, float]:
    """InSS Figs 15 and 17: capacity over InSS's own, and InSS's late requests."""
    taken = inss.figures(seeds=2)
    found = {
        f"InSS Fig 15: capacity of {name} over InSS's": taken[f"{name}: capacity"] / taken["inss: capacity"]
        for name in inss.METHODS
        if name != "inss"
    }
    return found | {"InSS Fig 17: late, even arrivals, %": taken["inss: late"]}


def delayed() -> dict[str, float]:
    """InSS's task buffer: where the least share that keeps the P99 is smaller if batches wait to fill."""
    smaller = larger = 0
    for (_, model, slo_ms, rate_rps), part, looser in product(planning.TABLE_1, DELAY_RATES, DELAY_SLOS):
        asked = Placement("w", "w", model, part * rate_rps, looser * slo_ms)
        greedy, waiting = (
            min(least_share(asked, batch, delay_us) for batch in DELAY_BATCHES)
            for delay_us in (0, round(1000.0 * asked.slo_ms / 4.0))
        )
        smaller, larger = smaller + (waiting < greedy), larger + (waiting > greedy)
    return {
        "InSS queue delay: smaller shares of 24": smaller,
        "InSS queue delay: larger shares of 24": larger,
    }


def least_share(asked: Placement, batch: int, delay_us: int) -> float:
    """The least share on which the simulated P99 is within the SLO; infinite for none."""
    low, high = 0, round(100.0 / STEP_PERCENT)
    while low < high:
        middle = (low + high) // 2
        served = (ServedModel(asked.model, batch, max_queue_delay_us=delay_us),)
        partition = Partition("p", middle * STEP_PERCENT or STEP_PERCENT, served, (asked,))
        plan = Plan("by-hand", Rule.P99, "ours", (PlannedGpu("v100-0", "v100", (partition,)),))
        (seen,) = simulate(plan, {"v100": planning.v100("ours").latency}, Settings(DELAY_S)).workloads
        low, high = (low, middle) if seen.holds else (middle + 1, high)
    return low * STEP_PERCENT if low < round(100.0 / STEP_PERCENT) else math.inf


def mig() -> dict[str, float]:
    """ParvaGPU's scenarios, one process in a MIG instance."""
    gpus = sum(parvagpu.gpus_of(parvagpu.planned(n)) for n in range(len(parvagpu.THEIRS)))
    return {"ParvaGPU, four scenarios: A100s": gpus}


def shared() -> dict[str, float]:
    """KAIST's three tasks: throughput b / T, shares by Alg 1 against 100 % for all."""
    tasks = [latency_aware.task(*row) for row in latency_aware.THREE]
    rates = []
    for chosen_shares in (
        latency_aware.fastest(tasks, [100.0]),
        latency_aware.proposed(tasks, latency_aware.TABLES),
    ):
        _, whole_ms, _ = latency_aware.together(tasks, chosen_shares)
        rates.append(sum(batch / ms for (batch, _), ms in zip(chosen_shares, whole_ms, strict=True)))
    return {"KAIST: throughput over shares of 100 %, %": 100.0 * (rates[1] / rates[0] - 1.0)}


def kernels() -> dict[str, float]:
    """Paella's Figs 2 and 12, kernels on one GPU."""
    return {
        "Paella Fig 2: rate of late dispatch over all at once": paella.fig2(),
        "Paella Fig 12, 200/s: P99 with 32 streams over SRPT": paella.fig12(),
    }


SECTIONS: Mapping[str, Callable[[], dict[str, float]]] = {
    "placed.": placed,
    "late": late,
    "types.": types,
    "tuned.": tuned,
    "gpulets.": gpulets,
    "goodput.": goodput,
    "served": served,
    "delay.": delayed,
    "mig.": mig,
    "shared.": shared,
    "kernels": kernels,
}


def main(arguments: Sequence[str]) -> int:
    short = "--short" in arguments
    taken, listed = Figures(), rows()
    if unknown := {row.section for row in listed} - SECTIONS.keys():
        raise SystemExit(f"no section {', '.join(sorted(unknown))}")
    for section, take in SECTIONS.items():
        if short and not section.endswith(SHORT):
            continue
        values = take()
        for row in (r for r in listed if r.section == section):
            low, high = row.ours - row.spread, row.ours + row.spread
            value = values.pop(row.name, math.nan)
            taken.add(row.name, value, at_least=low, at_most=high, reference=row.theirs)
        for name, value in values.items():
            taken.add(f"{name} (not on the page)", value, at_most=-math.inf)
    return taken.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

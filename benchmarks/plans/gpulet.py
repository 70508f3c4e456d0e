"""gpulet's schedulers beside the figures of their authors' code and of the paper.

    python -m benchmarks.plans.gpulet [--every N] [SECTION ...]

Sections: scenarios (all 19,682 on four GPUs, or one in N), rates (the highest one that a scheduler accepts),
standbys (60 scenarios for the default strategy under P99: held, GPUs, and what stands by),
default (scenarios and rates for the default strategy with its standbys; the scenarios of nine models and one
in N of the others, or in ten),
turns (the GPUs that they save the default strategy),
rtx3080 (gpulet+int with the interference of that GPU),
fig15 (a new plan every 20 s over two waves, beside ours),
igniter (its Fig 14 on V100s: GPUs and late workloads); all but `default`, `rtx3080` and `fig15`
unless named. Times are the surrogate's but in the last two: they compare schedulers. Exit code 1 where one
that is a strategy differs by more than 1 % from the authors' code, where the default strategy refuses a
scenario (with standbys), holds a lower rate than gpulet+int, or lets a workload in turns be late in a
simulation, or where gpu-lets+ takes another number of GPUs.
"""

from __future__ import annotations

import csv
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import planning
import turing

from benchmarks.plans import changing_load
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import WITHIN_S, Arrivals, ShadowPolicy, ShadowWish, Workload
from controlplane.papers.gpulet.gpulets import Cluster
from controlplane.papers.gpulet.latency import Gpulet as GpuletModel
from controlplane.papers.gpulet.latency import LinearFactor
from controlplane.papers.gpulet.sizing import IDEAL, SCHEMES, Demand, Scheme, Sizing, Times
from controlplane.papers.gpulet.strategy import demands_of, scaled
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest, Strategy
from controlplane.simulate.arrivals import Demand as Arriving
from controlplane.simulate.engine import Settings, simulate

GPUS = 4
TOLERANCE = 0.01
IDS = {m: i for i, m in enumerate(("lenet1", "lenet2", "lenet3", "lenet4", "lenet5", "lenet6", "googlenet"))}
IDS |= {m: i for i, m in enumerate(("resnet50", "ssd-mobilenetv1", "vgg16", "mnasnet1_0", "mobilenet_v2"), 7)}
IDS |= {"densenet161": 12, "bert": 13}
"""The authors' numbers: they decide between models of equal rate x SLO."""
HALVES = Scheme("sbp 1:1", sizes=(50,))
"""SBP on GPUs cut in halves (Fig 5)."""
SCHEDULABLE = (
    (SCHEMES["sbp"], 5772, 3194),
    (HALVES, 19682, 18658),
    (SCHEMES["greedy-best-fit"], None, 19170),
    (SCHEMES["gpulet"], None, 19170),
    (SCHEMES["gpulet+int"], None, 19028),
    (IDEAL, None, 19170),
)
"""Scheme, scenarios in the paper (Fig 5), and by the authors' code on the surrogate."""
HIGHEST = {
    "sbp": (800, 590, 500, 400, 340, 990, 500),
    "greedy-best-fit": (850, 660, 680, 510, 510, 500, 580),
    "gpulet+int": (970, 790, 770, 630, 620, 2000, 690),
    "gpulet-ideal": (1070, 790, 820, 630, 670, 2080, 690),
}
"""The authors' code on the surrogate: the highest rate a model, in the order of `turing.SCENES`."""
TABLE_3080 = Path(__file__).with_name("rtx3080.csv")
CONSTANTS_3080 = np.array([-0.179887, 0.038409, 0.125518, -0.056482, 1.018427])
"""What the authors publish of an RTX 3080 (casys-kaist/glet, resource/3080): no times."""
OPTIONS: dict[str, dict[str, bool]] = {
    "as printed": {"as_printed": True},
    "by default": {},
    "as coded": {"as_coded": True},
}
STEP_RPS = 10
EVERY = 329
"""One in so many scenarios is 60 of them."""
FIG_14 = {
    "igniter": (6, "none"),
    "ffd+": (5, "10 of 12"),
    "ffd++": (6, "not said"),
    "gslice+": (6, "3 of 12"),
    "gpu-lets+": (8, "W7, W8, W12"),
}
"""GPUs and late workloads in iGniter's Fig 14 and 19."""


class Bench:
    """The tables, made once, and a scheduler's answer for one scenario, as printed or as coded."""

    def __init__(self, reading: str, model: GpuletModel | None = None) -> None:
        self.reading = reading
        self.device = turing.device(GPUS)
        model = model or turing_model()
        self.models = model.models
        self.times = Times.of(model, 32)
        self.sizings: dict[str, Sizing] = {}

    def placed(self, plan: Scheme, rates: Mapping[str, float], slo_ms: Mapping[str, float]) -> Cluster | None:
        sizing = self.sizings.setdefault(plan.name, Sizing(self.times, plan, **OPTIONS[self.reading]))
        return scaled(self._demands(rates, slo_ms), self.device, sizing, GPUS)

    def _demands(self, rates: Mapping[str, float], slo_ms: Mapping[str, float]) -> list[Demand]:
        asked = turing.asked(rates, slo_ms)
        found = demands_of(asked, self.device, self.models)
        return [replace(d, key=IDS[w.model]) for d, w in zip(found, asked, strict=True)]


def turing_model() -> GpuletModel:
    model = turing.device(GPUS).latency
    assert isinstance(model, GpuletModel)
    return model


def rtx3080(every: int) -> bool:
    """The authors' utilisations and constants of an RTX 3080 in place of the 2080 Ti's, on the same times."""
    model = turing_model()
    factor = model.base.contention
    used = factor.utilisation
    measured: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    with TABLE_3080.open() as file:
        for name, *row in list(csv.reader(file))[1:]:
            measured[name].append(tuple(map(float, row)))
    batches = np.arange(1.0, used.l2.shape[1] + 1.0)
    rows = [np.array(measured[re.sub(r"(lenet)\d", r"\1", name)]).T for name in model.models]
    l2, dram = (
        np.stack([np.interp(batches, row[0], row[column]) / 100.0 for row in rows]) for column in (1, 2)
    )
    ampere = LinearFactor(replace(used, l2=l2, dram=dram), CONSTANTS_3080)
    print("interference factor of all pairs, batches 2 to 32, shares 20:80 to 80:20; scenarios, gpulet+int")
    listed = turing.scenarios()[::every]
    for name, contention in (("2080 Ti", factor), ("3080", ampere)):
        bench = Bench("as printed", model=replace(model, base=replace(model.base, contention=contention)))
        factors = [
            bench.times.beside((a, p, x), [(b, 100 - p, y)]) / bench.times.beside((a, p, x), [])
            for a, b in product(range(len(model.models)), repeat=2)
            for x, y in product((2, 4, 8, 16, 32), repeat=2)
            for p in (20, 40, 50, 60, 80)
        ]
        placed = [bench.placed(SCHEMES["gpulet+int"], rates, turing.SLO_MS) for rates in listed]
        held = [cluster for cluster in placed if cluster is not None]
        print(
            f"{name:<8} mean {np.mean(factors):.3f} p90 {np.percentile(factors, 90):.3f} largest "
            f"{max(factors):.3f}; {len(held)} of {len(listed)} accepted, {sum(map(breaks, held))} late",
            flush=True,
        )
    return True


def scenarios(bench: Bench, every: int) -> bool:
    """Count the scenarios that four GPUs hold, and those in which neighbours then break an SLO."""
    listed = turing.scenarios()[::every]
    print(f"{len(listed)} scenarios on {GPUS} GPUs (references: all 19,682), {bench.reading}")
    print(f"{'scheduler':<18}{'ours':>8}{'late':>8}{'code':>8}{'ratio':>8}{'paper':>8}{'ms each':>9}")
    good = True
    for plan, paper, code in SCHEDULABLE:
        before = time.process_time()
        found = [bench.placed(plan, rates, turing.SLO_MS) for rates in listed]
        each_ms = (time.process_time() - before) * 1000.0 / len(listed)
        clusters = [cluster for cluster in found if cluster is not None]
        count, late = len(clusters), sum(map(breaks, clusters))
        ratio = count * every / code
        print(
            f"{plan.name:<18}{count:>8}{late:>8}{code:>8}{ratio:>8.3f}{paper or '–':>8}{each_ms:>9.2f}",
            flush=True,
        )
        good &= bench.reading != "as coded" or every > 1 or plan is HALVES or abs(ratio - 1.0) <= TOLERANCE
    return good


def breaks(cluster: Cluster) -> bool:
    """Whether a GPU misses an SLO by the scheduler's times without a margin once all neighbours count."""
    seen = Cluster(cluster.gpus, replace(cluster.times, margin=1.0), interference=True)
    return not all(map(seen.holds, seen.gpus))


def rates(bench: Bench) -> bool:
    """Raise the rate of all models of a scene until a scheduler refuses it."""
    print(f"highest rate a model that is accepted, {bench.reading}, in steps of 10/s: ours / authors' code")
    print(f"{'scheduler':<18}" + "".join(f"{name:>13}" for name in turing.SCENES) + f"{'mean ratio':>12}")
    for plan in (*map(SCHEMES.__getitem__, ("sbp", "greedy-best-fit", "gpulet+int")), IDEAL):
        ours = [_highest(bench, plan, slo_ms) for slo_ms in turing.SCENES.values()]
        known = HIGHEST[plan.name]
        ratio = sum(a / b for a, b in zip(ours, known, strict=True)) / len(ours)
        cells = "".join(f"{f'{a}/{b}':>13}" for a, b in zip(ours, known, strict=True))
        print(f"{plan.name:<18}{cells}{ratio:>12.3f}", flush=True)
    return True


def _highest(bench: Bench, plan: Scheme, slo_ms: Mapping[str, float]) -> int:
    """The largest rate accepted before three refusals in a row: acceptance is not monotone."""
    best, refused, rate = 0, 0, STEP_RPS
    while refused < 3:
        if bench.placed(plan, dict.fromkeys(slo_ms, float(rate)), slo_ms) is not None:
            best, refused = rate, 0
        else:
            refused += 1
        rate += STEP_RPS
    return best


def standbys() -> bool:
    """What the default strategy holds of 60 scenarios, by the shadows asked for; aim: all by default."""
    some = turing.scenarios()[::EVERY]
    print(
        f"joint, P99, {len(some)} scenarios on {GPUS} GPUs, by the shadows asked for; a warm one loads for an"
    )
    print(f"unknown time, so those that stand ready within {WITHIN_S:g} s are the hot and shared ones")
    print(
        f"{'shadows':<11}{'held':>6}{'GPUs':>6}{'hot':>6}{'shared':>8}{'warm':>6}{'in time':>9}{'ms each':>9}"
    )
    wishes = {p.value: ShadowWish(p) for p in (ShadowPolicy.NONE, ShadowPolicy.HOT, ShadowPolicy.AUTO)}
    held = {}
    for name, wish in (wishes | {"within 1 s": ShadowWish(within_s=WITHIN_S)}).items():
        before = time.process_time()
        plans = [_planned(rates, turing.SLO_MS, Rule.P99, "ours", wish) for rates in some]
        each_ms = (time.process_time() - before) * 1000.0 / len(some)
        good = [plan for plan in plans if plan is not None]
        shadows = [p.shadow for plan in good for _, p in plan.partitions() if p.shadow is not None]
        by = Counter(s.policy for s in shadows)
        ready = sum(s.redirect_s is not None and s.redirect_s <= WITHIN_S for s in shadows)
        print(
            f"{name:<11}{len(good):>6}{sum(len(plan.gpus) for plan in good):>6}{by[ShadowPolicy.HOT]:>6}"
            f"{by[ShadowPolicy.SHARED]:>8}{by[ShadowPolicy.WARM]:>6}{f'{ready}/{len(shadows)}':>9}{each_ms:>9.0f}",
            flush=True,
        )
        held[name] = len(good)
    return held["auto"] == len(some)


def default(every: int) -> bool:
    """Count the scenarios and find the rates that the default strategy holds, every plan verified."""
    listed = turing.scenarios()
    good = True
    for what, some in (
        ("nine models", [rates for rates in listed if len(rates) == len(turing.SLO_MS)]),
        (f"one in {every}", listed[::every]),
    ):
        before = time.process_time()
        gpus = Counter(_gpus(rates, turing.SLO_MS, Rule.HALF_SLO) for rates in some)
        each_ms = (time.process_time() - before) * 1000.0 / len(some)
        held = len(some) - gpus[None]
        on = ", ".join(f"{gpus[n]} on {n}" for n in range(1, GPUS + 1))
        print(
            f"joint, half-SLO, {what}: {held} of {len(some)} ({on} GPUs), {each_ms:.0f} ms each", flush=True
        )
        good &= held == len(some)
    print("highest rate a model that joint holds; beside gpulet+int of the authors' code under half-SLO")
    for rule in (Rule.HALF_SLO, Rule.P99):
        ours = [_highest_held(slo_ms, rule) for slo_ms in turing.SCENES.values()]
        print(
            f"{rule:<18}"
            + "".join(f"{f'{a}/{b}':>13}" for a, b in zip(ours, HIGHEST["gpulet+int"], strict=True))
        )
        if rule is Rule.HALF_SLO:
            ratios = [a / b for a, b in zip(ours, HIGHEST["gpulet+int"], strict=True)]
            print(
                f"{'ratio':<18}"
                + "".join(f"{r:>13.2f}" for r in ratios)
                + f"  mean {sum(ratios) / len(ratios):.2f}"
            )
            good &= min(ratios) >= 1.0
    return good


def _gpus(rates: Mapping[str, float], slo_ms: Mapping[str, float], rule: Rule) -> int | None:
    """The number of GPUs of the default strategy's plan with standbys; None where it refuses a workload."""
    plan = _planned(rates, slo_ms, rule, "gpulet", ShadowWish())
    return None if plan is None else len(plan.gpus)


def _planned(
    rates: Mapping[str, float], slo_ms: Mapping[str, float], rule: Rule, latency: str, wish: ShadowWish
) -> Plan | None:
    """The default strategy's verified plan; None where it refuses a workload."""
    asked = tuple(replace(w, shadow=wish) for w in turing.asked(rates, slo_ms))
    plan = registry.strategy("joint").plan(turing.question(asked, GPUS, rule, latency))
    return plan if plan.verified and not plan.infeasible else None


def _highest_held(slo_ms: Mapping[str, float], rule: Rule) -> int:
    """The largest rate of all models that the default strategy holds, by bisection."""
    low, high = 0, 512 * STEP_RPS
    while high - low > STEP_RPS:
        middle = (low + high) // 2 // STEP_RPS * STEP_RPS
        held = _gpus(dict.fromkeys(slo_ms, float(middle)), slo_ms, rule) is not None
        low, high = (middle, high) if held else (low, middle)
    return low


def fig15() -> bool:
    """Fig 15: over two waves a new plan every 20 s by gpulet+int with Alg 2, beside ours.

    Three models of the V100 catalogue; requests run through the simulator with our model's times.
    """
    case = changing_load.waves()
    counts = case.counts(seed=1)
    policies = {"ours": changing_load.ours}
    for reading, options in OPTIONS.items():
        strategy = registry.strategy("gpulet+int", **options)

        def planned(rates: Sequence[float], previous: Plan | None, strategy: Strategy = strategy) -> Plan:
            return strategy.plan(replace(changing_load.request(rates, previous), rule=Rule.HALF_SLO))

        policies[f"gpulet+int, {reading}"] = partial(changing_load.every_20_s, planned=planned)
    found = {name: policy(case, counts) for name, policy in policies.items()}
    for served in found.values():
        changing_load.measure(counts, served)
    changing_load.report(case, found, changing_load.oracle(case))
    return True


def turns(seeds: int = 5) -> bool:
    """GPUs of the default strategy for light models of as many families, with and without turns."""
    print(
        "random light workloads, each of another model, on GPUs cut into five, under P99 by our model; five"
    )
    print(
        "lists each: GPUs without turns (`isolated: true`) and with; workloads late in 300 simulated seconds"
    )
    late = 0
    for count in (5, 10, 20, 40):
        device = planning.cores(-(-count // len(planning.MODELS)))
        gpus, cpu_s = [0, 0], [0.0, 0.0]
        late_here = 0
        for seed in range(seeds):
            asked = _light(count, random.Random(seed))
            for n, isolated in enumerate((True, False)):
                own = tuple(replace(w, isolated=isolated) for w in asked)
                before = time.process_time()
                plan = registry.strategy("joint").plan(
                    PlanRequest(own, {"v100": device}, Rule.P99, planning.StoppedClock())
                )
                cpu_s[n] += time.process_time() - before
                assert plan.verified
                gpus[n] += len(plan.gpus)
            demands = {w.name: Arriving.of(w.arrivals, w.rate_rps) for w in asked}
            seen = simulate(
                plan, {"v100": device.latency}, Settings(seconds=300.0, seed=seed, demands=demands)
            )
            late_here += sum(not w.holds for w in seen.workloads)
        each = f"CPU {cpu_s[0] / seeds:.2f} and {cpu_s[1] / seeds:.2f} s a plan"
        print(
            f"{count:>4} models {gpus[0]:>5} {gpus[1]:>5}  late {late_here} of {count * seeds}, {each}",
            flush=True,
        )
        late += late_here
    return late == 0


def _light(count: int, chance: random.Random) -> tuple[Workload, ...]:
    """Workloads of 1 to 10/s whose SLO is 4 to 12 times a whole GPU's batch of one and more."""
    slo_ms = {"alexnet": 30.0, "resnet50": 80.0, "vgg19": 120.0, "ssd": 110.0}
    models = [(model, n) for n in range(-(-count // len(slo_ms))) for model in slo_ms][:count]
    return tuple(
        planning.workload(
            f"{model}{n}", f"{model}-{n}", slo_ms[model] * chance.uniform(1.0, 4.0), chance.uniform(1.0, 10.0)
        )
        for model, n in models
    )


def igniter() -> bool:
    """IGniter's twelve workloads by its own model: what the judge says, and what a simulation sees."""
    print("iGniter's Table 3: GPUs, and workloads late in the paper, by the judge, and simulated for 200 s")
    good = True
    for strategy, (gpus, late) in FIG_14.items():
        plan = planning.planned(strategy, planning.published(12))
        names = {p.name for _, _, p in plan.placements()}
        late_ones = {v.subject for v in plan.violations if "shadow" not in v.reason} & names
        judged = sorted(late_ones, key=_number)
        good &= not strategy.startswith("g") or len(plan.gpus) == gpus
        print(
            f"{strategy:<11}{len(plan.gpus)} GPUs (paper {gpus}), late in the paper: {late}; judge: {judged}"
        )
        for arrivals in Arrivals:
            rates = {p.name: Arriving.of(arrivals, p.rate_rps) for _, _, p in plan.placements()}
            seen = simulate(plan, {"v100": planning.v100().latency}, Settings(seconds=200, demands=rates))
            breaks = sorted((w.name for w in seen.workloads if not w.holds), key=_number)
            print(f"           simulated, {arrivals}: {breaks}", flush=True)
    return good


def _number(workload: str) -> int:
    return int(workload[1:])


def main(arguments: list[str]) -> int:
    every = 1
    if "--every" in arguments:
        at = arguments.index("--every")
        every = int(arguments[at + 1])
        del arguments[at : at + 2]
    named = arguments or ["scenarios", "rates", "standbys", "turns", "igniter"]
    benches = [Bench(reading) for reading in OPTIONS]
    sections = {
        "scenarios": lambda: all([scenarios(bench, every) for bench in benches]),
        "rates": lambda: all([rates(bench) for bench in benches]),
        "standbys": standbys,
        "default": lambda: default(10 if every == 1 else every),
        "turns": turns,
        "rtx3080": lambda: rtx3080(every),
        "fig15": fig15,
        "igniter": igniter,
    }
    return 0 if all([sections[name]() for name in named]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

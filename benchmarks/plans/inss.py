"""InSS beside its paper: two RTX 2060 Super and two RTX 2060, its six models, rates that walk as in its code.

python -m benchmarks.plans.inss             two minutes: batches, policy, figures 15 to 17
python -m benchmarks.plans.inss --seeds 5   more walks

Everybody plans with its own latency model; the truth is the model `ours`, fitted on the same measurements.
Nothing is tuned to come near the figures.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import inss_instances as instances
import numpy as np
from inss_brute_force import capacities
from inss_setup import devices, surfaces, workloads
from planning import RealClock

from benchmarks.harness import Figures, show, table
from benchmarks.support import inss_baselines
from controlplane.domain.plan import Partition, Plan, PlannedGpu, Rule, ServedModel
from controlplane.papers.inss.policy import Weights, built_in, decide
from controlplane.papers.inss.problem import REJECTED, Bda, Problem, Surfaces, fits, goodput
from controlplane.papers.inss.search import place, search
from controlplane.planning.judge.estimates import times
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.placements import gpu_of, partition_of
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.registry import strategy
from controlplane.simulate.arrivals import Demand, Gaps
from controlplane.simulate.engine import Settings, simulate

CLOCK = RealClock()
START = {
    "alexnet": 200.0,
    "resnet50": 150.0,
    "vgg16": 80.0,
    "mnasnet": 200.0,
    "mobilenet_v3": 250.0,
    "efficientnet": 250.0,
}
"""Rates where the authors' evaluation begins."""
GPUS = ("rtx2060s", "rtx2060s", "rtx2060", "rtx2060")
SECONDS, STRIDE_S, STRIDE_RPS = 200, 10, 20.0
FIG_15 = {
    "inss": 4831.7,
    "inss w/o interference": 4848.7,
    "gpulet-like": 3772.5,
    "bda-gpulet": 4188.0,
    "gslice-like": 3270.6,
    "igniter": 1667.8,
}
NEAR = 1.02
"""A method that serves no more than InSS in the paper serves no more here."""
FIG_17 = {
    "inss": 0.890,
    "inss w/o interference": 1.307,
    "gpulet-like": 4.387,
    "gslice-like": 2.636,
    "igniter": 2.872,
}
FIG_16 = {
    "inss": "4201 to 5482",
    "gpulet-like": "3330 to 4420",
    "gslice-like": "2924 to 3516",
    "igniter": "1327 to 1972",
}
"""The lowest and the highest of 50 points over 200 s."""
LATE = ("waits, even", "waits, Poisson", "greedy, even", "greedy, Poisson")


def walk(seed: int) -> list[dict[str, float]]:
    """Rates every ten seconds: 20/s up or down, reflected at the model's bounds."""
    rng = np.random.default_rng(seed)
    rates, steps = dict(START), []
    for _ in range(SECONDS // STRIDE_S):
        steps.append(dict(rates))
        for name in rates:
            low, high = instances.MODELS[name].least_rps, instances.MODELS[name].most_rps
            stride = STRIDE_RPS if rng.random() < 0.5 else -STRIDE_RPS
            rates[name] += stride if low <= rates[name] + stride <= high else -stride
    return steps


def problem_of(rates: Mapping[str, float], told: Surfaces) -> Problem:
    return instances.paper(told, list(rates), list(rates.values()), GPUS)


@dataclass(frozen=True)
class Decided:
    """A plan's GPUs, and how long each model's first request waits for its batch in the paper's buffer."""

    gpus: tuple[PlannedGpu, ...]
    wait_ms: Mapping[str, float]


def gpus_of(
    rates: Mapping[str, float],
    gpu: np.ndarray,
    units: np.ndarray,
    batch: np.ndarray,
) -> tuple[PlannedGpu, ...]:
    """A plan's GPUs from an assignment of `problem_of`."""
    asked, found = workloads(rates), []
    for k, kind in enumerate(GPUS):
        device = devices()[kind]
        grid = device.pool.device.grid.percents()
        here = [(asked[i], grid[int(units[i]) - 1], int(batch[i])) for i in np.flatnonzero(gpu == k)]
        parts = [
            partition_of(w.name, [w], percent, b, instances.MODELS[w.model].memory_mb)
            for w, percent, b in here
        ]
        if parts:
            found.append(gpu_of(k - GPUS.index(kind), device, parts))
    return tuple(found)


def half_slo(rates: Mapping[str, float]) -> dict[str, float]:
    return {name: instances.MODELS[name].slo_ms / 2.0 for name in rates}


def inss(rates: Mapping[str, float], told: Surfaces, policy: Weights | None = None) -> Decided:
    """Place, polish, enumerate; the first of a batch waits as long as its own batch's time allows."""
    problem = problem_of(rates, told)
    found = place(problem, CLOCK, policy=policy)
    outcome = goodput(problem, found.gpu, found.units)
    execution = np.where(
        found.batch > 0, 1000.0 * outcome.batch / np.maximum(outcome.capacity_rps, 1e-9), 0.0
    )
    wait = dict(zip(rates, (problem.slos_ms - execution).tolist(), strict=True))
    return Decided(gpus_of(rates, found.gpu, found.units, found.batch), wait)


def baseline(
    rates: Mapping[str, float],
    put: Callable[[Problem], tuple[np.ndarray, np.ndarray]],
    *,
    bda: bool = False,
) -> Decided:
    """GSLICE-like and gpulet-like: half-SLO batches and waits; with BDA, Eq 2 decides both."""
    problem = problem_of(rates, surfaces().without_interference())
    gpu, units = put(problem)
    if not bda:
        batch = inss_baselines.batches(problem, gpu, units)
        return Decided(gpus_of(rates, gpu, units, batch), half_slo(rates))
    outcome = goodput(problem, gpu, units)
    execution = 1000.0 * outcome.batch / np.maximum(outcome.capacity_rps, 1e-9)
    wait = np.where(gpu >= 0, problem.slos_ms - execution, 0.0)
    wait_ms = dict(zip(rates, wait.tolist(), strict=True))
    return Decided(gpus_of(rates, gpu, units, outcome.batch), wait_ms)


def planned(rates: Mapping[str, float], name: str, latency: str, rule: Rule) -> Decided:
    """One of `ctl plan`'s strategies. IGniter fills one GPU type; what is left over goes to the other."""
    left, own = workloads(rates), dict(devices(latency))
    gpus: list[PlannedGpu] = []
    while left and own:
        plan = strategy(name).plan(PlanRequest(left, own, rule, CLOCK))
        gpus += plan.gpus
        lost = {i.workload for i in plan.infeasible}
        left = tuple(w for w in left if w.name in lost)
        own = {} if name != "igniter" else {n: d for n, d in own.items() if n not in {g.type for g in gpus}}
    return Decided(tuple(gpus), half_slo(rates))


Method = Callable[[Mapping[str, float]], Decided]
Methods = Mapping[str, Method]
METHODS: Methods = {
    "inss": lambda rates: inss(rates, surfaces(), built_in()),
    "inss, search alone": lambda rates: inss(rates, surfaces()),
    "inss w/o interference": lambda rates: inss(rates, surfaces().without_interference()),
    "bda-gpulet": lambda rates: baseline(rates, inss_baselines.gpulet, bda=True),
    "gpulet-like": lambda rates: baseline(rates, inss_baselines.gpulet),
    "gslice-like": lambda rates: baseline(rates, inss_baselines.gslice),
    "igniter": lambda rates: planned(rates, "igniter", "igniter", Rule.HALF_SLO),
    "joint": lambda rates: planned(rates, "joint", "ours", Rule.P99),
}


def capacity_rps(gpus: tuple[PlannedGpu, ...]) -> float:
    """Sum of b / t by the truth, all neighbours busy: what the paper calls throughput."""
    total = 0.0
    for kind, device in devices("ours").items():
        here = [g for g in gpus if g.type == kind]
        if here:
            slots = Layout.of(here, device).all_busy
            total += float(times(device.latency, slots, None).capacity_rps.sum())
    return total


def served_by(
    gpus: tuple[PlannedGpu, ...], how: Callable[[Partition], ServedModel]
) -> tuple[PlannedGpu, ...]:
    """The same GPUs with every model served in another way."""
    return tuple(
        replace(g, partitions=tuple(replace(p, models=(how(p),)) for p in g.partitions)) for g in gpus
    )


def waiting(decided: Decided) -> tuple[PlannedGpu, ...]:
    """With the paper's task buffer: a batch waits to be full, at most so long."""

    def served(partition: Partition) -> ServedModel:
        model, batch = partition.models[0].model, partition.models[0].batch
        delay_us = max(int(1000.0 * decided.wait_ms[model]), 1)
        return ServedModel(model, batch, max_queue_delay_us=delay_us)

    return served_by(decided.gpus, served)


def true_batches(decided: Decided) -> tuple[PlannedGpu, ...]:
    """With the batch that so long a wait gathers from even arrivals (its figure 18's "true batch")."""

    def served(partition: Partition) -> ServedModel:
        model, batch = partition.models[0].model, partition.models[0].batch
        rate = partition.workloads[0].rate_rps
        return ServedModel(model, min(batch, 1 + int(rate * decided.wait_ms[model] / 1000.0 + 1e-9)))

    return served_by(decided.gpus, served)


@dataclass
class Seen:
    """Requests asked for, those answered within the SLO, and those of rejected models."""

    requests: float = 0.0
    good: float = 0.0
    rejected: float = 0.0

    def add(
        self, gpus: tuple[PlannedGpu, ...], rates: Mapping[str, float], law: Gaps, seconds: float, seed: int
    ) -> None:
        """Simulate these GPUs for so long at these rates."""
        truth = {kind: device.latency for kind, device in devices("ours").items()}
        plan = Plan("bench", Rule.HALF_SLO, "ours", gpus)
        demands = {name: Demand(rate, law) for name, rate in rates.items()}
        result = simulate(plan, truth, Settings(seconds=seconds, seed=seed, demands=demands))
        here = {w.name: w for w in result.workloads}
        self.requests += sum(w.requests for w in here.values())
        self.good += sum(w.goodput_rps for w in here.values()) * seconds
        away = sum(rate for name, rate in rates.items() if name not in here) * seconds
        self.requests += away
        self.rejected += away

    @property
    def violations_percent(self) -> float:
        """Of the requests of models that were placed."""
        asked = self.requests - self.rejected
        return 100.0 * (1.0 - self.good / asked) if asked else math.nan


@dataclass
class Found:
    """What a method decided over its walks: capacities decided and true, and GPUs."""

    capacity: list[tuple[float, float]] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    seen: Mapping[tuple[bool, Gaps], Seen] = field(
        default_factory=lambda: {
            (w, law): Seen() for w in (True, False) for law in (Gaps.CONSTANT, Gaps.POISSON)
        }
    )


def found_by(
    decide: Callable[[Mapping[str, float]], Decided], walks: Sequence[Sequence[dict[str, float]]]
) -> Found:
    """What a method decides for every step of the walks, and the requests of these steps."""
    found = Found()
    for seed, steps in enumerate(walks):
        for at, rates in enumerate(steps):
            decided = decide(rates)
            found.capacity.append((capacity_rps(decided.gpus), capacity_rps(true_batches(decided))))
            found.gpus.append(len(decided.gpus))
            for (waits, law), sums in found.seen.items():
                chosen = waiting(decided) if waits else decided.gpus
                sums.add(chosen, rates, law, STRIDE_S, 1000 * seed + at)
    return found


def figures(taken: Figures, seeds: int) -> None:
    """Capacity and lateness beside the paper's.

    Capacity is b / t by the truth, of the batch that the wait gathers. What is late counts among the requests
    of placed models: batches wait as in the paper or do not, as in Triton; arrivals are even or Poisson.
    """
    walks = [walk(seed) for seed in range(seeds)]
    columns = (">decided/s", ">true/s", ">paper", ">over time", ">paper", *(f">{name}" for name in LATE))
    made = table(f"Figs 15 to 17, {seeds} walks of {SECONDS} s; late in %", "", *columns, ">paper", ">GPUs")
    reference = next(iter(METHODS))
    first = math.nan
    for name, method in METHODS.items():
        found = found_by(method, walks)
        mean, true = np.mean(found.capacity, axis=0)
        first = true if name == reference else first
        theirs, over_time = FIG_15.get(name), [t for _, t in found.capacity]
        made.add_row(
            *(name, f"{mean:.0f}", f"{true:.0f}", str(theirs or "–")),
            *(f"{min(over_time):.0f} to {max(over_time):.0f}", FIG_16.get(name, "–")),
            *(f"{sums.violations_percent:.2f}" for sums in found.seen.values()),
            *(str(FIG_17.get(name, "–")), f"{np.mean(found.gpus):.2f}"),
        )
        ratio = None if theirs is None else theirs / FIG_15[reference]
        most = NEAR if ratio is None or ratio <= 1.0 else None
        taken.add(f"{name}: capacity over {reference}'s", true / first, at_most=most, reference=ratio)
        even = found.seen[True, Gaps.CONSTANT].violations_percent
        taken.add(f"{name}: late, even arrivals", even, "%", reference=FIG_17.get(name))
    show(made, width=170)


def batches(taken: Figures) -> None:
    """BDA: enumeration against brute force in numpy, and the paper's search."""
    rng = np.random.default_rng(1)
    problem = Problem.stack([instances.sample(rng, surfaces(), 6, 4, backlog_s=0.05) for _ in range(2500)])
    gpu = rng.integers(-1, 4, size=problem.model.shape)
    units = rng.integers(1, problem.units[np.arange(len(gpu))[:, None], np.maximum(gpu, 0)] + 1)
    held, _ = capacities(problem, gpu, units)
    placed, best, possible = gpu >= 0, held.argmax(axis=2) + 1, held.max(axis=2) > 0
    for name, bda, least in (("enumeration", Bda.EXACT, 100.0), ("the paper's search", Bda.PAPER, None)):
        found = goodput(problem, gpu, units, bda)
        right = np.where(possible, (found.batch == best) & ~found.violated, found.violated)[placed]
        taken.add(f"BDA, {name}: the batch of brute force", 100 * right.mean(), "%", at_least=least)


class CpuClock:
    """`ports.Clock` that counts this process's CPU time, which a busy machine does not change."""

    def monotonic(self) -> float:
        return time.process_time()

    def wall(self) -> float:
        return time.time()


def by_search(problem: Problem, budget_s: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    found = search(problem, CpuClock(), budget_s=budget_s)
    return found.gpu, np.where(found.gpu == REJECTED, 1, found.units)


def policy_over_search(models: int, gpus: int, count: int = 64) -> float:
    """The built-in policy's goodput over the search's, on problems that it was not trained on."""
    rng = np.random.default_rng([20_240, models, gpus])
    problems = [instances.sample(rng, surfaces(), models, gpus) for _ in range(count)]
    search(problems[0], CpuClock(), rounds=1)  # compiles
    stacked, parts = Problem.stack(problems), []
    for decided in (lambda p: decide(p, built_in()), by_search):
        found = [decided(p) for p in problems]
        assert all(fits(p, *one) for p, one in zip(problems, found, strict=True))
        gpu, units = (np.stack([one[i] for one in found]) for i in (0, 1))
        parts.append(goodput(stacked, gpu, units).goodput_rps.sum(axis=1) / stacked.rates_rps.sum(axis=1))
    return float((parts[0] / parts[1]).mean())


def policy(taken: Figures) -> None:
    """Where GPUs are short the policy alone is known to lose a tenth."""
    for size, least in (((6, 4), 0.99), ((8, 5), 0.99), ((12, 4), None)):
        name = f"{size[0]} models on {size[1]} GPUs: the policy's goodput over the search's"
        taken.add(name, policy_over_search(*size), at_least=least)


def main() -> int:
    """All of it."""
    taken = Figures()
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seeds", type=int, default=2, help="walks of each kind")
    given = asked.parse_args()
    batches(taken)
    policy(taken)
    figures(taken, given.seeds)
    return taken.end()


if __name__ == "__main__":
    sys.exit(main())

"""InSS beside its paper: two RTX 2060 Super and two RTX 2060, its six models, rates that walk as in its code.

Each method plans with its own latency model; the truth is the model `ours`, fitted on the same measurements.
Nothing is tuned to come near the figures. GSLICE-like and gpulet-like placements know of no neighbours, as
InSS's paper runs them; their batch is the largest whose time is within half the SLO.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import inss_instances as instances
import numpy as np
from inss_instances import devices, tables, workloads
from planning import RealClock
from scipy.stats import poisson

from controlplane.domain.plan import Partition, Plan, PlannedGpu, Rule, ServedModel
from controlplane.papers.inss.policy import built_in, decide
from controlplane.papers.inss.problem import REJECTED, Problem, Tables, fits, goodput
from controlplane.papers.inss.search import place, search
from controlplane.planning.judge.estimates import ask
from controlplane.planning.judge.layout import Layout
from controlplane.planning.judge.placements import gpu_of, partition_of
from controlplane.planning.protocol import PlanRequest
from controlplane.planning.registry import strategy
from controlplane.simulate.arrivals import Demand, Gaps
from controlplane.simulate.engine import Settings, simulate

SIZES = (20.0, 40.0, 50.0, 60.0, 80.0, 100.0)
"""What gpulet's code cuts off a whole GPU; the rest is the second piece."""


def half_slo_batch(problem: Problem, i: int, kind: int, unit: int) -> int:
    """The largest batch whose time alone is within half the SLO; 0 for none."""
    t = problem.tables.alone_ms[problem.model[i], kind, unit - 1]
    good = np.flatnonzero(t <= problem.slos_ms[i] / 2.0)
    return int(good[-1]) + 1 if good.size else 0


def alone_rates(problem: Problem, i: int, kind: int) -> np.ndarray:
    """Requests per second that each share serves alone with that batch, (U,)."""
    s = problem.tables
    m = problem.model[i]
    batches = [half_slo_batch(problem, i, kind, u) for u in range(1, s.percent.shape[1] + 1)]
    return np.array([1000.0 * b / s.cycle_ms[m, kind, u, b - 1] if b else 0.0 for u, b in enumerate(batches)])


def knee(problem: Problem, i: int, kind: int) -> int:
    """The share after which more brings less: farthest above the chord of rate over share; in units."""
    served = alone_rates(problem, i, kind)
    percent = problem.tables.percent[kind]
    known = np.isfinite(percent)
    gain = served[known] / max(served[known].max(), 1e-9) - percent[known] / 100.0
    return int(np.argmax(gain)) + 1


def enough(problem: Problem, i: int, kind: int, rate_rps: float) -> int | None:
    """The least units that serve this rate; None where all do not."""
    good = np.flatnonzero(alone_rates(problem, i, kind) >= rate_rps)
    return int(good[0]) + 1 if good.size else None


def half_slo_batches(problem: Problem, gpu: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Half-SLO batches of an assignment, at least 1, 0 where rejected; (n,)."""
    return np.array(
        [
            0 if k < 0 else max(half_slo_batch(problem, i, int(problem.type_of[k]), int(u)), 1)
            for i, (k, u) in enumerate(zip(gpu, units, strict=True))
        ]
    )


def gslice(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """GSLICE-like: each model the knee of its throughput, more where its rate needs it, on the emptiest GPU.

    Where the knee is not free the share is what is left, as long as that serves the rate.
    """
    n = problem.model.size
    gpu, units = np.full(n, REJECTED), np.ones(n, dtype=np.int64)
    percent, memory = np.full(problem.type_of.size, 100.0), problem.memory_mb.copy()
    for i in np.argsort(-problem.rates_rps, kind="stable"):
        for k in np.argsort(-percent, kind="stable"):
            kind = int(problem.type_of[k])
            least = enough(problem, i, kind, problem.rates_rps[i])
            grid = problem.tables.percent[kind]
            left = int(np.count_nonzero(grid <= percent[k] + 1e-9))
            if least is None or left < least or problem.model_memory_mb[i, kind] > memory[k]:
                continue
            gpu[i], units[i] = k, min(max(knee(problem, i, kind), least), left)
            percent[k] -= grid[units[i] - 1]
            memory[k] -= problem.model_memory_mb[i, kind]
            break
    return gpu, units


def gpulet(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Gpulet-like: the least share that serves the rate's P99, in the smallest free piece that holds it.

    Models by rate times SLO, ascending; a piece is taken whole, and only whole GPUs are cut. Its code takes
    min(knee, that) and serves the rest elsewhere; here a model has one GPU (1e).
    """
    n, gpus = problem.model.size, problem.type_of.size
    gpu, units = np.full(n, REJECTED), np.ones(n, dtype=np.int64)
    memory = problem.memory_mb.copy()
    free: list[list[float]] = [[100.0] for _ in range(gpus)]
    for i in np.argsort(problem.rates_rps * problem.slos_ms, kind="stable"):
        best: tuple[float, int, float] | None = None
        rate_rps = float(poisson.ppf(0.99, problem.rates_rps[i])) + 1.0
        for k in range(gpus):
            kind = int(problem.type_of[k])
            least = enough(problem, i, kind, rate_rps)
            if least is None or problem.model_memory_mb[i, kind] > memory[k]:
                continue
            wanted = float(problem.tables.percent[kind, least - 1])
            fitting = [space for space in free[k] if wanted <= space + 1e-9]
            if fitting and (best is None or min(fitting) < best[0]):
                best = (min(fitting), k, wanted)
        if best is None:
            continue
        space, k, wanted = best
        size = min(p for p in SIZES if wanted <= p + 1e-9) if space == 100.0 else space
        kind = int(problem.type_of[k])
        gpu[i] = k
        units[i] = int(np.flatnonzero(problem.tables.percent[kind] <= size + 1e-9)[-1]) + 1
        memory[k] -= problem.model_memory_mb[i, kind]
        free[k].remove(space)
        if space == 100.0 and size < 100.0:
            free[k].append(100.0 - size)
    return gpu, units


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


def problem_of(rates: Mapping[str, float], known: Tables) -> Problem:
    return instances.paper(known, list(rates), list(rates.values()), GPUS)


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


def inss(rates: Mapping[str, float]) -> Decided:
    """Place, polish, enumerate; the first of a batch waits as long as its own batch's time allows."""
    problem = problem_of(rates, tables())
    found = place(problem, CLOCK, policy=built_in())
    outcome = goodput(problem, found.gpu, found.units)
    execution = np.where(
        found.batch > 0, 1000.0 * outcome.batch / np.maximum(outcome.capacity_rps, 1e-9), 0.0
    )
    wait = dict(zip(rates, (problem.slos_ms - execution).tolist(), strict=True))
    return Decided(gpus_of(rates, found.gpu, found.units, found.batch), wait)


def baseline(rates: Mapping[str, float], put: Callable[[Problem], tuple[np.ndarray, np.ndarray]]) -> Decided:
    """GSLICE-like and gpulet-like: half-SLO batches and waits."""
    problem = problem_of(rates, tables().without_interference())
    gpu, units = put(problem)
    return Decided(gpus_of(rates, gpu, units, half_slo_batches(problem, gpu, units)), half_slo(rates))


def igniter(rates: Mapping[str, float]) -> Decided:
    """IGniter fills one GPU type; what is left over goes to the other."""
    left, own = workloads(rates), dict(devices("igniter"))
    gpus: list[PlannedGpu] = []
    while left and own:
        plan = strategy("igniter").plan(PlanRequest(left, own, Rule.HALF_SLO, CLOCK))
        gpus += plan.gpus
        lost = {i.workload for i in plan.infeasible}
        left = tuple(w for w in left if w.name in lost)
        used = {g.type for g in gpus}
        own = {name: device for name, device in own.items() if name not in used}
    return Decided(tuple(gpus), half_slo(rates))


Method = Callable[[Mapping[str, float]], Decided]
METHODS: Mapping[str, Method] = {
    "inss": inss,
    "gpulet-like": lambda rates: baseline(rates, gpulet),
    "GSLICE-like": lambda rates: baseline(rates, gslice),
    "iGniter": igniter,
}


def capacity_rps(gpus: tuple[PlannedGpu, ...]) -> float:
    """Sum of b / t by the truth, all neighbours busy: what the paper calls throughput."""
    total = 0.0
    for kind, device in devices("ours").items():
        here = [g for g in gpus if g.type == kind]
        if here:
            slots = Layout.of(here, device).all_busy
            _, cycle_ms = ask(device.latency, slots, None)
            total += float((1000.0 * slots.batch / cycle_ms)[slots.mask].sum())
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


def late_percent(steps: Sequence[tuple[Mapping[str, float], Decided]]) -> float:
    """Of the requests of placed models, what is late at even arrivals where batches wait as in the paper."""
    truth = {kind: device.latency for kind, device in devices("ours").items()}
    sent = good = 0.0
    for at, (rates, decided) in enumerate(steps):
        plan = Plan("bench", Rule.HALF_SLO, "ours", waiting(decided))
        demands = {name: Demand(rate, Gaps.CONSTANT) for name, rate in rates.items()}
        seen = simulate(plan, truth, Settings(seconds=STRIDE_S, seed=at, demands=demands))
        sent += sum(w.requests for w in seen.workloads)
        good += sum(w.goodput_rps for w in seen.workloads) * STRIDE_S
    return 100.0 * (1.0 - good / sent)


def figures(seeds: int) -> dict[str, float]:
    """Of each method the capacity by the truth, and what is late of InSS's own, over so many walks.

    Capacity is b / t, of the batch that the wait gathers.
    """
    steps = [rates for seed in range(seeds) for rates in walk(seed)]
    decided = {name: [(rates, method(rates)) for rates in steps] for name, method in METHODS.items()}
    found = {
        f"{name}: capacity": float(np.mean([capacity_rps(true_batches(one)) for _, one in own]))
        for name, own in decided.items()
    }
    return found | {"inss: late": late_percent(decided["inss"])}


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
    problems = [instances.sample(rng, tables(), models, gpus) for _ in range(count)]
    search(problems[0], CpuClock(), rounds=1)  # compiles
    stacked, parts = Problem.stack(problems), []
    for decided in (lambda p: decide(p, built_in()), by_search):
        found = [decided(p) for p in problems]
        assert all(fits(p, *one) for p, one in zip(problems, found, strict=True))
        gpu, units = (np.stack([one[i] for one in found]) for i in (0, 1))
        parts.append(goodput(stacked, gpu, units).goodput_rps.sum(axis=1) / stacked.rates_rps.sum(axis=1))
    return float((parts[0] / parts[1]).mean())

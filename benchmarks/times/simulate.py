"""The simulator against theory, its speed, and the real Triton beside it.

python -m benchmarks.times.simulate              a minute: theory, speed
python -m benchmarks.times.simulate --triton     also the real Triton: 4 configurations, 2 loads
python -m benchmarks.times.simulate --triton --full    all 8 configurations, 3 loads, 3 repeats
python -m benchmarks.times.simulate --pool       also three real Tritons behind the real gateway
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time

import numpy as np
from known_service import KnownService

from benchmarks.harness import Figures
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.latency.queueing.batch_queue import solve
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions, Noise

PARTS, PART = 20, 1_000_000
AFFINE = tuple(2.0 + 0.5 * k for k in range(1, 33))
CONVEX = tuple(1.0 + k**1.5 / 10 for k in range(1, 33))
TRUTH = {
    "t4": KnownService({"affine": AFFINE, "convex": CONVEX, "five": (5.0,)}, {("affine", "affine"): 0.15})
}


def one_model(gpus: list[list[tuple[str, int, float]]]) -> Plan:
    """GPUs of partitions of one (model, batch, rate) each."""
    planned_gpus = []
    for g, parts in enumerate(gpus):
        partitions = []
        for p, (model, batch, rate) in enumerate(parts):
            name = f"w{g}-{p}"
            placement = Placement(name, name, model, rate, 50.0)
            partitions.append(Partition(f"p{g}-{p}", 25.0, (ServedModel(model, batch),), (placement,)))
        planned_gpus.append(PlannedGpu(f"t4-{g}", "t4", tuple(partitions)))
    return Plan("by-hand", Rule.P99, "known", tuple(planned_gpus))


def md1_p99(load: float) -> float:
    """P99 of a request in M/D/1 with service 1: Erlang's series for the wait."""
    low, high = 0.0, 60.0
    for _ in range(60):
        t = (low + high) / 2
        terms = (
            (load * (k - t)) ** k * math.exp(-load * (k - t)) / math.factorial(k) for k in range(int(t) + 1)
        )
        low, high = (t, high) if (1 - load) * sum(terms) < 0.99 else (low, t)
    return 1.0 + low


def theory(figures: Figures) -> None:
    """Mean and P99 within 2 % plus the simulation's own interval."""
    cases = []
    for load in (0.5, 0.7, 0.9):
        mean = 5.0 * (1 + load / (2 * (1 - load)))
        cases.append((f"M/D/1 {load:g}", "five", 1, 200.0 * load, 0.0, mean, 5.0 * md1_p99(load)))
        rate = (1 - load) / 5.0
        cases.append((f"M/M/1 {load:g}", "five", 1, 200.0 * load, 1.0, 1 / rate, math.log(100) / rate))
    for model, service in (("affine", AFFINE), ("convex", CONVEX)):
        for batch, load in ((4, 0.5), (8, 0.8), (32, 0.7)):
            rate = 1000 * load * batch / service[batch - 1]
            law = solve(rate, service, batch)
            name = f"{model} b={batch} {load:g}"
            cases.append((name, model, batch, rate, 0.0, float(law.mean_ms[0]), float(law.p99_ms[0])))
    for name, model, batch, rate, jitter, mean, p99 in cases:
        plan = one_model([[(model, batch, rate)]])
        conditions = Conditions(noise={("t4", model): Noise(jitter=jitter)})
        runs = [
            simulate(plan, TRUTH, Settings(seconds=PART / rate, seed=seed), conditions).workloads[0]
            for seed in range(PARTS)
        ]
        seen = np.array([(w.mean_ms, w.p99_ms) for w in runs])
        interval = 196 * seen.std(axis=0, ddof=1) / math.sqrt(PARTS) / seen.mean(axis=0)
        error = 100 * (seen.mean(axis=0) / (mean, p99) - 1)
        for what, off, own in zip(("mean", "P99"), error, interval, strict=True):
            figures.add(f"{name}, {what}: off theory", abs(off), "%", at_most=2.0 + own)


def timed(plan: Plan, seconds: float) -> tuple[int, float]:
    """Requests, and CPU seconds of the second run."""
    settings = Settings(seconds=seconds)
    simulate(plan, TRUTH, settings)
    start = time.process_time()
    result = simulate(plan, TRUTH, settings)
    return sum(w.requests for w in result.workloads), time.process_time() - start


def speed(figures: Figures) -> None:
    """Requests per CPU second, and memory."""
    for batch, load, target in ((8, 0.8, 10), (1, 0.8, None), (32, 0.8, None)):
        rate = 1000 * load * batch / AFFINE[batch - 1]
        count, spent = timed(one_model([[("affine", batch, rate)]]), 5e6 / rate)
        figures.add(f"alone, batch {batch}, load {load:g}", count / spent / 1e6, "M/s", at_least=target)
    for batch, load, target in ((8, 0.6, 10), (1, 0.5, None)):
        rate = 1000 * load * batch / AFFINE[batch - 1] / 1.45
        count, spent = timed(one_model([[("affine", batch, rate)] * 4]), 1e6 / rate)
        figures.add(
            f"four coupled, batch {batch}, load {load:g}", count / spent / 1e6, "M/s", at_least=target
        )
    fleet = one_model([[("affine", 8, 125.0)] * 4 for _ in range(40)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, spent = timed(fleet, 600.0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    figures.add("40 GPUs, 20,000 req/s, 10 minutes", spent, "CPU s", at_most=5.0)
    figures.add("its memory", grown, "MB", at_most=100.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--triton", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--pool", action="store_true")
    told = parser.parse_args()
    figures = Figures()
    theory(figures)
    speed(figures)
    if told.triton:
        from sleeping_triton import table

        figures.add("the real Triton within the aims", table(full=told.full), at_least=1)
    if told.pool:
        from benchmarks.support import sleeping_pool

        figures.add("a real pool within the aims", sleeping_pool.table(), at_least=1)
        sleeping_pool.applied_table()
    sys.exit(figures.end())

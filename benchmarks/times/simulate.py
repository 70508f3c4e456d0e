"""The simulator against theory, its speed, iGniter's plans in it, and the real Triton beside it.

python -m benchmarks.times.simulate              a minute: theory, speed, iGniter
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
from planning import planned, published, v100

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.domain.workload import Arrivals
from controlplane.latency.queueing.batch_queue import solve
from controlplane.simulate.arrivals import Demand
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions, Noise
from controlplane.simulate.result import RELATIVE_ERROR

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


def theory() -> bool:
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
    held = True
    print("queue                mean ms   theory   error    P99 ms   theory   error   interval of P99")
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
        good = np.all(np.abs(error) <= 2.0 + interval)
        held &= bool(good)
        print(
            f"{name:18s} {seen[:, 0].mean():9.3f} {mean:8.3f} {error[0]:6.2f} % {seen[:, 1].mean():9.3f}"
            f" {p99:8.3f} {error[1]:6.2f} %  {interval[1]:5.2f} %{'' if good else '  MISSED'}"
        )
    return held


def timed(plan: Plan, seconds: float) -> tuple[int, float]:
    """Requests, and CPU seconds of the second run."""
    settings = Settings(seconds=seconds)
    simulate(plan, TRUTH, settings)
    start = time.process_time()
    result = simulate(plan, TRUTH, settings)
    return sum(w.requests for w in result.workloads), time.process_time() - start


def speed() -> bool:
    """Requests per CPU second, and memory."""
    held = True
    print("\nspeed, one core                                requests   CPU s   M req/s   target")
    for batch, load, target in ((8, 0.8, 10), (1, 0.8, None), (32, 0.8, None)):
        rate = 1000 * load * batch / AFFINE[batch - 1]
        count, spent = timed(one_model([[("affine", batch, rate)]]), 5e6 / rate)
        print(line(f"alone, batch {batch}, load {load:g}", count, spent, target))
        held &= target is None or count / spent / 1e6 >= target
    for batch, load, target in ((8, 0.6, 10), (1, 0.5, None)):
        rate = 1000 * load * batch / AFFINE[batch - 1] / 1.45
        count, spent = timed(one_model([[("affine", batch, rate)] * 4]), 1e6 / rate)
        print(line(f"four coupled, batch {batch}, load {load:g}", count, spent, target))
        held &= target is None or count / spent / 1e6 >= target
    fleet = one_model([[("affine", 8, 125.0)] * 4 for _ in range(40)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count, spent = timed(fleet, 600.0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        line("40 GPUs, 20,000 req/s, 10 minutes", count, spent, None)
        + f"   target < 5 s, grew {grown:.0f} MB"
    )
    count, spent = timed(fleet, 60.0)
    print(f"quantiles are within {100 * RELATIVE_ERROR:.2f} % of themselves (bins of that width)")
    return held and spent < 5


def line(name: str, count: int, spent: float, target: int | None) -> str:
    wanted = f"{target:6d}" if target else "     –"
    return f"{name:42s} {count:12,d} {spent:7.2f} {count / spent / 1e6:9.1f}   {wanted}"


def igniter() -> bool:
    """The plans of iGniter's Table 3, simulated with the model they were made with."""
    breaks = {}
    for strategy in ("igniter", "ffd+", "ffd++"):
        plan = planned(strategy, published(12))
        for arrivals in Arrivals:
            demands = {p.name: Demand.of(arrivals, p.rate_rps) for _, _, p in plan.placements()}
            settings = Settings(seconds=200, demands=demands)
            result = simulate(plan, {"v100": v100().latency}, settings)
            breaks[strategy, arrivals] = {w.name for w in result.workloads if not w.holds}
            size = f"{len(plan.gpus)} GPUs"
            print(f"\n{strategy}, {arrivals} arrivals, {size}: {result.breaks} of 12 break their P99")
            rows = sorted(result.workloads, key=lambda w: int(w.name[1:]))
            print("  P99 ms  " + " ".join(f"{w.p99_ms:7.1f}" for w in rows))
            print("  SLO ms  " + " ".join(f"{w.slo_ms:7.1f}" for w in rows))
            print("  load    " + " ".join(f"{w.utilisation:7.3f}" for w in rows))
    overloaded = {"W2", "W4", "W7", "W8", "W9", "W12"}
    return (
        not breaks["igniter", Arrivals.CONSTANT]
        and len(breaks["ffd+", Arrivals.CONSTANT] ^ overloaded) <= 1
        and len(breaks["igniter", Arrivals.POISSON]) > 6
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--triton", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--pool", action="store_true")
    told = parser.parse_args()
    held = [theory(), speed(), igniter()]
    if told.triton:
        from sleeping_triton import table

        held.append(table(full=told.full))
    if told.pool:
        import sleeping_pool

        held.append(sleeping_pool.table())
        sleeping_pool.applied_table()
    sys.exit(0 if all(held) else 1)

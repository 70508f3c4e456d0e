"""The speed of the simulator, and the real Triton beside it.

python -m benchmarks.times.simulate              a minute: speed
python -m benchmarks.times.simulate --triton     also the real Triton: 4 configurations, 2 loads
python -m benchmarks.times.simulate --triton --full    all 8 configurations, 3 loads, 3 repeats
python -m benchmarks.times.simulate --pool       also three real Tritons behind the real gateway
"""

import argparse
import resource
import sys
import time

from known_service import KnownService

from benchmarks.harness import Figures
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.simulate.engine import Settings, simulate

AFFINE = tuple(2.0 + 0.5 * k for k in range(1, 33))
TRUTH = {"t4": KnownService({"affine": AFFINE}, {("affine", "affine"): 0.15})}


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
    speed(figures)
    if told.triton:
        from sleeping_triton import table

        figures.add("the real Triton within the aims", table(full=told.full), at_least=1)
    if told.pool:
        from benchmarks.support import sleeping_pool

        figures.add("a real pool within the aims", sleeping_pool.table(), at_least=1)
    sys.exit(figures.end())

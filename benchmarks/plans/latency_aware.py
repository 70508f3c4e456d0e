"""The latency-aware scheduler (KAIST) beside its paper: `python -m benchmarks.plans.latency_aware`.

Figs 5 to 7: the paper's three tasks on one GPU, against shares of 100 % for all, with and without a bound on
the sum of the shares. The paper measured an RTX 4080; here the V100 catalogue answers by the scheduler's own
latency model, so the shape counts, not the value. Exit code 1 where Alg 1 misses an SLO.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import planning

from benchmarks.harness import Figures
from controlplane.latency.protocol import Slots
from controlplane.papers.latency_aware.latency import LatencyAware, filling_ms
from controlplane.papers.latency_aware.responses import LARGEST_LOAD, Tables, Task, settle

DEVICE = planning.v100("latency-aware")
MODEL = DEVICE.latency
assert isinstance(MODEL, LatencyAware)
TABLES = Tables.of(MODEL, DEVICE.pool.device.grid.percents(), 32)
THREE = (("resnet50", 200.0, 50.0), ("vgg19", 30.0, 200.0), ("alexnet", 600.0, 40.0))
"""Rates and SLOs of the paper (ResNet, MobileNet-v3, BERT); models that the V100 catalogue has."""
PAPER_GAIN = 15.9

Chosen = tuple[int, float]
"""A batch and a share in percent."""


def task(model: str, rate_rps: float, slo_ms: float) -> Task:
    assert isinstance(MODEL, LatencyAware)
    return Task(MODEL.models.index(model), rate_rps, slo_ms)


def together(tasks: Sequence[Task], chosen: Sequence[Chosen]) -> tuple[np.ndarray, np.ndarray, float]:
    """Time of a batch beside the others, time T of a request, in ms, and the GPU's power in W."""
    models, (batches, percents) = [t.model for t in tasks], zip(*chosen, strict=True)
    answer = DEVICE.latency.estimate(Slots.of([models], [list(batches)], [list(percents)]), 0.5)
    taken, batch = answer.execution_ms[0], np.array(batches, dtype=np.float64)
    whole = filling_ms(np.array([t.rate_rps for t in tasks]), batch, taken) + taken
    return taken, whole, float(answer.power_w[0])


def proposed(tasks: Sequence[Task], tables: Tables) -> list[Chosen]:
    """Batches and shares of Alg 1 on one GPU."""
    found = settle(tasks, tables)
    return [(c.batch + 1, float(TABLES.percent[0, c.share])) for c in found]


def fastest(tasks: Sequence[Task], percents: Sequence[float]) -> list[Chosen]:
    """In turn each task's batch and share of these with the highest b / T that keep SLO and load."""
    chosen = [(1, percents[-1])] * len(tasks)
    for _ in range(6):
        before = list(chosen)
        for i, one in enumerate(tasks):
            options = []
            for own in itertools.product(range(1, 33), percents):
                taken, whole, _ = together(tasks, [*chosen[:i], own, *chosen[i + 1 :]])
                load = one.rate_rps / 1000.0 * taken[i] / own[0]
                options.append((whole[i] <= one.slo_ms and load <= LARGEST_LOAD, own[0] / whole[i], own))
            chosen[i] = max(options)[2]
        if chosen == before:
            break
    return chosen


def three(figures: Figures) -> None:
    """Figs 5 to 7: completion time T, throughput b / T (Eq 8) and power of the paper's three tasks.

    `no sum`: shares may add up to more than 100 %, as in the paper; `b / T`: and each task takes what has the
    most throughput, not the most per share (Eq 11).
    """
    tasks = [task(*row) for row in THREE]
    free = replace(TABLES, most_percent=100.0 * len(tasks))
    kinds = {
        "p = 1": fastest(tasks, [100.0]),
        "proposed": proposed(tasks, TABLES),
        "no sum": proposed(tasks, free),
        "b / T": fastest(tasks, np.arange(10.0, 101.0, 10.0).tolist()),
    }
    whole_rates, whole_power = 0.0, 0.0
    for name, taken in kinds.items():
        _, whole, power = together(tasks, taken)
        rates = [1000.0 * b / t for (b, _), t in zip(taken, whole, strict=True)]
        whole_rates, whole_power = whole_rates or sum(rates), whole_power or power
        gain = 100.0 * (sum(rates) / whole_rates - 1.0)
        paper = PAPER_GAIN if name == "proposed" else None
        figures.add(f"Fig 6, {name}: throughput more than p = 1", gain, "%", reference=paper)
        figures.add(f"Fig 7, {name}: power over that of p = 1", power / whole_power, at_most=1.0)
        for (model, _, slo), (b, p), t in zip(THREE, taken, whole, strict=True):
            figures.add(f"Fig 5, {name}, {model} b{b} p{p:g}: time", t, "ms", at_most=slo)


def main() -> int:
    figures = Figures()
    three(figures)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

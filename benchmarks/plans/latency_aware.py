"""The latency-aware scheduler (KAIST) beside its paper.

    python -m benchmarks.plans.latency_aware [SECTION ...]

Sections: fit (Fig 4: processing time against a line), three (Figs 5 to 7: the paper's three tasks on one GPU,
against shares of 100 % for all, with and without a bound on the sum of the shares) and scaling (Table I: one
to four tasks of one model); all unless named. The paper measured an RTX 4080; here the V100 catalogue answers
by the scheduler's own latency model, so the shape counts, not the value. Exit code 1 where Eq 4 has a larger
relative error than a line, Alg 1 misses an SLO, or throughput does not grow with a second task.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import planning

from benchmarks.harness import Figures, chosen, show, table
from controlplane.files import catalogue
from controlplane.latency.fitting.points import Points
from controlplane.latency.protocol import Slots
from controlplane.papers.latency_aware.latency import Exponential, LatencyAware, filling_ms
from controlplane.papers.latency_aware.responses import LARGEST_LOAD, Tables, Task, settle

DEVICE = planning.v100("latency-aware")
MODEL = DEVICE.latency
assert isinstance(MODEL, LatencyAware)
TABLES = Tables.of(MODEL, DEVICE.pool.device.grid.percents(), 32)
THREE = (("resnet50", 200.0, 50.0), ("vgg19", 30.0, 200.0), ("alexnet", 600.0, 40.0))
"""Rates and SLOs of the paper (ResNet, MobileNet-v3, BERT); models that the V100 catalogue has."""
PAPER_GAIN = 15.9
PAPER_TABLE = {1: 4326.22, 2: 5361.26, 3: 5278.5, 4: 5621.81}
"""Table I, proposed: requests per second of one to four tasks on one GPU."""
FEWEST_BATCHES = 10

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
    return [(c.batch + 1, float(TABLES.percent[0, c.share])) for c in found.choices]


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


def fit(figures: Figures) -> None:
    """Fig 4: mean squared error of Eq 4 and of a line through the times at the largest share measured."""
    columns = ("model", ">batches", ">line, ms2", ">Eq 4, ms2", ">ratio (paper, ResNet: 0.52)")
    made = table("Fig 4: mean squared error", *columns)
    for name, profile in catalogue.profiles("v100").items():
        points = Points.of(*zip(*((p.percent, p.batch, p.execution_ms) for p in profile.points), strict=True))
        shares, counts = np.unique(points.percent, return_counts=True)
        whole = points.percent == shares[counts > FEWEST_BATCHES].max()
        percent, batch, time_ms = (a[whole] for a in (points.percent, points.batch, points.time_ms))
        line = np.polyval(np.polyfit(batch, time_ms, 1), batch)
        curve = Exponential.fit(Points(percent, batch, time_ms)).at(percent, batch)
        squared = [float(np.mean((fitted - time_ms) ** 2)) for fitted in (line, curve)]
        percents = [100.0 * float(np.mean(np.abs(fitted / time_ms - 1.0))) for fitted in (line, curve)]
        made.add_row(name, *(f"{cell:.3g}" for cell in (len(batch), *squared, squared[1] / squared[0])))
        figures.add(f"Fig 4, {name}: mean error of Eq 4", percents[1], "%", at_most=percents[0])
    show(made)


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


def scaling(figures: Figures) -> None:
    """Table I: tasks of one model on one GPU at saturation; throughput 1000 b / t of each, summed."""
    first = 0.0
    for count, paper in PAPER_TABLE.items():
        tasks = [task("resnet50", 100.0, 200.0)] * count
        share = float(max(p for p in TABLES.percent[0] if p <= 100.0 / count + 1e-9))
        taken, _, _ = together(tasks, [(32, share)] * count)
        rate = float((32_000.0 / taken).sum())
        first = first or rate
        least, theirs = (None if count == 1 else 1.1), paper / PAPER_TABLE[1]
        name = f"Table I, {count} tasks: throughput of one's"
        figures.add(name, rate / first, at_least=least, reference=theirs)


def main(named: list[str]) -> int:
    sections = {"fit": fit, "three": three, "scaling": scaling}
    figures = Figures()
    for name in chosen(named, sections):
        sections[name](figures)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

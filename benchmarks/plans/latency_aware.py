"""The latency-aware scheduler (KAIST) beside its paper.

    python -m benchmarks.plans.latency_aware [SECTION ...]

Sections: fit (Fig 4: processing time against a line), three (Figs 5 to 7: the paper's three tasks on one GPU,
against shares of 100 % for all, with and without a bound on the sum of the shares), scaling (Table I: one to
four tasks of one model), placements (25 random instances against every placement); all unless named. The
paper measured an RTX 4080; here the V100 catalogue answers by the scheduler's own latency model, so the shape
counts, not the value. Exit code 1 where fewer than 24 of 25 placements are the best.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import planning

from controlplane.files import catalogue
from controlplane.latency.fitting.points import Points
from controlplane.latency.fitting.published import Published
from controlplane.latency.protocol import Slots
from controlplane.papers.latency_aware.latency import Exponential, filling_ms
from controlplane.papers.latency_aware.responses import LARGEST_LOAD, Tables, Task, demand, settle
from controlplane.papers.latency_aware.strategy import Search

DEVICE = planning.v100("latency-aware")
MODEL = DEVICE.latency
assert isinstance(MODEL, Published)
TABLES = Tables.of(MODEL, DEVICE.pool.device.grid.percents(), 32)
THREE = (("resnet50", 200.0, 50.0), ("vgg19", 30.0, 200.0), ("alexnet", 600.0, 40.0))
"""Rates and SLOs of the paper (ResNet, MobileNet-v3, BERT); models that the V100 catalogue has."""
PAPER_GAIN = 15.9
PAPER_TABLE = {1: (238.31, 4326.22), 2: (277.15, 5361.26), 3: (273.48, 5278.5), 4: (290.26, 5621.81)}
"""Table I, proposed: watts and requests per second of one to four tasks on one GPU."""
FEWEST_BATCHES = 10
INSTANCES = 25
ENOUGH = 24

Chosen = tuple[int, float]
"""A batch and a share in percent."""


def task(model: str, rate_rps: float, slo_ms: float) -> Task:
    assert isinstance(MODEL, Published)
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


def fit() -> bool:
    """Fig 4: mean squared error of Eq 4 and of a line through the times at the largest share measured."""
    heads = ("batches", "line ms2", "Eq 4 ms2", "ratio", "line %", "Eq 4 %")
    print(f"{'model':<9}" + "".join(f"{head:>10}" for head in heads) + "   (paper, ResNet: 6.57, 3.39, 0.52)")
    for name, profile in catalogue.profiles("v100").items():
        points = Points.of(*zip(*((p.percent, p.batch, p.execution_ms) for p in profile.points), strict=True))
        shares, counts = np.unique(points.percent, return_counts=True)
        whole = points.percent == shares[counts > FEWEST_BATCHES].max()
        percent, batch, time_ms = (a[whole] for a in (points.percent, points.batch, points.time_ms))
        line = np.polyval(np.polyfit(batch, time_ms, 1), batch)
        curve = Exponential.fit(Points(percent, batch, time_ms)).at(percent, batch)
        squared = [float(np.mean((fitted - time_ms) ** 2)) for fitted in (line, curve)]
        percents = [100.0 * float(np.mean(np.abs(fitted / time_ms - 1.0))) for fitted in (line, curve)]
        cells = (len(batch), *squared, squared[1] / squared[0], *percents)
        print(f"{name:<9}" + "".join(f"{cell:>10.3g}" for cell in cells))
    return True


def three() -> bool:
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
    for name, chosen in kinds.items():
        _, whole, power = together(tasks, chosen)
        rates = [1000.0 * b / t for (b, _), t in zip(chosen, whole, strict=True)]
        whole_rates, whole_power = whole_rates or sum(rates), whole_power or power
        gain = 100.0 * (sum(rates) / whole_rates - 1.0)
        print(
            f"{name:<9} {sum(rates):>6.0f}/s {gain:+.1f} % (paper, proposed {PAPER_GAIN:+.1f} %) "
            f"{power:>6.1f} W {power - whole_power:+.1f} W"
        )
        for (model, _, slo), (b, p), t, r in zip(THREE, chosen, whole, rates, strict=True):
            print(f"    {model:<9} b{b} p{p:g}: T {t:.1f} of {slo:g} ms, {r:.0f}/s")
    return True


def scaling() -> bool:
    """Table I: tasks of one model on one GPU at saturation; throughput 1000 b / t of each, summed."""
    heads = (("tasks", 5), ("p = 1 W", 9), ("/s", 8), ("shares W", 10), ("/s", 8), ("of one", 8))
    print("".join(f"{h:>{w}}" for h, w in (*heads, ("paper W", 9), ("/s", 8), ("of one", 8))))
    first = 0.0
    for count, (watts, rate) in PAPER_TABLE.items():
        tasks = [task("resnet50", 100.0, 200.0)] * count
        share = float(max(p for p in TABLES.percent[0] if p <= 100.0 / count + 1e-9))
        base, own = (together(tasks, [(32, p)] * count) for p in (100.0, share))
        rates = [float((32_000.0 / taken).sum()) for taken, _, _ in (base, own)]
        first = first or rates[1]
        ratios = rates[1] / first, rate / PAPER_TABLE[1][1]
        print(
            f"{count:>5}{base[2]:>9.0f}{rates[0]:>8.0f}{own[2]:>10.0f}{rates[1]:>8.0f}{ratios[0]:>8.2f}"
            f"{watts:>9.0f}{rate:>8.0f}{ratios[1]:>8.2f}"
        )
    return True


def placements() -> bool:
    """Random tasks on two or three GPUs: moves and swaps against every placement."""
    chance = np.random.default_rng(11)
    best, taken_ms = 0, []
    for _ in range(INSTANCES):
        gpus = int(chance.integers(2, 4))
        tasks = []
        for _ in range(int(chance.integers(4, 8 if gpus == 2 else 7))):
            one = task(str(chance.choice(planning.MODELS)), 100.0, float(chance.integers(30, 200)))
            rate = float(chance.uniform(0.05, 0.3)) * 100.0 / demand(one, TABLES) / 1000.0
            tasks.append(Task(one.model, rate, one.slo_ms))
        search = Search(tasks, TABLES, gpus)
        before = time.process_time()
        placing = search.best()
        taken_ms.append((time.process_time() - before) * 1000.0)
        assert placing is not None
        least = min(search.score(p) for p in itertools.product(range(gpus), repeat=len(tasks)))
        best += search.score(placing) == least
    cpu_ms = float(np.median(taken_ms))
    print(
        f"best of all placements: {best} of {INSTANCES} (aim {ENOUGH}); {cpu_ms:.0f} ms of CPU (reference 72)"
    )
    return best >= ENOUGH


def main(named: list[str]) -> int:
    sections = {"fit": fit, "three": three, "scaling": scaling, "placements": placements}
    return 0 if all([sections[name]() for name in named or sections]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

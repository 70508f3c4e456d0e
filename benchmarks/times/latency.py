"""Latency models against measurements: `python -m benchmarks.times.latency`.

Solo on eleven points, pairs with batch sizes left out, the InSS paper's tables, and the time of one answer.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import measuring_design as design
import numpy as np
from rich.table import Table

from benchmarks.harness import Figures, show, table
from controlplane.files import catalogue
from controlplane.latency import default as ours
from controlplane.latency import evaluate
from controlplane.latency.fitting.points import Points
from controlplane.latency.fitting.published import execution_points
from controlplane.latency.fitting.surface import Surface
from controlplane.latency.protocol import Slots

SHARES = (20.0, 40.0, 50.0, 60.0, 80.0)


def solo(figures: Figures) -> Table:
    """The rule chosen on three models, tested on the fourth's points it did not measure."""
    points = {m: execution_points(p) for m, p in catalogue.profiles("v100").items()}
    known: dict[tuple[design.Rule, str], tuple[float, float]] = {}

    def errors(rule: design.Rule, model: str) -> tuple[float, float]:
        if (rule, model) not in known:
            known[rule, model] = eleven_point_error(points[model], rule)
        return known[rule, model]

    made = table(
        "Solo, V100, eleven points a model: rule chosen on three models, tested on the fourth",
        "model",
        ">rule",
        ">mean error %",
        ">largest %",
    )
    for model in points:
        rule = design.choose(lambda r, m: errors(r, m)[0], [m for m in points if m != model])
        mean, largest = errors(rule, model)
        name = f"{rule.pattern} {rule.low}/{rule.middle}/{rule.high}"
        made.add_row(model, name, f"{mean:.2f}", f"{largest:.1f}")
        figures.add(f"solo, {model}: mean error", mean, "%", at_most=2.0)
    best = design.choose(lambda r, m: errors(r, m)[0], list(points))
    made.caption = f"on all four: {best.pattern} {best.low}/{best.middle}/{best.high}"
    return made


def eleven_point_error(points: Points, rule: design.Rule) -> tuple[float, float]:
    """(mean, largest) relative error in percent of the points the rule leaves out."""
    wanted = set(rule.points(SHARES, 32))
    chosen = np.array(
        [(p, int(b)) in wanted for p, b in zip(points.percent.tolist(), points.batch.tolist(), strict=True)]
    )
    kept, out = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    fitted = points.take(kept)
    surface = Surface.fit(fitted, 32)
    columns = np.searchsorted(surface.percent, points.percent[out])
    # 10 and 100 % were measured at batch 1 only; both are knots of every surface.
    predicted = surface.time_ms[points.batch[out].astype(int) - 1, columns]
    error = np.abs(predicted / points.time_ms[out] - 1.0)
    return 100.0 * float(error.mean()), 100.0 * float(error.max())


def pairs(figures: Figures) -> Table:
    """All latency models, each batch size of the 750 pairs left out in turn."""
    device = catalogue.device("v100")
    assert device is not None
    document: dict[str, Any] = evaluate.leave_batch_sizes_out(device, catalogue.profiles("v100"))
    made = table(
        "Pairs, V100: batch sizes left out in turn",
        "latency model",
        ">latencies",
        ">mean error %",
        ">p95 %",
        ">largest %",
        ">bias %",
        ">covered %",
    )
    for name, report in document["latency_models"].items():
        f = report["overall"]
        made.add_row(
            name,
            str(f["n"]),
            f"{f['mape_percent']:.2f}",
            f"{f['p95_percent']:.2f}",
            f"{f['max_percent']:.1f}",
            f"{f['bias_percent']:+.2f}",
            f"{f['coverage_95_percent']:.1f}",
        )
    mine = document["latency_models"]["ours"]["overall"]
    figures.add("pairs: mean error", mine["mape_percent"], "%", at_most=2.5)
    figures.add("pairs: 95 % of the errors below", mine["p95_percent"], "%", at_most=6.5)
    figures.add("pairs: bias", abs(mine["bias_percent"]), "%", at_most=1.0)
    figures.add("pairs: below the upper 95 % bound", mine["coverage_95_percent"], "%", at_least=93.0)
    return made


def speed(figures: Figures) -> Table:
    """One call for 1,000 GPUs of four workloads."""
    device = catalogue.device("v100")
    assert device is not None
    model = ours.fit(catalogue.profiles("v100"), device)
    rng = np.random.default_rng(1)
    slots = Slots.of(
        rng.integers(0, 4, (1000, 4)), rng.integers(1, 33, (1000, 4)), rng.choice([10, 20, 30, 40], (1000, 4))
    )
    spent, waited = [], []
    for _ in range(30):
        cpu, wall = time.process_time(), time.perf_counter()
        model.estimate(slots)
        spent.append(1000.0 * (time.process_time() - cpu))
        waited.append(1000.0 * (time.perf_counter() - wall))
    median = float(np.median(spent))
    columns = ("latency model", ">ms of one core", ">ms waited")
    made = table("One call, 1,000 GPUs of four workloads: medians of 30", *columns)
    made.add_row("ours", f"{median:.1f}", f"{float(np.median(waited)):.1f}")
    figures.add("one call for 1,000 GPUs", median, "ms of a core", at_most=10.0)
    return made


def main() -> int:
    figures = Figures()
    for part in (solo, pairs, speed):
        show(part(figures), "")
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

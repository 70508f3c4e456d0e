"""Latency models against measurements: `python -m benchmarks.times.latency`.

Pairs with batch sizes left out, and the time of one answer.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.table import Table

from benchmarks.harness import Figures, show, table
from controlplane.files import catalogue
from controlplane.latency import default as ours
from controlplane.latency import evaluate
from controlplane.latency.protocol import Slots


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
    figures.add("pairs: mean error", mine["mape_percent"], "%", at_most=1.0)
    figures.add("pairs: 95 % of the errors below", mine["p95_percent"], "%", at_most=2.5)
    figures.add("pairs: bias", abs(mine["bias_percent"]), "%", at_most=0.5)
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
    for part in (pairs, speed):
        show(part(figures), "")
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

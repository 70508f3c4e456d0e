"""The default latency model on models that it was not designed with: `--data DIR`.

    python -m benchmarks.times.unseen --data DIR

DIR holds CSVs with the columns model, percent, batch and latency_ms (or ms): many shares and batches of many
models, each alone on a GPU. Each model is fitted on the points that `ctl profile` would measure and predicted
at all others. A fixed seed splits the models: what is designed is designed on the first half, and judged by
the second. Without data it ends with 2, as any wrong use does.
"""

import argparse
import csv
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.harness import Figures, csv_folder, show
from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.latency import evaluate
from controlplane.latency.evaluate import Tenant
from controlplane.latency.registry import DEFAULT, FITS
from controlplane.profiler.sweep import default_points
from controlplane.report.tables.observed_table import validation_table

GPU = Device("gpu", ShareKind.MPS_PERCENT, MPS_GRID)
SEED = 2026
Times = Mapping[tuple[float, int], float]
"""(percent, batch) -> ms."""


def read(directory: Path) -> dict[str, dict[tuple[float, int], float]]:
    """The times of each model in all CSVs of a directory."""
    found: dict[str, dict[tuple[float, int], float]] = {}
    for path in sorted(directory.glob("*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                at = float(row["percent"]), int(row["batch"])
                found.setdefault(row["model"], {})[at] = float(row.get("latency_ms") or row["ms"])
    return found


def profiles(times: Mapping[str, Times]) -> dict[str, Profile]:
    """What `ctl profile` would have measured of each model."""
    made = {}
    for model, known in times.items():
        largest = max(batch for _, batch in known)
        points = [(p.percent, p.batch) for p in default_points(GPU.grid, largest)]
        measured = tuple(Measurement(*at, known[at]) for at in points if at in known)
        made[model] = Profile(model, GPU.name, GPU.share_kind, Environment(), measured, max_batch=largest)
    return made


def judged(times: Mapping[str, Times], names: Sequence[str], fit: str) -> dict[str, Any]:
    """The report of `ctl validate --measured` on these models."""
    chosen = {name: times[name] for name in names}
    tenants = [Tenant(name, batch, p, ms) for name in names for (p, batch), ms in chosen[name].items()]
    found = evaluate.against_alone(GPU, profiles(chosen), tenants, [fit])
    report: dict[str, Any] = found["latency_models"][fit]  # type: ignore[index]
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=csv_folder, required=True, help="none is built in")
    parser.add_argument("--latency", default=DEFAULT, choices=sorted(FITS.names()))
    options = parser.parse_args()
    times = read(options.data)
    names = sorted(times)
    random.Random(SEED).shuffle(names)
    half = len(names) // 2
    figures = Figures()
    for title, chosen in {"design": names[:half], "judge": names[half:]}.items():
        report = judged(times, chosen, options.latency)
        overall = report["overall"]
        most, least = (5.0, 93.0) if title == "judge" else (None, None)
        mean, p95, covered = (overall[f"{k}_percent"] for k in ("mape", "p95", "coverage_95"))
        figures.add(f"{title}, {len(chosen)} models: mean error", mean, "%", at_most=most)
        figures.add(f"{title}: 95 % of the errors below", p95, "%")
        figures.add(f"{title}: below the upper 95 % bound", covered, "%", at_least=least)
    began_s = time.process_time()
    FITS[options.latency].load()(profiles(times), GPU)
    figures.add(
        "a fit, for each model", 1000.0 * (time.process_time() - began_s) / len(times), "ms of a core"
    )
    report = judged(times, sorted(times), options.latency)
    figures.add(f"all {len(times)}: mean error", report["overall"]["mape_percent"], "%")
    figures.add("all: below the upper 95 % bound", report["overall"]["coverage_95_percent"], "%")
    show(validation_table({"latency_models": {options.latency: report}}), "")
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

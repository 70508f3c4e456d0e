"""Comparisons and reports, and the time they take.

    python -m benchmarks.plans.report [SECTION ...]

Sections:
* many: 500 workloads, 5 strategies, 5 truths; aim: 60 s on two cores
* page: the report of 200 workloads; aims: 2 MB, 1 s
* scrape: the monitor's page of 1,000 endpoints; aim: 100 ms of CPU
* hour: an hour of four workloads with faults, with the guard and without

Exits 1 where an aim is missed.
"""

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import planning

from benchmarks.harness import Figures, chosen, show
from controlplane.domain.plan import Rule
from controlplane.domain.workload import ShadowPlace, ShadowPolicy, ShadowWish
from controlplane.monitor.metrics import Page
from controlplane.monitor.pages import write_own, write_routes
from controlplane.monitor.records import Losses, Record
from controlplane.monitor.state import Promise, Promises, Totals, Windows
from controlplane.planning import registry
from controlplane.report.tables.simulation_table import guard_table
from controlplane.runtime.jobs.compare import DEFAULT, Question, compare
from controlplane.runtime.jobs.compare import chosen as truths_of
from controlplane.runtime.jobs.plan import plan_page
from controlplane.runtime.jobs.simulate import Asked, with_guard
from controlplane.simulate.closed_loop.faults import parse

GPUS = 220
HOUR = (("resnet50", 40.0, 60.0), ("vgg19", 60.0, 40.0), ("ssd", 80.0, 30.0), ("alexnet", 20.0, 20.0))
"""Model, SLO in ms, requests/s."""
HOUR_S = 3600.0
FAULTS = (
    "slow:resnet50*2@600",
    "crash:ssd@1200",
    "slow:alexnet*1.5@1800",
    "crash:vgg19@2400",
    "lost:v100-0@3000",
)
MB = 2.0**20


def spec_of(count: int, directory: Path, gpus: int | None = None) -> Path:
    """The first `count` published workloads as a spec."""
    listed = planning.published(1000 if count > 200 else count)[:count]
    pool = {"type": "v100", "price_per_hour": 3.06} | ({} if gpus is None else {"count": gpus})
    workloads = [
        {"name": w.name, "model": w.model, "slo_ms": w.slo_ms, "rate_rps": w.rate_rps} for w in listed
    ]
    file = directory / f"{count}.yaml"
    file.write_text(json.dumps({"schema_version": 1, "gpus": [pool], "workloads": workloads}))
    return file


def many(directory: Path, figures: Figures) -> None:
    began = time.perf_counter()
    strategies = ("joint", "igniter", "inss", "ffd+", "ffd++")
    question = Question(spec_of(500, directory, GPUS), directory, seconds=10.0)
    found = compare(question, strategies, truths_of(DEFAULT))
    took_s = time.perf_counter() - began
    name = f"500 workloads, {len(found.strategies)} strategies, 5 truths"
    figures.add(name, took_s, "s", at_most=60.0)


def page(directory: Path, figures: Figures) -> None:
    request = planning.request(planning.published(200), rule=Rule.P99, latency="ours")
    strategy = registry.strategy("joint")
    plan = strategy.plan(request)
    began = time.perf_counter()
    text = plan_page(plan, directory)
    took_s = time.perf_counter() - began
    figures.add("report of 200 workloads", len(text.encode()) / MB, "MB", at_most=2.0)
    figures.add("its time", took_s, "s", at_most=1.0)


def scrape(directory: Path, figures: Figures) -> None:
    promises = Promises(
        {f"w{n}": Promise(0.01 + n / 1e4, 100.0) for n in range(1000)}, ("joint", "p99", "ours")
    )
    totals, windows = Totals(), Windows()
    for name in promises.by_endpoint:
        for n in range(20):
            sender = f"{'http' if n % 2 else 'grpc'}:1"
            ended = Record(sender, n, name, "s", 200, None, 100, 100, 1000.0 + n, 5.0 + n, False)
            totals.add(ended, f"fleet.{name}.active.r", promises.by_endpoint)
            windows.add(ended)
    routes = {name: [f"fleet.{name}.active.r"] for name in promises.by_endpoint}
    spent = []
    for _ in range(5):
        began = time.process_time()
        made = Page()
        write_own(made, totals, Losses(), windows.by_endpoint(1020.0, 60.0), promises)
        write_routes(made, routes)
        assert made.text()
        spent.append(1000.0 * (time.process_time() - began))
    figures.add("scrape of 1,000 endpoints", sorted(spent)[2], "ms of CPU", at_most=100.0)


def hour(directory: Path, figures: Figures) -> None:
    """One workload a partition, each with a hot shadow on another GPU."""
    elsewhere = ShadowWish(ShadowPolicy.HOT, ShadowPlace.OTHER_GPU)
    workloads = [replace(planning.workload(m, m, slo_ms, rps), shadow=elsewhere) for m, slo_ms, rps in HOUR]
    request = planning.request(workloads, rule=Rule.P99, latency="ours")
    plan = registry.strategy("joint").plan(request)
    asked = Asked(directory, None, (), seconds=HOUR_S, seed=1)
    found = with_guard(plan, asked, [parse(text, plan) for text in FAULTS])
    show("an hour with faults", guard_table(found))
    figures.add("an hour with faults: broken SLOs", found.breaks, at_most=0)


def main() -> int:
    sections = {"many": many, "page": page, "scrape": scrape, "hour": hour}
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory:
        for name in chosen(sys.argv[1:], sections):
            sections[name](Path(directory), figures)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

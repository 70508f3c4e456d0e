"""Late binding: Paella's figures in simulated time, and its order at the gateway with a real Triton.

.venv/bin/python -m benchmarks.late_binding paella      a minute: Figs 2, 12 and 13 in simulated time
.venv/bin/python -m benchmarks.late_binding order       2 and 30 ms on one Triton, in three orders
.venv/bin/python -m benchmarks.late_binding threshold   the same over --overtake-ms
.venv/bin/python -m benchmarks.late_binding overload    1.5 times the planned rate of one of four models
.venv/bin/python -m benchmarks.late_binding cost        rates and p50 with gates and without, in pairs
.venv/bin/python -m benchmarks.late_binding plans       GPUs for 50 models with late binding and without

`order` and `threshold` take --load, --batch, --rounds, --seconds; runs are interleaved, HTTP and gRPC mixed.
Exits 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import planning
from gateway_rig import perf_analyzer
from gpu_kernels import Job, Order, ShortestRemaining, Streams, late, naive, run
from mixed_models import Answers, Front, Mixed, due, gateway, plan_of, sent, triton
from rich.console import Console
from rich.table import Table

from controlplane.control.order import order_of
from controlplane.domain.order import LONGEST_MS
from controlplane.domain.plan import Plan, Rule
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest
from controlplane.simulate.arrivals import Demand
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions

# Fig 2: a GTX 1660 SUPER, its hardware queues, and jobs of equal kernels of one slot.
FIG2_JOBS, FIG2_KERNELS, FIG2_KERNEL_US = 10_000, 8, 300.0
FIG2_QUEUES, FIG2_SLOTS = 32, 176
FIG2_P99_US, FIG2_STEP_RPS, FIG2_STEPS = 4_800.0, 250, 320
FIG2_DISPATCH_US = (0.0, 4.25)
FIG2_PAPER = {0.0: None, 4.25: 2.2}
FIG2_AIMS = {0.0: (5.0, 6.0), 4.25: (2.1, 2.4)}

# Figs 12 and 13: ResNet-18 against InceptionV3 on a T4; kernels need between a fifth and all of its slots.
SLOTS, JOBS = 40, 3_000
SHORT, LONG = 0, 1
KERNELS = {SHORT: (25, 1_580.0), LONG: (125, 31_200.0)}
"""A job's kernels, and microseconds in all."""
LONG_PART = 0.048
DEMANDS = (8, 16, 24, 32, 40)
OUTSTANDING = (119, 6)
SIGMA = 1.5
SEEDS = range(1, 6)
RATES = (50, 100, 200)
STREAMS_TO_SRPT = (1.2, 3.9)
"""The paper's Fig 12 shows up to 3."""
THRESHOLDS = (0.0, 1.0, 10.0, 30.0, 100.0, 1_000.0, 1e6)
FIG13_RPS, FIG13_NOISE = 200, 1.005

# At the gateway.
SHORT_GAIN, LONG_LOSS, BATCH_KEPT, GOODPUT = 5.0, 2.0, 0.8, 0.95
OVERLOAD_PLANNED = 0.68
"""Of the time that the models take: Triton and the gateway add some 1.5 ms a request."""
BY_CHANCE = 0.01
"""The part of those within their promise that may be refused."""
OVERTAKE_MS = (0, 50, 150, 500, 2_000, LONGEST_MS)
NOISE = 1.1

# Plans: 50 models of the V100 catalogue's four kinds, few requests per second each, on GPUs cut into five.
PLANNED_MODELS, COPIES, PLANNED_SECONDS = 50, 17, 300.0


@dataclass(frozen=True)
class Way:
    """An option of the gateway that is measured."""

    name: str
    late_binding: bool
    overtake_ms: int


OFF = Way("Triton's order", False, 0)
FIRST_COME = Way("first come", True, 0)
SHORTEST = Way("shortest first", True, LONGEST_MS)
LIMITED = Way("late binding", True, 1_000)


def p99(latencies: Sequence[float]) -> float:
    return float(np.quantile(latencies, 0.99))


def highest_rate(latencies: Callable[[Sequence[float]], list[float]]) -> int:
    """The highest rate of even arrivals at which P99 is within Fig 2's bound."""
    held, missed = 0, FIG2_STEPS
    while missed - held > 1:
        steps = (held + missed) // 2
        gap_us = 1e6 / (steps * FIG2_STEP_RPS)
        fits = p99(latencies([number * gap_us for number in range(FIG2_JOBS)])) <= FIG2_P99_US
        held, missed = (steps, missed) if fits else (held, steps)
    return held * FIG2_STEP_RPS


def fig2() -> bool:
    size = {"kernels": FIG2_KERNELS, "kernel_us": FIG2_KERNEL_US}
    at_once = highest_rate(lambda at: naive(at, queues=FIG2_QUEUES, **size))
    table = Table(title="Fig 2: highest rate with P99 up to 4.8 ms, jobs/s", title_justify="left")
    for name in ("dispatch, us a kernel", "all kernels at once", "late", "ratio", "paper", ""):
        table.add_column(name, justify="right")
    good = True
    for us in FIG2_DISPATCH_US:
        bound = highest_rate(lambda at, us=us: late(at, slots=FIG2_SLOTS, dispatch_us=us, **size))
        low, high = FIG2_AIMS[us]
        held = low <= bound / at_once <= high
        paper = FIG2_PAPER[us]
        table.add_row(
            f"{us:g}",
            str(at_once),
            str(bound),
            f"{bound / at_once:.2f}",
            "-" if paper is None else f"{paper:g}",
            "" if held else "MISSED",
        )
        good &= held
    Console(width=120).print(table)
    return good


def jobs(rate: float, seed: int) -> list[Job]:
    """Short and long jobs with lognormal gaps."""
    random = np.random.default_rng(seed)
    gaps = random.lognormal(-(SIGMA**2) / 2, SIGMA, JOBS) * 1e6 / rate
    found = []
    for number, at in enumerate(np.cumsum(gaps)):
        kind = LONG if random.random() < LONG_PART else SHORT
        kernels, us = KERNELS[kind]
        demands = tuple(int(d) for d in random.choice(DEMANDS, kernels))
        found.append(Job(number, kind, float(at), us / kernels, demands))
    return found


def ran(rate: float, seed: int, order: Order) -> tuple[list[float], list[float]]:
    """Latencies in ms of the short and of the long jobs."""
    given = jobs(rate, seed)
    latencies = run(given, order, slots=SLOTS, outstanding=OUTSTANDING)
    short, long = ([latencies[j.number] / 1e3 for j in given if j.kind == k] for k in (SHORT, LONG))
    return short, long


def fig12() -> bool:
    ways: dict[str, Callable[[], Order]] = {
        "one stream": lambda: Streams(1),
        "32 streams": lambda: Streams(32),
        "SRPT": lambda: ShortestRemaining(2),
    }
    table = Table(
        title=f"Fig 12: P99 of short jobs in ms, sigma {SIGMA:g}, medians of {len(SEEDS)} seeds",
        title_justify="left",
    )
    for name in ("jobs/s", *ways, "streams / SRPT", ""):
        table.add_column(name, justify="right")
    good = True
    for rate in RATES:
        one, streams, srpt = (
            float(np.median([p99(ran(rate, seed, way())[0]) for seed in SEEDS])) for way in ways.values()
        )
        low, high = STREAMS_TO_SRPT
        held = srpt < streams < one and low <= streams / srpt <= high
        row = (str(rate), *(f"{ms:.1f}" for ms in (one, streams, srpt)), f"{streams / srpt:.2f}")
        table.add_row(*row, "" if held else "MISSED")
        good &= held
    Console(width=120).print(table)
    return good


def fig13() -> bool:
    """Mean latencies over the threshold: short ones never rise, long ones never fall, but for noise."""
    table = Table(title=f"Fig 13: mean latencies in ms at {FIG13_RPS} jobs/s", title_justify="left")
    for name in ("threshold", "short", "long"):
        table.add_column(name, justify="right")
    means = []
    for threshold in (*THRESHOLDS, math.inf):
        runs = [ran(FIG13_RPS, seed, ShortestRemaining(2, threshold=threshold)) for seed in SEEDS]
        means.append(tuple(float(np.mean([np.mean(one[kind]) for one in runs])) for kind in (SHORT, LONG)))
        name = "none (SRPT)" if math.isinf(threshold) else f"{threshold:g}"
        table.add_row(name, *(f"{ms:.2f}" for ms in means[-1]))
    Console(width=120).print(table)
    ordered = all(FIG13_NOISE * a[0] >= b[0] and a[1] <= FIG13_NOISE * b[1] for a, b in pairwise(means))
    good = ordered and means[-1] == means[-2]
    if not good:
        print("MISSED: the shape of Fig 13")
    return good


def paella(options: argparse.Namespace) -> bool:
    return all([fig2(), fig12(), fig13()])


@contextlib.contextmanager
def partition(models: Sequence[Mixed], batch: int) -> Iterator[Callable[[Way], Front]]:
    """A Triton with these models, and gateways in front of it as they are asked for."""
    plan = plan_of(models, batch)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        backend = stack.enter_context(triton(Path(folder, "triton"), plan, models))
        fronts: dict[Way, Front] = {}

        def front(way: Way) -> Front:
            if way not in fronts:
                home = Path(folder, f"gateway{len(fronts)}")
                options = {"late_binding": way.late_binding, "overtake_ms": way.overtake_ms}
                fronts[way] = stack.enter_context(gateway(home, plan, backend, **options))
            return fronts[way]

        yield front


def pair_of(load: float, batch: int) -> tuple[Mixed, ...]:
    """The short and the long model; the long one has twice the load of the short one."""
    short, long = (Mixed("short", 2.0, 0.0, 1.0), Mixed("long", 30.0, 0.0, 1.0))
    if batch > 1:
        short, long = Mixed("short", 1.6, 0.4, 1.0), Mixed("long", 24.0, 6.0, 1.0)
    parts = {short: load / 3, long: 2 * load / 3}
    return tuple(replace(m, rate_rps=part * batch / m.batch_ms(batch) * 1e3) for m, part in parts.items())


def interleaved(ways: Sequence[Way], options: argparse.Namespace) -> dict[Way, list[dict[str, Answers]]]:
    """Runs of each way in turn, on the same arrivals."""
    models = pair_of(options.load, options.batch)
    runs: dict[Way, list[dict[str, Answers]]] = {way: [] for way in ways}
    with partition(models, options.batch) as front:
        for seed in range(options.rounds):
            requests = due({m.name: m.rate_rps for m in models}, options.seconds, seed)
            for way in ways:
                at = front(way)
                runs[way].append(sent(at.http, at.grpc, requests))
    return runs


def middle(runs: Sequence[dict[str, Answers]], model: str, of: float) -> float:
    return float(np.median([run[model].quantile(of) for run in runs]))


def mean_batch(runs: Sequence[dict[str, Answers]], model: str) -> float:
    return float(np.mean([run[model].mean_batch for run in runs]))


def failures(runs: Sequence[dict[str, Answers]]) -> list[str]:
    return [failure for run in runs for answers in run.values() for failure in answers.failures]


def shown(title: str, runs: dict[Way, list[dict[str, Answers]]]) -> None:
    table = Table(title=f"{title}; load of the host {os.getloadavg()[0]:.1f}", title_justify="left")
    for name in ("", "model", "p50 ms", "P99 ms", "HTTP", "gRPC", "P99 of each run", "batch", "failed"):
        table.add_column(name, justify="right")
    for way, those in runs.items():
        for model in sorted(those[0], reverse=True):
            protocols = [
                float(np.median([np.quantile(run[model].latencies[p], 0.99) for run in those]))
                for p in ("http", "grpc")
            ]
            table.add_row(
                *(way.name, model, f"{middle(those, model, 0.5):.1f}", f"{middle(those, model, 0.99):.1f}"),
                *(f"{ms:.1f}" for ms in protocols),
                " ".join(f"{run[model].quantile(0.99):.0f}" for run in those),
                f"{mean_batch(those, model):.2f}",
                str(sum(len(run[model].failures) for run in those)),
            )
    Console(width=140).print(table)


def order(options: argparse.Namespace) -> bool:
    ways = (OFF, FIRST_COME, SHORTEST)
    runs = interleaved(ways, options)
    shown(f"2 and 30 ms, load {options.load:g}, batch {options.batch}, {options.seconds:g} s a run", runs)
    first, shortest = runs[FIRST_COME], runs[SHORTEST]
    short, long = (middle(first, m, 0.99) / middle(shortest, m, 0.99) for m in ("short", "long"))
    batches = min(mean_batch(shortest, m) / mean_batch(first, m) for m in ("short", "long"))
    failed = failures(first) + failures(shortest)
    print(
        f"short P99 {short:.1f} times lower (aim {SHORT_GAIN:g}), long P99 {1 / long:.2f} times "
        f"(at most {LONG_LOSS:g}), mean batch {batches:.2f} (at least {BATCH_KEPT:g}), {len(failed)} failed"
    )
    return short >= SHORT_GAIN and 1 / long <= LONG_LOSS and batches >= BATCH_KEPT and not failed


def threshold(options: argparse.Namespace) -> bool:
    ways = tuple(Way(f"{ms} ms", True, ms) for ms in OVERTAKE_MS)
    runs = interleaved(ways, options)
    shown(f"over --overtake-ms, load {options.load:g}, batch {options.batch}", runs)
    curves = {m: [middle(runs[way], m, 0.99) for way in ways] for m in ("short", "long")}
    falls = all(b <= NOISE * a for a, b in pairwise(curves["short"]))
    rises = all(a <= NOISE * b for a, b in pairwise(curves["long"]))
    print(f"short falls: {falls}, long rises: {rises} (noise of {NOISE - 1:.0%} allowed)")
    return falls and rises


def overload(options: argparse.Namespace) -> bool:
    """The fourth model gets 1.5 times its rate. Capacity: the work that an overloaded Triton does alone."""
    models = tuple(
        Mixed(name, ms, 0.0, OVERLOAD_PLANNED * part / ms * 1e3, slo_ms=150.0)
        for name, ms, part in (("a", 2.0, 0.05), ("b", 4.0, 0.1), ("c", 8.0, 0.15), ("d", 10.0, 0.7))
    )
    rates = {m.name: m.rate_rps for m in models}
    above = {**rates, "d": 1.5 * rates["d"]}
    table = Table(
        title=f"planned load {OVERLOAD_PLANNED:g}, then 1.5 times the rate of d; "
        f"load of the host {os.getloadavg()[0]:.1f}",
        title_justify="left",
    )
    for name in ("", "model", "requests", "refused", "P99 ms", "ratio"):
        table.add_column(name, justify="right")
    good, worked = True, {}
    with partition(models, 1) as front:
        for way in (OFF, LIMITED):
            at = front(way)
            usual = sent(at.http, at.grpc, due(rates, options.seconds, 1))
            busy = sent(at.http, at.grpc, due(above, options.seconds, 2))
            for m in models:
                before, now = usual[m.name].quantile(0.99), busy[m.name].quantile(0.99)
                answered, refused = len(busy[m.name].all_ms), busy[m.name].refused
                table.add_row(
                    *(way.name, m.name, str(answered + refused), str(refused)),
                    *(f"{before:.0f} -> {now:.0f}", f"{now / before:.2f}"),
                )
                if way is LIMITED and m.name != "d":
                    good &= now <= m.slo_ms and refused <= BY_CHANCE * answered
            work_ms = sum(len(busy[m.name].all_ms) * m.fixed_ms for m in models)
            worked[way] = work_ms / busy["d"].seconds / 1e3
            table.add_row(way.name, "work", f"{worked[way]:.3f} of the time", "", "", "")
            good &= not failures([usual, busy])
    good &= worked[LIMITED] >= GOODPUT * worked[OFF]
    Console(width=120).print(table)
    return good


def cost(options: argparse.Namespace) -> bool:
    """A closed loop of perf_analyzer on a model without work, through slots alone and through a gate."""
    models = (Mixed("short", 0.0, 0.0, 1000.0), Mixed("long", 30.0, 0.0, 1.0))
    wide = Way("gate", True, 0)
    print(f"{'':<24}{'slots':>10}{'gate':>10}{'ratio':>8}   load {os.getloadavg()[0]:.1f}")
    with partition(models, 8) as front:
        for protocol in ("grpc", "http"):
            for connections in (1, 16):
                pairs = [
                    [
                        driven(protocol, getattr(front(way), protocol), connections, options.window_ms)
                        for way in (OFF, wide)
                    ]
                    for _ in range(options.rounds)
                ]
                for index, unit in enumerate(("req/s", "p50 ms")):
                    off, on = (float(np.median([pair[i][index] for pair in pairs])) for i in (0, 1))
                    ratio = float(np.median([pair[1][index] / pair[0][index] for pair in pairs]))
                    print(f"{protocol}, {connections:>2} {unit:<12}{off:>14.2f}{on:>10.2f}{ratio:>8.2f}")
    return True


def driven(protocol: str, address: str, connections: int, window_ms: int) -> tuple[float, float]:
    """Requests a second and p50 in ms."""
    done = perf_analyzer(
        *("-m", "short", "-u", address, "-i", protocol, "-b", "1"),
        *("--concurrency-range", str(connections), "-p", str(window_ms), "-s", "999", "-r", "8"),
        "--percentile=50",
    )
    rate = re.search(r"Throughput: ([\d.]+) infer/sec", done.stdout)
    p50 = re.search(r"p50 latency: (\d+) usec", done.stdout)
    if done.returncode or rate is None or p50 is None:
        raise SystemExit(f"perf_analyzer failed:\n{done.stdout}{done.stderr}")
    return float(rate.group(1)), int(p50.group(1)) / 1000


def plans(options: argparse.Namespace) -> bool:
    """Random lists of 50 models, planned twice; each plan is simulated with what its own order says."""
    table = Table(title=f"{PLANNED_MODELS} workloads of as many models", title_justify="left")
    for name in ("list", "", "GPUs", "partitions", "in turns", "in order", "late workloads", "CPU s"):
        table.add_column(name, justify="right")
    device = planning.cores(COPIES)
    good, saved = True, 0
    for seed in range(1, options.rounds + 1):
        request = PlanRequest(
            planning.mixed(PLANNED_MODELS, COPIES, seed), {"v100": device}, Rule.P99, planning.StoppedClock()
        )
        gpus = []
        for late_binding in (False, True):
            began = time.process_time()
            plan = registry.strategy("joint", late_binding=late_binding).plan(request)
            cpu_s = time.process_time() - began
            late = late_workloads(plan)
            good &= plan.verified and not plan.infeasible and late == 0
            gpus.append(len(plan.gpus))
            partitions = [partition for _, partition in plan.partitions()]
            table.add_row(
                str(seed),
                "late binding" if late_binding else "any order",
                str(len(plan.gpus)),
                str(len(partitions)),
                str(sum(p.turns for p in partitions)),
                str(sum(p.ordered for p in partitions)),
                str(late),
                f"{cpu_s:.1f}",
            )
        saved += gpus[0] - gpus[1]
    Console(width=120).print(table)
    print(f"{saved} GPUs fewer with late binding")
    return good and saved > 0


def late_workloads(plan: Plan) -> int:
    """Workloads with more than 1 % of their requests late, simulated."""
    demands = {w.name: Demand.of(w.arrivals, w.rate_rps) for _, _, w in plan.placements()}
    asked = Settings(seconds=PLANNED_SECONDS, demands=demands)
    latency = planning.cores(COPIES).latency
    seen = simulate(plan, {"v100": latency}, asked, Conditions(order=order_of(plan, None)))
    return sum(not w.holds for w in seen.workloads)


TABLES = {
    "paella": paella,
    "order": order,
    "threshold": threshold,
    "overload": overload,
    "cost": cost,
    "plans": plans,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=list(TABLES))
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--window-ms", type=int, default=700)
    options = parser.parse_args()
    return 0 if TABLES[options.what](options) else 1


if __name__ == "__main__":
    sys.exit(main())

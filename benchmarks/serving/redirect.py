"""From a slower server to its shadow, on real servers: how soon, and how many answers come late until then.

    python -m benchmarks.serving.redirect            four minutes: each client at 100 req/s, twice as slow
    python -m benchmarks.serving.redirect --full     every client, rate, batch limit and slowdown: hours
    python -m benchmarks.serving.redirect --slowdowns 1.5,2 --rates 20,100 --batches 8 --runs 10
    python -m benchmarks.serving.redirect --starts 10           the P99 beside so many starts, and without
    python -m benchmarks.serving.redirect --json

One Triton on half a core that is half busy, its shadow on 10 % more. Its quota is cut without the guard's
knowledge, so that a service takes `slowdown` times as long: what the server uses beside the services is
measured before, and left to it. `seen` is the slowdown by Triton's counters. Times run from the cut, and from
the start of the first second after it whose P99 is above the SLO. `late` are the clients' requests of the
KEPT_S seconds from the cut that took longer than the SLO, or failed; `ahead` counts redirects before any
second broke its P99, `kept` runs in which at most 1 % of these requests were late, so that their P99 kept the
SLO. iGniter's paper (section 5.5) reports 1.5 s. With --starts the server stays as it is, and another fleet's
servers of a tenth less than its share start on its core, one after the other.

Exits 1 where a run was not kept, lost a request, or was redirected later than the paper's at 100 req/s or
more and 1.5 times or more, or starts raised the P99 by more than a fifth. A run is left out, and said, where
the guard redirected before the cut.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import guard_rig as rig
import numpy as np
from ctl_fleet import plan
from guard_rig import Guarded

from benchmarks.support.redirect_clients import CLIENTS, ENDPOINT, load_s, start
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server, ServerSpec
from controlplane.domain.observation import ModelStatistics
from controlplane.triton.client import TritonClient
from controlplane.triton.statistics import difference
from launchers.process import ProcessLauncher

PERCENT = 50.0
LOAD = 0.5
MOST_OTHER = 0.4
"""The server may use at most this part of its share beside its services: the rest is idle, or is cut."""
SLO_MS = {20.0: 250.0, 100.0: 50.0, 400.0: 40.0}
"""Ten services; at 400 req/s also what the way through the gateway and the quota's periods need."""
IGNITER_S = 1.5
REDIRECT_S = 10.0
"""A redirect is waited for so long."""
KEPT_S = 30.0
"""From the cut on; its requests count."""
START_COST = 0.2
"""The part by which a start may raise the P99 of a server on its core."""
CALM_S = 3.0
"""After each start, so long without one."""


@dataclass(frozen=True)
class Case:
    """One load and one cut."""

    client: str
    rate_rps: float
    batch: int
    slowdown: float

    @property
    def slo_ms(self) -> float:
        return SLO_MS[self.rate_rps]

    @property
    def service_s(self) -> float:
        """The service time on the whole share."""
        return LOAD / self.rate_rps


@dataclass(frozen=True)
class Run:
    """One cut; None where no redirect came, or no second broke its P99 before or after it."""

    case: Case
    seen_slowdown: float | None
    from_cut_s: float | None
    from_broken_s: float | None
    late: int
    counted: int
    failed: int
    load_average: float

    @property
    def ahead(self) -> bool:
        """Whether the redirect came before any second broke its P99."""
        return self.from_cut_s is not None and (self.from_broken_s is None or self.from_broken_s <= 0.0)

    @property
    def kept(self) -> bool:
        """Whether the P99 of the KEPT_S from the cut kept the SLO."""
        return self.counted > 0 and self.late <= 0.01 * self.counted


class LeftOut(Exception):
    """The guard redirected before anything was cut."""


def one_run(directory: Path, case: Case, seed: int) -> Run:
    """Raises LeftOut, and EngineError where the client gave up."""
    with Guarded(directory) as fleet:
        fleet.apply(
            plan(rig.partition("w", PERCENT, rate_rps=case.rate_rps, slo_ms=case.slo_ms, batch=case.batch))
        )
        fleet.await_guarded()
        (server,) = [s for s in fleet.launched() if s.name == fleet.active("w")]
        load = start(case.client, fleet, case.rate_rps, case.service_s * PERCENT / 100.0, seed)
        try:
            time.sleep(load_s(case.rate_rps))
            if reason := next((e.reason for e in fleet.events() if e.kind == "redirect"), ""):
                raise LeftOut(reason)
            with TritonClient(server) as triton:
                before = triton.statistics(ENDPOINT)
            other = other_percent(fleet, server)
            cut_s = time.time()
            fleet.cut_quota(PERCENT, other + (PERCENT - other) / case.slowdown)
            after, moved_s = watched(fleet, server, cut_s)
            time.sleep(max(0.0, cut_s + KEPT_S - time.time()))
        finally:
            requests = load.stop()
    since_cut = [r for r in requests if cut_s <= r.started_s < cut_s + KEPT_S]
    return Run(
        case,
        slowdown_between(before, after),
        *times_of(case, requests, cut_s, moved_s),
        late=sum(r.error is not None or r.latency_ms > case.slo_ms for r in since_cut),
        counted=len(since_cut),
        failed=sum(r.error is not None for r in requests),
        load_average=os.getloadavg()[0],
    )


def other_percent(fleet: Guarded, server: Server) -> float:
    """What a server uses of a core beside its services, in percent, over one second."""
    launcher, began = fleet.launcher(), time.monotonic()
    before_s = launcher.usage(server).cpu_seconds or 0.0
    time.sleep(1.0)
    used_s = (launcher.usage(server).cpu_seconds or 0.0) - before_s
    return min(max(0.0, 100.0 * used_s / (time.monotonic() - began) - LOAD * PERCENT), MOST_OTHER * PERCENT)


def watched(fleet: Guarded, server: Server, cut_s: float) -> tuple[ModelStatistics | None, float | None]:
    """The cut server's counters as late as they can be read, and when the new routes stood."""
    after = None
    with TritonClient(server, deadline_s=1.0) as triton:
        while time.time() - cut_s < REDIRECT_S:
            try:
                after = triton.statistics(ENDPOINT)
            except EngineError:
                break
            if moved := next((e.at_s for e in fleet.events() if e.kind == "commit" and e.at_s > cut_s), None):
                return after, moved
            time.sleep(0.1)
    return after, next((e.at_s for e in fleet.events() if e.kind == "commit" and e.at_s > cut_s), None)


def slowdown_between(before: ModelStatistics, after: ModelStatistics | None) -> float | None:
    """How many times as long a request computes since the cut; None where nothing ran."""
    if after is None or after.inferences == before.inferences:
        return None
    passed = difference(before, after)
    return compute_ns(passed) / passed.inferences / (compute_ns(before) / before.inferences)


def compute_ns(statistics: ModelStatistics) -> int:
    return sum(batch.compute_infer_ns for batch in statistics.batches.values())


def times_of(
    case: Case, requests: list[rig.Request], cut_s: float, moved_s: float | None
) -> tuple[float | None, float | None]:
    """Seconds to the shadow's first answer, from the cut and from the first second whose P99 breaks."""
    if moved_s is None:
        return None, None
    answered = [r for r in requests if r.error is None]
    served_s = min((r.ended_s for r in answered if r.started_s >= moved_s), default=None)
    if served_s is None:
        return None, None
    for second in range(int(REDIRECT_S)):
        since_s = cut_s + second
        ended = [r.latency_ms for r in answered if since_s <= r.ended_s < since_s + 1.0]
        if sum(ms > case.slo_ms for ms in ended) > 0.01 * len(ended):
            return served_s - cut_s, served_s - since_s
    return served_s - cut_s, None


@dataclass(frozen=True)
class Starts:
    """A server's P99 while servers start on its core, and while none does."""

    count: int
    median_s: float
    p99_ms: float
    calm_p99_ms: float

    @property
    def cost(self) -> float:
        """The part by which the starts raised the P99."""
        return self.p99_ms / self.calm_p99_ms - 1.0


def started_and_stopped(state: Path, spec: ServerSpec) -> tuple[float, float]:
    """Start a server and end it; return when its start began and ended."""
    launcher, began_s = ProcessLauncher(state), time.time()
    server = launcher.start(spec, deadline_s=60.0)
    ready_s = time.time()
    launcher.stop(server, drain_s=0.0)
    return began_s, ready_s


def beside_starts(directory: Path, case: Case, count: int) -> Starts:
    """Measure one server's P99 in the times of `count` starts on its core, and between them."""
    times: list[tuple[float, float]] = []
    with Guarded(directory) as fleet:
        fleet.apply(
            plan(rig.partition("w", PERCENT, rate_rps=case.rate_rps, slo_ms=case.slo_ms, batch=case.batch))
        )
        fleet.await_guarded()
        (server, _) = fleet.launched()
        labels = replace(server.spec.labels, fleet=f"{fleet.fleet}s", partition="beside")
        spec = replace(server.spec, labels=labels, percent=PERCENT - 10.0)
        # In a process of its own, so that it takes nothing from the client.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(os.getpid).result()
            load = start(case.client, fleet, case.rate_rps, case.service_s * PERCENT / 100.0, 0)
            try:
                time.sleep(CALM_S)
                for _ in range(count):
                    times.append(pool.submit(started_and_stopped, fleet.files.parent, spec).result())
                    time.sleep(CALM_S)
            finally:
                requests = load.stop()
    beside = [r.latency_ms for r in requests if any(a <= r.started_s <= b for a, b in times)]
    calm = [r.latency_ms for r in requests if any(b + 1.0 <= r.started_s <= b + CALM_S for _, b in times)]
    took_s = statistics.median(ready_s - began_s for began_s, ready_s in times)
    return Starts(count, took_s, float(np.percentile(beside, 99)), float(np.percentile(calm, 99)))


def tried(case: Case, seed: int) -> Run | str:
    """The run, or why it is left out."""
    with tempfile.TemporaryDirectory(prefix="trisect-redirect-") as directory:
        try:
            return one_run(Path(directory), case, seed)
        except LeftOut as error:
            return f"redirected before the cut: {error}"
        except (EngineError, subprocess.TimeoutExpired, AssertionError) as error:
            return f"failed: {error}"


def middle(values: list[float]) -> str:
    """The median and, from six values on, its 95 % interval by order statistics."""
    if not values:
        return "-"
    ordered, n = sorted(values), len(values)
    if n < 6:
        return f"{statistics.median(ordered):.2f}"
    margin = 0.98 * n**0.5
    low, high = ordered[max(0, int((n - 1) / 2 - margin))], ordered[min(n - 1, int((n - 1) / 2 + margin) + 1)]
    return f"{statistics.median(ordered):.2f} ({low:.2f} to {high:.2f})"


def row(case: Case, runs: list[Run]) -> str:
    seen = [r.seen_slowdown for r in runs if r.seen_slowdown is not None]
    cut = [r.from_cut_s for r in runs if r.from_cut_s is not None]
    broken = [r.from_broken_s for r in runs if r.from_broken_s is not None]
    load = max(r.load_average for r in runs)
    return (
        f"{case.client:19} {case.rate_rps:5g} {case.batch:5d} {case.slowdown:6g} {middle(seen):>6} "
        f"{len(cut):3d}/{len(runs):<3d} {middle(cut):>20} "
        f"{max(cut, default=0.0):6.2f} {middle(broken):>20} {sum(r.ahead for r in runs):5d} "
        f"{sum(r.kept for r in runs):4d} "
        f"{statistics.median(r.late for r in runs):5.0f} {sum(r.failed for r in runs):6d} {load:5.1f}"
    )


HEADER = (
    "client              req/s batch slower   seen redirected   s from the cut  worst  "
    "s from broken P99 ahead kept  late failed  load"
)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for client, rate, batch, slowdown in product(
        options.clients, options.rates, options.batches, options.slowdowns
    ):
        yield Case(client, rate, batch, slowdown)


def arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[float]:
        return [float(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--clients", type=lambda text: text.split(","), help=f"of {', '.join(CLIENTS)}")
    parser.add_argument("--rates", type=numbers, help=f"of {', '.join(f'{r:g}' for r in SLO_MS)}")
    parser.add_argument("--batches", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--slowdowns", type=numbers)
    parser.add_argument("--runs", type=int, default=1, help="of each case")
    parser.add_argument("--starts", type=int, help="instead of runs, so many starts beside a server")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.clients = options.clients or list(CLIENTS)
    options.rates = options.rates or ([*SLO_MS] if options.full else [100.0])
    options.batches = options.batches or ([1, 8] if options.full else [8])
    options.slowdowns = options.slowdowns or ([1.1, 1.25, 1.5, 2.0, 4.0] if options.full else [2.0])
    return options


def measure_starts(options: argparse.Namespace) -> int:
    case = Case("tritonclient", options.rates[0], options.batches[0], 1.0)
    with tempfile.TemporaryDirectory(prefix="trisect-starts-") as directory:
        found = beside_starts(Path(directory), case, options.starts)
    if options.json:
        print(json.dumps({**asdict(found), "cost": found.cost}))
    else:
        print(
            f"{found.count} starts of {found.median_s:.1f} s at {case.rate_rps:g} req/s: P99 "
            f"{found.p99_ms:.1f} ms beside them, {found.calm_p99_ms:.1f} ms without: ours "
            f"{100 * found.cost:+.0f} %, aim {100 * START_COST:+.0f} %"
        )
    return 0 if found.cost <= START_COST else 1


def main() -> int:
    options = arguments()
    # The fleet of the run under way ends with its `with` block.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.starts:
        return measure_starts(options)
    results: list[Run] = []
    left_out = 0
    print(HEADER, file=sys.stderr if options.json else sys.stdout, flush=True)
    for case in cases(options):
        runs = []
        for seed in range(options.runs):
            run = tried(case, seed)
            if isinstance(run, Run):
                runs.append(run)
            else:
                left_out += 1
                print(f"{case} left out: {run[:200]}", file=sys.stderr, flush=True)
        results += runs
        if runs:
            print(row(case, runs), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"runs": [asdict(run) for run in results], "left_out": left_out}))
    missed = [r for r in results if not r.kept or r.failed]
    slow = [
        r
        for r in results
        if r.case.rate_rps >= 100.0 and r.case.slowdown >= 1.5 and (r.from_cut_s or 0.0) > IGNITER_S
    ]
    return 1 if missed or slow or left_out else 0


if __name__ == "__main__":
    sys.exit(main())

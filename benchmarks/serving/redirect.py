"""From a slower server to its shadow, on real servers: how soon, and how many answers come late until then.

    python -m benchmarks.serving.redirect            two minutes: each client at 100 req/s, twice as slow
    python -m benchmarks.serving.redirect --full     every client, rate, batch limit and slowdown: hours
    python -m benchmarks.serving.redirect --slowdowns 1.5,2 --rates 20,100 --batches 8 --runs 10

One Triton on half a core that is half busy, its shadow on 10 % more. Its quota is cut without the guard's
knowledge, so that a service takes `slowdown` times as long: what the server uses beside the services is
measured before, and left to it. `seen` is the slowdown by Triton's counters. Times run from the cut, and from
the start of the first second after it whose P99 is above the SLO. `late` are the clients' requests of the
KEPT_S seconds from the cut that took longer than the SLO, or failed; `ahead` counts redirects before any
second broke its P99, `kept` runs in which at most 1 % of these requests were late, so that their P99 kept the
SLO. iGniter's paper (section 5.5) reports 1.5 s.

Exits 1 where a run was not kept, lost a request, or was redirected later than the paper's at 100 req/s or
more and 1.5 times or more, or no run was counted: one is left out, and said, where the guard redirected
before the cut.
"""

import argparse
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import guard_rig as rig
import numpy as np
from ctl_fleet import plan
from guard_rig import Guarded

from benchmarks.harness import Figures, show, table
from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import ModelStatistics
from controlplane.runtime.demo import clients
from controlplane.triton.client import TritonClient
from controlplane.triton.statistics import difference

ENDPOINT = "w"
LOAD_S = 8.0
LOAD_REQUESTS = 800.0
"""Requests before the cut, for eight seconds or so many: the guard learns batch times from them."""
CLIENTS = ("tritonclient", "aio pool")
_POOL = 8


def load_s(rate_rps: float) -> float:
    """The seconds of requests before the cut."""
    return max(LOAD_S, LOAD_REQUESTS / rate_rps)


class Running:
    """Load from one client in a thread, until `stop`."""

    def __init__(self, run: Callable[[threading.Event], list[rig.Request]]) -> None:
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._requests: Future[list[rig.Request]] = self._pool.submit(run, self._stopped)

    def stop(self) -> list[rig.Request]:
        """End the load and return its requests. Raises EngineError where the client gave up."""
        self._stopped.set()
        self._pool.shutdown()
        return self._requests.result()


def start(client: str, fleet: Guarded, rate_rps: float, work_s: float, seed: int) -> Running:
    """Start one of CLIENTS against a fleet's gateway."""
    if client == "aio pool":
        return Running(lambda stopped: _aio(fleet, rate_rps, work_s, seed, stopped))
    return Running(lambda stopped: _tritonclient(fleet, rate_rps, work_s, seed, stopped))


def _aio(
    fleet: Guarded, rate_rps: float, work_s: float, seed: int, stopped: threading.Event
) -> list[rig.Request]:
    with rig.Load(fleet.grpc, ENDPOINT, rate_rps, work_s, seed=seed, connections=_POOL) as load:
        stopped.wait()
    return load.requests


def _tritonclient(
    fleet: Guarded, rate_rps: float, work_s: float, seed: int, stopped: threading.Event
) -> list[rig.Request]:
    def due() -> Iterator[float]:
        chance, at = random.Random(seed), 0.0
        while not stopped.is_set():
            at += chance.expovariate(rate_rps)
            yield at

    inputs = [clients.Tensor("X", "FP32", np.array([[work_s]], dtype=np.float32))]
    return _requests(clients.over_grpc(f"127.0.0.1:{fleet.grpc}", ENDPOINT, inputs, due()))


def _requests(seen: clients.Seen) -> list[rig.Request]:
    took_s = seen.latency_ms / 1000.0
    answered = [rig.Request(due, due + took, None) for due, took in zip(seen.due_s, took_s, strict=True)]
    return answered + [rig.Request(time.time(), time.time(), reason) for reason in seen.failures]


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


def tried(case: Case, seed: int) -> Run | str:
    """The run, or why it is left out."""
    with tempfile.TemporaryDirectory(prefix="trisect-redirect-") as directory:
        try:
            return one_run(Path(directory), case, seed)
        except LeftOut as error:
            return f"redirected before the cut: {error}"
        except (EngineError, subprocess.TimeoutExpired, AssertionError) as error:
            return f"failed: {error}"


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
    options = parser.parse_args()
    options.clients = options.clients or list(CLIENTS)
    options.rates = options.rates or ([*SLO_MS] if options.full else [100.0])
    options.batches = options.batches or ([1, 8] if options.full else [8])
    options.slowdowns = options.slowdowns or ([1.1, 1.25, 1.5, 2.0, 4.0] if options.full else [2.0])
    return options


def judged(results: list[Run], left_out: int) -> int:
    """Print the runs and figures; return the exit code."""
    columns = (
        ">req/s",
        ">batch",
        ">slower",
        ">seen",
        ">s from the cut",
        ">from broken P99",
        ">late",
        ">load",
    )
    made, figures = table("runs", "client", *columns), Figures()
    for r in results:
        times = (r.seen_slowdown, r.from_cut_s, r.from_broken_s)
        made.add_row(
            *(r.case.client, f"{r.case.rate_rps:g}", str(r.case.batch), f"{r.case.slowdown:g}"),
            *("–" if one is None else f"{one:.2f}" for one in times),
            *(f"{r.late} of {r.counted}", f"{r.load_average:.1f}"),
        )
    show(made, width=140)
    moved_s = [r.from_cut_s for r in results if r.from_cut_s is not None]
    fast = [r for r in results if r.case.rate_rps >= 100.0 and r.case.slowdown >= 1.5]
    slowest_s = max((math.inf if r.from_cut_s is None else r.from_cut_s for r in fast), default=None)
    figures.add("redirected, median", statistics.median(moved_s) if moved_s else math.inf, "s")
    if slowest_s is not None:
        name = "slowest at 100/s or more and 1.5 times or more"
        figures.add(name, slowest_s, "s", at_most=IGNITER_S, reference=IGNITER_S)
    figures.add(f"kept of {len(results)}", sum(r.kept for r in results), at_least=max(len(results), 1))
    figures.add("before any second broke its P99", sum(r.ahead for r in results))
    figures.add("failed requests", sum(r.failed for r in results), at_most=0)
    figures.add("left out", left_out, at_most=0)
    return figures.end()


def main() -> int:
    options = arguments()
    # The fleet of the run under way ends with its `with` block.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results: list[Run] = []
    left_out = 0
    for case, seed in product(cases(options), range(options.runs)):
        run = tried(case, seed)
        print(f"{case}: {str(run)[:200]}", file=sys.stderr, flush=True)
        if isinstance(run, Run):
            results.append(run)
        else:
            left_out += 1
    return judged(results, left_out)


if __name__ == "__main__":
    sys.exit(main())

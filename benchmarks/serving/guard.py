"""The guard's verdict on simulated time: how often it is a false alarm, and how soon it comes.

    python -m benchmarks.serving.guard                two minutes: a short form of both tables
    python -m benchmarks.serving.guard --part 0.25    a quarter of a week of 52 workloads, and of twelve
                                                         with each disturbance: ten minutes
    python -m benchmarks.serving.guard --full         the whole week

The rule is the guard's own, late answers and batch times together (support/guard_traffic.py). The SLO
is put where the queue's own P99, measured beforehand, is 0.9, 0.95 or 1.0 of it. Nothing is learned before.

Exits 1 after more false alarms than are allowed, and where a broken P99 is seen too late: the median after
SEEN_S, or nine of ten after more than twice that. A guard that never fires has no false alarm, and sees
nothing.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice, product

import numpy as np

from benchmarks.harness import Figures
from benchmarks.support.guard_traffic import CHUNK, Guard, Stream, Traffic, p99_s, seed
from controlplane.control.guard.promise import Promise
from controlplane.control.guard.state import Limits

RATES_RPS = (5.0, 20.0, 100.0)
"""A queue is the same at every rate but for its scale of time; more requests a week only take longer here."""

WEEK_S = 7 * 86400.0
YEAR_WEEKS = 52
MONTH_WEEKS = 52 / 12
AHEAD_S = 10.0
SEEN_S = {20.0: 5.0, 100.0: 2.0, 400.0: 2.0}
"""By the rate, of a P99 far above the SLO; one above it by a tenth to a half may take NEAR times as long."""
BROKEN, FAR, NEAR = 1.1, 1.5, 3.0
LIMIT = 17
"""In 52 workload-weeks undisturbed; one a workload-month under each disturbance."""

DISTURBANCES = {
    "stalls of 0.2 to 2 s a minute": Traffic(1.0, stalls=1.0),
    "arrivals of dispersion 4": Traffic(1.0, dispersion=4.0),
    "six times the noise of batch times": Traffic(1.0, noise=0.3),
    "a profile that is 10 % too fast": Traffic(1.0),
}
PROFILE_ERROR = {"a profile that is 10 % too fast": 1.1}


@dataclass(frozen=True)
class Count:
    """The alarms of one kind of traffic."""

    kind: str
    workloads: int
    weeks: float
    alarms: int

    @property
    def allowed(self) -> float:
        a_week = LIMIT / YEAR_WEEKS if self.kind == "undisturbed" else 1.0 / MONTH_WEEKS
        return max(1.0, a_week * self.weeks)


@dataclass(frozen=True)
class Power:
    """How soon a slowdown is seen, over `runs`; `late` are answers above the SLO until then, the median.

    `p99` is the P99 that the slower server settles at, in SLOs. A run that sees nothing takes for ever. Of
    the runs in which more than 1 % of the answers of the first AHEAD_S would be late, `ahead` is the share in
    which no more than that were before the verdict; None where there are no such runs.
    """

    rate_rps: float
    slowdown: float
    p99: float
    runs: int
    median_s: float
    p90_s: float
    late: float
    ahead: float | None


def promise_of(traffic: Traffic, slo_s: float, profile_error: float = 1.0) -> Promise:
    load = traffic.load / profile_error
    return Promise("w", 1000.0 * slo_s, traffic.rate_rps, batch=traffic.batch, utilisation=load)


def alarms(traffic: Traffic, promise: Promise, requests: int) -> int:
    """The alarms in so many requests; after each the guard settles, as after a redirect."""
    guard, stream = Guard(promise), Stream(traffic)
    found, left = 0, requests
    while left > 0:
        ended, took = stream.chunk(min(CHUNK, left))
        left -= len(ended)
        while (at := guard.alarm(ended, took)) >= 0:
            found += 1
            guard.restart()
            settled = max(at + 1, int(np.searchsorted(ended, ended[at] + Limits().settle_s)))
            ended, took = ended[settled:], took[settled:]
    return found


def workloads() -> Iterator[tuple[Traffic, float]]:
    """Every rate, load and shape, and the part of the SLO at which its P99 is."""
    shapes = ((1, 0.0), (8, 0.5), (16, 0.8))
    ratios = cycle((1.0, 0.9, 0.95, 1.0))
    for (batch, fixed), load, rate in product(shapes, (0.3, 0.5, 0.65, 0.75, 0.85, 0.92), RATES_RPS):
        yield Traffic(rate, load, batch, fixed), next(ratios)


def undisturbed(part: float | None) -> Count:
    """A part of a week of each of 52 workloads; None: the short form."""
    weeks, found, chosen = 0.0, 0, list(islice(workloads(), 52))
    for traffic, ratio in chosen:
        seconds = part * WEEK_S if part else min(WEEK_S, 2e5 / traffic.rate_rps)
        slo_s = p99_s(traffic, 3_000_000 if part else 300_000) / ratio
        found += alarms(traffic, promise_of(traffic, slo_s), int(seconds * traffic.rate_rps))
        weeks += seconds / WEEK_S
        progress(part, f"{traffic} P99 at {ratio} of {1000 * slo_s:.1f} ms: {found} so far")
    return Count("undisturbed", len(chosen), weeks, found)


def disturbed(kind: str, part: float | None) -> Count:
    """A part of a week of each of twelve workloads; the plan knows nothing of stalls."""
    weeks, found, number = 0.0, 0, 0
    for rate, load, batch in product(RATES_RPS, (0.5, 0.75), (1, 8)):
        fixed = 0.0 if batch == 1 else 0.5
        traffic = replace(DISTURBANCES[kind], rate_rps=rate, load=load, batch=batch, fixed=fixed)
        slo_s = p99_s(replace(traffic, stalls=0.0), 3_000_000 if part else 300_000) / 0.95
        promise = promise_of(traffic, slo_s, PROFILE_ERROR.get(kind, 1.0))
        seconds = part * WEEK_S if part else min(WEEK_S, 4e5 / rate)
        found += alarms(traffic, promise, int(seconds * rate))
        weeks += seconds / WEEK_S
        number += 1
        progress(part, f"{kind}: {traffic}: {found} so far")
    return Count(kind, number, weeks, found)


def progress(part: float | None, line: str) -> None:
    if part:
        print(line, file=sys.stderr, flush=True)


def power(rate_rps: float, slowdown: float, runs: int) -> Power:
    """A queue whose P99 is 0.8 of the SLO is slowed down at once, after 60 s in which it was learned."""
    usual = Traffic(rate_rps, load=0.5, batch=8, fixed=0.5, noise=0.15)
    slower = replace(usual, slowdown=slowdown)
    slo_s = p99_s(usual, 300_000) / 0.8
    delays, late, ahead = [], [], []
    for _ in range(runs):
        guard, stream = Guard(promise_of(usual, slo_s)), Stream(usual)
        guard.alarm(*stream.chunk(int(60 * rate_rps)))
        guard.restart()
        stream.traffic, changed_s = slower, stream.now_s
        ended, took = stream.chunk(int(60 * rate_rps))
        at = guard.alarm(ended, took)
        delays.append(float(ended[at]) - changed_s if at >= 0 else math.inf)
        late.append(int((took[: at if at >= 0 else None] > slo_s).sum()))
        allowed = 0.01 * AHEAD_S * rate_rps
        if (took[ended < changed_s + AHEAD_S] > slo_s).sum() > allowed:
            ahead.append(late[-1] <= allowed)
    return Power(
        rate_rps,
        slowdown,
        p99_s(slower, 300_000) / slo_s,
        runs,
        float(np.quantile(delays, 0.5, method="inverted_cdf")),
        float(np.quantile(delays, 0.9, method="inverted_cdf")),
        float(np.median(late)),
        float(np.mean(ahead)) if ahead else None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_const", dest="part", const=1.0, help="the same as --part 1")
    parser.add_argument("--part", type=float, help="of a week of each workload; without it a short form")
    options = parser.parse_args()
    seed(1)
    runs = 200 if options.part == 1.0 else 25
    powers = [power(r, s, runs) for r, s in product((20.0, 100.0, 400.0), (1.1, 1.25, 1.5, 2.0, 4.0))]
    counts = [undisturbed(options.part), *(disturbed(kind, options.part) for kind in DISTURBANCES)]
    figures = Figures()
    for p in powers:
        name, limit_s = f"{p.rate_rps:g}/s, {p.slowdown:g} times, P99 {min(p.p99, 99.0):.2f} SLOs", None
        if p.p99 > BROKEN:
            limit_s = SEEN_S[p.rate_rps] * (1.0 if p.p99 > FAR else NEAR)
        figures.add(f"{name}: seen, median", p.median_s, "s", at_most=limit_s)
        figures.add(f"{name}: nine of ten", p.p90_s, "s", at_most=limit_s and 2.0 * limit_s)
        if p.ahead is not None:
            figures.add(f"{name}: before 1 % of {AHEAD_S:g} s were late", 100.0 * p.ahead, "% of runs")
    for c in counts:
        figures.add(f"{c.kind}, {c.weeks:.2f} workload-weeks: alarms", c.alarms, at_most=c.allowed)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

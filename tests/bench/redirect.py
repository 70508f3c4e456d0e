"""From a broken SLO to its repair on real servers: a share is cut to half behind the guard's back.

    .venv/bin/python tests/bench/redirect.py            once with each client
    .venv/bin/python tests/bench/redirect.py --runs 10  the medians that count
    .venv/bin/python tests/bench/redirect.py --json

One Triton on half a core, its shadow on 10 % more, Poisson load over gRPC at the planned rate, by
tritonclient and by perf_analyzer in turn. Times count from the first answer above the SLO: `served` is when
the shadow gave its first answer, `held` when the last request above the SLO had ended. iGniter (its paper,
section 5.5) tells of 1.5 s until its load generator uses the shadow.

A run that a busy host spoiled (its SLO broken before the cut, or once more after) is left out and said, and
another made in its place, up to twice as many in all. A failed request, a client that gave up, a redirect
that did not come and anything left behind fail the bench, and stop no other run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import guard_rig as rig

from controlplane.domain.errors import EngineError
from controlplane.runtime.demo import clients

RATE_RPS = 100.0
SLO_MS = 50.0
WORK_S = 0.0025
PERCENT = 50.0
IGNITER_S = 1.5
LIMIT_SERVED_S = 1.2
LIMIT_HELD_S = 2.5
PERF = rig.ROOT / ".tools" / "perf"
PERF_S = 18.0
CLIENTS = ("tritonclient", "perf_analyzer")


@dataclass(frozen=True)
class Run:
    """One violation and its repair; seconds from the first answer above the SLO, `cut_s` from the cut.

    `late` answers were above the SLO, of requests that started after the cut.
    """

    client: str
    served_s: float
    held_s: float
    requests: int
    failed: int
    p99_before_ms: float
    p99_after_ms: float
    load_average: float
    cut_s: float
    late: int


def percentile(sorted_ms: list[float], q: float) -> float:
    return sorted_ms[min(len(sorted_ms) - 1, int(q * len(sorted_ms)))]


@dataclass
class PerfAnalyzer:
    """Load by perf_analyzer, for a fixed time; its requests are known once it has ended."""

    port: int
    directory: Path
    requests: list[rig.Request] = field(default_factory=list)

    def __enter__(self) -> PerfAnalyzer:
        data = self.directory / "input.json"
        data.write_text(json.dumps({"data": [{"X": [WORK_S]}]}))
        self._pool = ThreadPoolExecutor(1)
        self._seen = self._pool.submit(
            clients.perf_analyzer, PERF, f"127.0.0.1:{self.port}", "w", RATE_RPS, PERF_S, 120.0,
            input_data=str(data),
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        seen = self._seen.result()
        took_s = seen.latency_ms / 1000.0
        self.requests = [
            rig.Request(due, due + took, None) for due, took in zip(seen.due_s, took_s, strict=True)
        ]
        self.requests += [rig.Request(time.time(), time.time(), words) for words in seen.failures]

    def failed(self) -> list[rig.Request]:
        return [r for r in self.requests if r.error is not None]


def load(client: str, fleet: rig.Guarded, seed: int) -> PerfAnalyzer | rig.Load:
    if client == "perf_analyzer":
        return PerfAnalyzer(fleet.grpc, fleet.directory)
    return rig.Load(fleet.grpc, "w", RATE_RPS, WORK_S, seed=seed)


class Spoiled(Exception):
    """The host was so busy that the SLO was broken before the cut, or once more after."""


def one_run(directory: Path, client: str, seed: int) -> Run:
    """Raises Spoiled, EngineError where the client gave up, AssertionError where no redirect came."""
    with rig.guarded(directory) as fleet:
        fleet.apply(rig.plan(rig.partition("w", PERCENT, rate_rps=RATE_RPS, slo_ms=SLO_MS)))
        fleet.await_guarded()
        with load(client, fleet, seed) as under_way:
            time.sleep(8.0)
            if any(e.kind == "redirect" for e in fleet.events()):
                raise Spoiled("its SLO was broken before anything was cut")
            cut_s = time.time()
            fleet.cut_quota(PERCENT, PERCENT / 2)
            commit = fleet.await_event("commit", since_s=cut_s)
            time.sleep(6.0)
            again = sum(e.kind == "redirect" for e in fleet.events()) > 1
        if again:
            assert not under_way.failed(), under_way.failed()
            raise Spoiled("its SLO was broken once more")
        requests = [r for r in under_way.requests if r.error is None]
        ended = sorted(requests, key=lambda r: r.ended_s)
        violated_s = next(r.ended_s for r in ended if r.ended_s > cut_s and r.latency_ms > SLO_MS)
        served_s = min(r.ended_s for r in ended if r.started_s >= commit.at_s)
        # The queue of the old server: later stragglers are the settled shadow's own 1 %.
        late = [
            r.ended_s for r in ended if r.latency_ms > SLO_MS and cut_s <= r.started_s < commit.at_s + 1.0
        ]
        before = sorted(r.latency_ms for r in ended if r.ended_s < cut_s)
        after = sorted(r.latency_ms for r in ended if r.started_s > violated_s + LIMIT_HELD_S)
        return Run(
            client,
            served_s - violated_s,
            max(late) - violated_s,
            len(under_way.requests),
            len(under_way.failed()),
            percentile(before, 0.99),
            percentile(after, 0.99),
            os.getloadavg()[0],
            served_s - cut_s,
            len(late),
        )


@dataclass(frozen=True)
class LeftOut:
    """A try without a result; `broken`: by more than a busy host."""

    client: str
    why: str
    broken: bool


def tried(client: str, seed: int) -> Run | LeftOut:
    """Whatever becomes of one run, the others are made."""
    with tempfile.TemporaryDirectory(prefix="trisect-redirect-") as directory:
        try:
            return one_run(Path(directory), client, seed)
        except Spoiled as error:
            return LeftOut(client, str(error), broken=False)
        except (EngineError, subprocess.TimeoutExpired, AssertionError) as error:
            return LeftOut(client, str(error), broken=True)


@dataclass(frozen=True)
class Summary:
    """All runs with one client, seconds."""

    client: str
    runs: int
    served_s: tuple[float, float, float]
    held_s: tuple[float, float, float]
    cut_s: tuple[float, float, float]
    """The quickest, the median and the slowest."""
    late: float

    @staticmethod
    def of(client: str, runs: list[Run]) -> Summary:
        served, held = [r.served_s for r in runs], [r.held_s for r in runs]
        cut = [r.cut_s for r in runs]
        return Summary(
            client,
            len(runs),
            (min(served), statistics.median(served), max(served)),
            (min(held), statistics.median(held), max(held)),
            (min(cut), statistics.median(cut), max(cut)),
            statistics.median(r.late for r in runs),
        )

    @property
    def met(self) -> bool:
        return self.served_s[1] <= LIMIT_SERVED_S and self.held_s[1] <= LIMIT_HELD_S


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="with each client")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for client in CLIENTS:
        done = tries = 0
        while done < options.runs and tries < 2 * options.runs:
            tries += 1
            run = tried(client, seed=tries)
            if isinstance(run, Run):
                done += 1
                runs.append(run)
            else:
                left_out.append(run)
                print(f"{client}, try {tries} left out: {run.why[:200]}", file=sys.stderr, flush=True)
    summaries = [Summary.of(c, mine) for c in CLIENTS if (mine := [r for r in runs if r.client == c])]
    failed = sum(r.failed for r in runs)
    if options.json:
        told = {"runs": [asdict(r) for r in runs], "summaries": [asdict(s) for s in summaries]}
        print(json.dumps({**told, "left_out": [asdict(one) for one in left_out]}))
    else:
        print("client           cut s  served s   held s  late  requests  failed  P99 before, after ms  load")
        for r in runs:
            print(
                f"{r.client:13} {r.cut_s:8.2f} {r.served_s:9.2f} {r.held_s:8.2f} {r.late:5d} {r.requests:9d} "
                f"{r.failed:7d} {r.p99_before_ms:11.1f} {r.p99_after_ms:9.1f} {r.load_average:5.1f}"
            )
        print(f"{failed} failed; {len(left_out)} runs left out")
        for s in summaries:
            low, middle, high = s.served_s
            print(
                f"{s.client}, median of {s.runs}: ours {middle:.2f} s ({low:.2f} to {high:.2f}) to the "
                f"shadow's first answer, iGniter's paper {IGNITER_S} s, ratio {middle / IGNITER_S:.2f}; "
                f"{s.held_s[1]:.2f} s ({s.held_s[0]:.2f} to {s.held_s[2]:.2f}) to the last late one; "
                f"{s.cut_s[1]:.2f} s ({s.cut_s[0]:.2f} to {s.cut_s[2]:.2f}) from the cut, {s.late:.0f} late"
            )
    complete = all(s.runs == options.runs for s in summaries) and len(summaries) == len(CLIENTS)
    sound = failed == 0 and not any(one.broken for one in left_out)
    return 0 if sound and complete and all(s.met for s in summaries) else 1


if __name__ == "__main__":
    sys.exit(main())

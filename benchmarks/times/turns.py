"""Light models that take turns in one real Triton, beside the simulation and the bound that plans rest on.

    python -m benchmarks.times.turns [--seconds 60] [--runs 3]

Two, three and ten Python models, each busy for t(n) ms a batch of n whatever else runs, rendered by Trisect
and served by one Triton of which one model executes at a time. The SLO of each is the bound's P99 at the
planned rate; the simulation has the same
arrivals. Exit code 1 where the median ratio of a model lies outside 0.85 to 1.15, or an SLO is broken.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from known_service import KnownService
from open_load import open_loop
from sleeping_triton import request

from benchmarks.harness import Figures
from benchmarks.support.mixed_models import Mixed, plan_of, triton
from controlplane.latency.queueing.turns import bound_turns
from controlplane.profiler.load import ClosedLoop, poisson_times
from controlplane.simulate.arrivals import Trace
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions, Noise

BATCH = 4
WITHIN = 0.15
CASES = {
    "two": (Mixed("m0", 6.0, 2.0, 30.0), Mixed("m1", 25.0, 5.0, 8.0)),
    "three": (Mixed("m0", 4.0, 1.0, 30.0), Mixed("m1", 12.0, 3.0, 12.0), Mixed("m2", 30.0, 5.0, 4.0)),
    "ten": tuple(Mixed(f"m{n}", 4.0 + 2.0 * n, 1.0 + 0.3 * n, 5.0 - 0.4 * n) for n in range(10)),
}


@dataclass(frozen=True)
class Added:
    """What Triton adds on this machine: to the time a batch is busy, and outside of it."""

    occupied_ms: float
    frontend_ms: float


@contextmanager
def served(models: Sequence[Mixed]) -> Iterator[str]:
    """The gRPC address of one Triton whose models take turns, as a launcher starts it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        triton(Path(folder), plan_of(models, BATCH), models) as server,
    ):
        yield f"{server.host}:{server.grpc_port}"


def curve_ms(model: Mixed, added_ms: float) -> tuple[float, ...]:
    """The times of 1, 2, ... requests in a batch."""
    return tuple(model.batch_ms(n) + added_ms for n in range(1, BATCH + 1))


def measure_added(running: str, model: Mixed) -> Added:
    """A lone client, then two whose requests follow each other at once."""
    alone_ms, cycle_ms = (_median_ms(running, model, clients) for clients in (1, 2))
    # Of two clients one always waits, and each batch holds one request: a latency is two cycles.
    occupied = max(cycle_ms / 2.0 - model.fixed_ms - model.each_ms, 0.0)
    return Added(occupied, max(alone_ms - model.fixed_ms - model.each_ms - occupied, 0.0))


def _median_ms(running: str, model: Mixed, clients: int) -> float:
    with ClosedLoop(running, [request(model.name)], clients) as loop:
        loop.run(3.0)
        return float(np.median(loop.answers(5).latency_ms))


def run(
    running: str, models: Sequence[Mixed], added: Added, seconds: float, seed: int
) -> list[tuple[float, float]]:
    """P99 in ms of each model: in the real Triton, and simulated with the same arrivals."""
    random = np.random.default_rng(seed)
    due = [poisson_times(m.rate_rps, seconds, random) for m in models]
    with ThreadPoolExecutor(len(models)) as clients:
        asked = [
            clients.submit(open_loop, running, request(m.name), times, deadline_s=60.0)
            for m, times in zip(models, due, strict=True)
        ]
        seen = [float(np.quantile(a.result().latency_ms, 0.99)) for a in asked]
    simulated = simulate(
        plan_of(models, BATCH),
        {"cpu": KnownService({m.name: curve_ms(m, added.occupied_ms) for m in models})},
        Settings(
            seconds=seconds,
            seed=seed,
            demands={m.name: Trace(tuple(t)) for m, t in zip(models, due, strict=True)},
        ),
        Conditions(noise={("cpu", m.name): Noise(0.0, added.frontend_ms) for m in models}),
    )
    p99 = {w.name: w.p99_ms for w in simulated.workloads}
    return [(ms, p99[m.name]) for m, ms in zip(models, seen, strict=True)]


def case(figures: Figures, name: str, models: Sequence[Mixed], added: Added, how: tuple[float, int]) -> None:
    """The figures of one partition, a new server for each of so many runs of so many seconds."""
    seconds, runs = how
    curves = [np.array(curve_ms(m, added.occupied_ms)) for m in models]
    bound_ms = bound_turns([m.rate_rps for m in models], curves).p99_ms + added.frontend_ms
    seen = []
    for seed in range(runs):
        # What goes next depends on how often each ran since the server started.
        with served(models) as running:
            for model in models:  # the first execution is a slow one
                open_loop(running, request(model.name), [0.0], deadline_s=60.0)
            seen.append(run(running, models, added, seconds, seed))
    for n, m in enumerate(models):
        pairs = [one[n] for one in seen]
        ratio = float(np.median([real / simulated for real, simulated in pairs]))
        late = sum(real > bound_ms[n] for real, _ in pairs)
        least, most = 1.0 - WITHIN, 1.0 + WITHIN
        figures.add(f"{name}, {m.name}: P99 over simulated", ratio, at_least=least, at_most=most)
        figures.add(f"{name}, {m.name}: runs above the bound of {bound_ms[n]:.1f} ms", late, at_most=0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    lone = CASES["two"][0]
    with served([lone]) as running:
        added = measure_added(running, lone)
    figures = Figures()
    figures.add("Triton adds to a batch", added.occupied_ms, "ms")
    figures.add("and outside of it", added.frontend_ms, "ms")
    for name, models in CASES.items():
        case(figures, name, models, added, (chosen.seconds, chosen.runs))
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

"""What clients that send several inferences in a request cost, and whether that is foretold.

`python -m benchmarks.serving.client_batch triton [--client-batches 1 4 8]`: a model that keeps its
instance for a known time, on the real Triton, profiled, planned and loaded. Ours are the P99 that the plan
and the simulator foretell, the reference is the P99 seen, the median of three runs. Everything sleeps nearly
all the time and runs at real-time priority where that is allowed: the queue is compared, not the host.

`share --profiles DIR`: a sample model on a share of one core, after `profile --profiles DIR`. A quota's
processes compete with whatever else the host runs: this one needs a quiet host.

Exits 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from open_load import open_loop
from sleeping_triton import EACH_MS, FIXED_MS, Served, overhead, request, sleeping
from tritonclient.grpc.service_pb2 import ModelInferRequest

from benchmarks.harness import Figures
from controlplane.domain.device import Device, GpuPool, ShareGrid, ShareKind
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.domain.workload import ShadowPolicy, ShadowWish, Workload
from controlplane.files.measurements.profiles import read_profiles, write_profile
from controlplane.latency import registry as latency_registry
from controlplane.planning import registry
from controlplane.planning.protocol import Device as PlanningDevice
from controlplane.planning.protocol import PlanRequest
from controlplane.profiler.load import poisson_times
from controlplane.profiler.requests import Wishes, read_subject, request_of, requests_for
from controlplane.profiler.session import Place, Profiler, endpoint_of
from controlplane.render.source import SourceModel, read_source
from controlplane.runtime import SystemClock
from controlplane.simulate.arrivals import Trace
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions, noise_of
from launchers.process import ProcessLauncher

REPOSITORY = Path(__file__).parents[2] / "model_repository"
SHARES = ShareGrid(minimum_percent=60.0, step_percent=20.0)
CPU = Device("cpu", ShareKind.CPU_QUOTA, SHARES)
WHOLE = replace(CPU, grid=ShareGrid(minimum_percent=100.0, step_percent=100.0))
"""Who sleeps needs no share."""
POINTS = Wishes(percents=SHARES.percents(), batches=(1, 2, 4, 8, 16), budget_s=90.0)
"""Every share that a plan may choose is measured: interpolation is another bench's subject."""
SAMPLE = "transformer_tiny"
RUNS = 3
SHORTEST_S = 20.0
LEAST, MOST = 0.95, 1.15
"""Of what is foretold over what is seen."""


class Quiet:
    """No progress: the table is the result."""

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Row:
    """One client batch on the real Triton; P99s in ms, of each run."""

    client_batch: int
    percent: float
    batch: int
    predicted: float
    simulated: tuple[float, ...]
    observed: tuple[float, ...]

    def figures(self) -> tuple[tuple[str, float, float], ...]:
        """What was foretold by which means, and its ratio to what was seen."""
        seen = float(np.median(self.observed))
        told = (("predicted", self.predicted), ("simulated", float(np.median(self.simulated))))
        return tuple((means, ms, ms / seen) for means, ms in told)


def sent_to(endpoint: str, source: SourceModel, client_batch: int) -> bytes:
    """A request of so many inferences."""
    made: ModelInferRequest = request_of(requests_for(source), client_batch)
    made.model_name = endpoint
    sent: bytes = made.SerializeToString()
    return sent


def planned(asked: Workload, device: PlanningDevice) -> Plan:
    """By the times that are expected: headroom would hide an error of up to as much."""
    request = PlanRequest((asked,), {"cpu": device}, Rule.P99, SystemClock(), quantile=0.5)
    return registry.strategy("joint").plan(request)


def device_of(profiles: Mapping[str, Profile], device: Device) -> PlanningDevice:
    return PlanningDevice(GpuPool(device, 1, 0.0), latency_registry.build("ours", device, profiles), profiles)


def loaded(plan: Plan, device: PlanningDevice, target: str, sent: bytes, requests: int) -> Row:
    """The one workload of a plan, served at `target` as planned, loaded `RUNS` times."""
    ((_, partition, placement),) = plan.placements()
    rate = placement.requests_rps
    # A second holds many requests of one inference, and a queue remembers longer than eight of them.
    requests = max(requests, round(rate * SHORTEST_S))
    conditions = Conditions(noise=noise_of({"cpu": device.profiles}))
    open_loop(target, sent, [0.2 * i for i in range(10)], deadline_s=30.0)
    simulated, observed = [], []
    for seed in range(RUNS):
        due = poisson_times(rate, requests / rate, np.random.default_rng(seed))
        seen = open_loop(target, sent, due, deadline_s=30.0).latency_ms
        observed.append(float(np.quantile(seen, 0.99)))
        settings = Settings(requests / rate, seed=seed, demands={placement.name: Trace(tuple(due))})
        (told,) = simulate(plan, {"cpu": device.latency}, settings, conditions).workloads
        simulated.append(told.p99_ms)
    predicted = placement.predicted.p99_ms
    assert predicted is not None
    return Row(
        placement.client_batch,
        partition.percent,
        partition.models[0].batch,
        predicted,
        tuple(simulated),
        tuple(observed),
    )


def sleeping_profile() -> Profile:
    """Of the model that sleeps, with what Triton adds on this host."""
    models = [Served(batch, 1, 0) for batch in POINTS.batches or ()]
    with sleeping(models) as running:
        added = {model.batch: overhead(running, model) for model in models}
    points = []
    for batch, one in added.items():
        ms = FIXED_MS + EACH_MS * batch + one.occupied_ms
        points.append(Measurement(100.0, batch, ms, capacity_rps=1000.0 * batch / ms))
    return Profile(
        "sleeping",
        "cpu",
        ShareKind.CPU_QUOTA,
        Environment(),
        tuple(points),
        jitter=float(np.median([one.jitter for one in added.values()])),
        frontend_ms=float(np.median([one.frontend_ms for one in added.values()])),
        max_batch=max(added),
    )


def triton(options: argparse.Namespace) -> int:
    """The model that sleeps."""
    device = device_of({"sleeping": sleeping_profile()}, WHOLE)
    rows = []
    for k in options.client_batches:
        plan = planned(asked_for("sleeping", options, k), device)
        ((_, partition, _),) = plan.placements()
        model = Served(partition.models[0].batch, 1, 0)
        with sleeping([model]) as running:
            rows.append(loaded(plan, device, running.grpc, request(model, k), options.requests))
    return shown("sleeping", options, rows)


def share(options: argparse.Namespace, profiler: Profiler, place: Place) -> int:
    """A sample model on a share of one core."""
    device = device_of(read_profiles(options.profiles, "cpu"), CPU)
    source, rows = read_source(REPOSITORY, SAMPLE), []
    for k in options.client_batches:
        plan = planned(asked_for(SAMPLE, options, k), device)
        ((_, partition, _),) = plan.placements()
        batch = partition.models[0].batch
        with (
            profiler.exclusive(place),
            profiler.serving(source, place, partition.percent, (batch,)) as server,
        ):
            target, sent = (
                f"{server.host}:{server.grpc_port}",
                sent_to(endpoint_of(SAMPLE, batch), source, k),
            )
            rows.append(loaded(plan, device, target, sent, options.requests))
    return shown(SAMPLE, options, rows)


def shown(model: str, options: argparse.Namespace, rows: Sequence[Row]) -> int:
    """Print the figures; return the exit code."""
    figures = Figures()
    for row in rows:
        what = f"{model}, {options.rate:g}/s, {row.client_batch} a request, {row.percent:g} % b{row.batch}"
        figures.add(
            f"{what}: P99 of the median run", float(np.median(row.observed)), "ms", at_most=options.slo
        )
        for means, _, ratio in row.figures():
            figures.add(f"{what}: {means} over it", ratio, at_least=LEAST, at_most=MOST)
    return figures.end()


def asked_for(model: str, options: argparse.Namespace, client_batch: int) -> Workload:
    shadow = ShadowWish(ShadowPolicy.NONE)
    return Workload("w", model, options.slo, options.rate, "w", client_batch=client_batch, shadow=shadow)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["triton", "profile", "share"], nargs="?", default="triton")
    parser.add_argument("--profiles", type=Path, default=Path("/tmp/client-batch-profiles"))
    parser.add_argument("--device", default="cpu-1")
    parser.add_argument("--rate", type=float, default=120.0, help="inferences per second")
    parser.add_argument("--slo", type=float, default=200.0)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--client-batches", type=int, nargs="+", default=[1, 4, 8])
    options = parser.parse_args()
    if options.what == "triton":
        return triton(options)
    place = Place(CPU, options.device)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        launcher = ProcessLauncher(root / "state")
        profiler = Profiler(launcher, SystemClock(), Quiet(), options.profiles, root / "scratch")
        if options.what == "share":
            return share(options, profiler, place)
        profile = profiler.measure(read_subject(REPOSITORY, SAMPLE, CPU, POINTS), place, resume=False).profile
        print(f"written: {write_profile(options.profiles, profile)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

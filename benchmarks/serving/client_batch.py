"""What clients that send several inferences in a request cost, and whether that is foretold.

`python -m benchmarks.serving.client_batch [--client-batches 1 4 8]`: a model that keeps its
instance for a known time, on the real Triton, profiled, planned and loaded. Ours are the P99 that the plan
and the simulator foretell, the reference is the P99 seen, the median of three runs. Everything sleeps nearly
all the time and runs at real-time priority where that is allowed: the queue is compared, not the host.

Exits 1 where an aim is missed.
"""

import argparse
import sys

import numpy as np
from open_load import open_loop
from sleeping_triton import EACH_MS, FIXED_MS, Served, overhead, request, sleeping

from benchmarks.harness import Figures
from controlplane.domain.device import Device, GpuPool, ShareGrid, ShareKind
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.profile import Environment, Measurement, Profile
from controlplane.domain.workload import ShadowPolicy, ShadowWish, Workload
from controlplane.latency import registry as latency_registry
from controlplane.planning import registry
from controlplane.planning.protocol import Device as PlanningDevice
from controlplane.planning.protocol import PlanRequest
from controlplane.profiler.load import poisson_times
from controlplane.runtime import SystemClock
from controlplane.simulate.arrivals import Trace
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions, noise_of

CPU = Device("cpu", ShareKind.CPU_QUOTA, ShareGrid(minimum_percent=100.0, step_percent=100.0))
"""What sleeps needs no share."""
BATCHES = (1, 2, 4, 8, 16)
RUNS = 3
SHORTEST_S = 20.0
LEAST, MOST = 0.95, 1.15
"""Of what is foretold over what is seen."""


def planned(asked: Workload, device: PlanningDevice) -> Plan:
    """By the times that are expected: headroom would hide an error of up to as much."""
    request = PlanRequest((asked,), {"cpu": device}, Rule.P99, SystemClock(), quantile=0.5)
    return registry.strategy("joint").plan(request)


def loaded(plan: Plan, device: PlanningDevice, target: str, sent: bytes, requests: int) -> dict[str, float]:
    """P99s in ms of the one workload of a plan, served at `target` as planned, loaded `RUNS` times."""
    ((_, _, placement),) = plan.placements()
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
    medians = {"simulated": float(np.median(simulated)), "observed": float(np.median(observed))}
    return {"predicted": predicted, **medians}


def sleeping_profile() -> Profile:
    """Of the model that sleeps, with what Triton adds on this host."""
    models = [Served(batch, 1, 0) for batch in BATCHES]
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


def measure(options: argparse.Namespace, figures: Figures) -> None:
    """The model that sleeps, with each client batch."""
    profile = sleeping_profile()
    latency = latency_registry.build("ours", CPU, {"sleeping": profile})
    device = PlanningDevice(GpuPool(CPU, 1, 0.0), latency, {"sleeping": profile})
    for k in options.client_batches:
        shadow = ShadowWish(ShadowPolicy.NONE)
        asked = Workload("w", "sleeping", options.slo, options.rate, "w", client_batch=k, shadow=shadow)
        plan = planned(asked, device)
        ((_, partition, _),) = plan.placements()
        model = Served(partition.models[0].batch, 1, 0)
        with sleeping([model]) as running:
            found = loaded(plan, device, running.grpc, request(model.name, k), options.requests)
        what, seen = f"{options.rate:g}/s, {k} a request, batch {model.batch}", found["observed"]
        figures.add(f"{what}: P99 of the median run", seen, "ms", at_most=options.slo)
        for means in ("predicted", "simulated"):
            figures.add(f"{what}: {means} over it", found[means] / seen, at_least=LEAST, at_most=MOST)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=120.0, help="inferences per second")
    parser.add_argument("--slo", type=float, default=200.0)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--client-batches", type=int, nargs="+", default=[1, 4, 8])
    figures = Figures()
    measure(parser.parse_args(), figures)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

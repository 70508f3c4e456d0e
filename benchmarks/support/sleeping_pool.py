"""A pool of real Tritons behind the real gateway, beside the simulator on the same arrivals.

As in `sleeping_triton` a model keeps its instance for t(k) ms a batch of k, whatever else runs, so what is
compared is how requests are spread and batched. Beside it, the same servers as they were behind one queue.
Once more as users have it, applied by ctl, each on a share of a core: there t(k) is what those Tritons say.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import direct
import numpy as np
from bare_triton import BareTriton
from ctl_fleet import plan
from gateway_rig import a_gateway
from guard_rig import Guarded
from known_service import KnownService
from open_load import open_loop
from sleeping_triton import (
    EACH_MS,
    FIXED_MS,
    Overhead,
    Served,
    ahead_of_others,
    lay_out,
    overhead,
    request,
    sleeping,
)

from controlplane.domain.fleet import Backend, Route
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.files.gateway import read_slots
from controlplane.profiler.load import ClosedLoop, poisson_times
from controlplane.simulate.arrivals import Trace
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions, Noise

MODELS = [Served(1, 1, 0), Served(4, 1, 0), Served(8, 1, 0)]
SERVERS = 3


@dataclass(frozen=True)
class Pooled:
    """Tritons and the gateway that has them all behind one endpoint a model."""

    tritons: tuple[BareTriton, ...]
    grpc: str


@contextmanager
def pooled() -> Iterator[Pooled]:
    """SERVERS Tritons that all serve MODELS, behind a gateway."""
    with ahead_of_others(), ExitStack() as stack:
        tritons = tuple(stack.enter_context(sleeping(MODELS)) for _ in range(SERVERS))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway, ports = stack.enter_context(a_gateway(directory))
        members = tuple(
            Backend(f"t{i}", "127.0.0.1", t.http_port, t.grpc_port) for i, t in enumerate(tritons)
        )
        gateway.commit({m.name: Route(members) for m in MODELS})
        yield Pooled(tritons, f"127.0.0.1:{ports.grpc}")


def added(pool: Pooled, model: Served) -> Overhead:
    """What a Triton adds, measured at one without the gateway; the front end's share with it."""
    bare = overhead(pool.tritons[0], model)
    with ClosedLoop(pool.grpc, [request(model)], 1) as lone:
        lone.run(2.0)
        alone_ms = float(np.median(lone.answers(5).latency_ms))
    frontend_ms = max(alone_ms - FIXED_MS - EACH_MS - bare.occupied_ms, 0.0)
    return Overhead(bare.occupied_ms, bare.jitter, frontend_ms)


def plan_of(model: Served, rate: float, *, apart: bool) -> Plan:
    """SERVERS partitions, or one with as many instances: one queue."""
    parts, instances = (SERVERS, 1) if apart else (1, SERVERS)
    served = ServedModel("m", model.batch, instances)
    placement = Placement("w", "w", "m", rate / parts, 1000.0)
    gpus = tuple(
        PlannedGpu(f"t4-{i}", "t4", (Partition(f"p{i}", 100.0, (served,), (placement,)),))
        for i in range(parts)
    )
    return Plan("by-hand", Rule.P99, "known", gpus)


@dataclass(frozen=True)
class Law:
    """What a server is known to do: t(k) in ms, its jitter and what a request spends elsewhere."""

    service_ms: tuple[float, ...]
    jitter: float
    frontend_ms: float

    @staticmethod
    def of(model: Served, more: Overhead) -> Law:
        """As the model says it sleeps."""
        service = tuple(FIXED_MS + EACH_MS * k + more.occupied_ms for k in range(1, model.batch + 1))
        return Law(service, more.jitter, more.frontend_ms)


def simulated(model: Served, law: Law, rate: float, due: list[float], seconds: float) -> np.ndarray:
    """P50 and P99 in ms, as a pool and as one queue; shape (2, 2)."""
    truth = {"t4": KnownService({"m": law.service_ms})}
    settings = Settings(seconds=seconds, demands={"w": Trace(tuple(due))})
    conditions = Conditions(noise={("t4", "m"): Noise(law.jitter, law.frontend_ms)})
    outcomes = [
        simulate(plan_of(model, rate, apart=apart), truth, settings, conditions).workloads[0]
        for apart in (True, False)
    ]
    return np.array([(o.p50_ms, o.p99_ms) for o in outcomes])


def compare(
    pool: Pooled, model: Served, more: Overhead, load: float, seconds: float, seed: int
) -> np.ndarray:
    """P50 and P99 in ms: measured, simulated as a pool, simulated as one queue; shape (3, 2)."""
    rate = load * SERVERS * model.capacity_rps
    due = poisson_times(rate, seconds, np.random.default_rng(seed))
    seen = open_loop(pool.grpc, request(model), due, deadline_s=30.0).latency_ms
    measured = np.quantile(seen, [0.5, 0.99])
    return np.vstack([measured, simulated(model, Law.of(model, more), rate, due, seconds)])


def told(backends: list[Backend], endpoint: str, batch: int) -> tuple[float, ...]:
    """t(k) in ms by the statistics of these Tritons together; never falling."""
    count, total = np.zeros(batch), np.zeros(batch)
    for backend in backends:
        (stats,) = direct.get(backend, f"/v2/models/{endpoint}/stats")["model_stats"]
        for row in stats["batch_stats"]:
            k = row["batch_size"] - 1
            count[k] += row["compute_infer"]["count"]
            total[k] += sum(row[part]["ns"] for part in ("compute_input", "compute_infer", "compute_output"))
    return tuple(np.maximum.accumulate(total / np.maximum(count, 1) / 1e6).tolist())


def applied_table(seconds: float = 15.0, repeats: int = 3) -> None:
    """The same through `ctl apply`: SERVERS partitions of 30 % of a core. Not judged: shares are noisy."""
    model, full_ms = Served(8, 1, 0), 40.0
    with ahead_of_others(), tempfile.TemporaryDirectory() as folder, Guarded(Path(folder)) as fleet:
        lay_out(fleet.repository, model)
        rate = SERVERS * 1000.0 * model.batch / full_ms
        workload = {"name": model.name, "endpoint": model.name, "model": model.name, "slo_ms": 200.0}
        parts = [
            {
                "id": f"p{i}",
                "percent": 30.0,
                "models": [{"model": model.name, "batch": model.batch}],
                "workloads": [{**workload, "rate_rps": 0.8 * rate / SERVERS}],
            }
            for i in range(SERVERS)
        ]
        fleet.apply(plan(*parts), "--no-controller")
        target = f"127.0.0.1:{fleet.grpc}"
        (slot,) = read_slots(fleet.files / "gateway" / "slots.json").slots
        with ClosedLoop(target, [request(model)], 1) as lone:
            lone.run(3.0)
            alone_ms = float(np.median(lone.answers(5).latency_ms))
        runs = []
        for load, seed in itertools.product((0.6, 0.8), range(repeats)):
            due = poisson_times(load * rate, seconds, np.random.default_rng(seed))
            seen = open_loop(target, request(model), due, deadline_s=30.0).latency_ms
            runs.append((load, due, float(np.quantile(seen, 0.99))))
        service = told(list(slot.members), model.name, model.batch)
    law = Law(service, 0.0, max(alone_ms - service[0], 0.0))
    told_ms = " ".join(f"{t:.1f}" for t in service)
    print(f"\n{SERVERS} partitions of 30 % of a core, by ctl apply; t(k) {told_ms} ms")
    print("load    real    pool   error  one queue   error, P99 in ms")
    for load, due, real in runs:
        pool_ms, one_ms = simulated(model, law, load * rate, due, seconds)[:, 1]
        row = f"{load:.2f} {real:7.2f} {pool_ms:7.2f} {100 * (pool_ms / real - 1):5.1f} %"
        print(row, f"{one_ms:9.2f} {100 * (one_ms / real - 1):5.1f} %", flush=True)


def table(seconds: float = 20.0, repeats: int = 3) -> bool:
    """Print every configuration; True where the pool's P99 is within 8 %, by the median repeat."""
    held = True
    with pooled() as pool:
        print(f"\n{SERVERS} Tritons behind HAProxy, {repeats} repeats of {seconds:g} s; medians, P99 in ms")
        print(f"load of the host {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print("batch  load    real    pool   error (repeats)            one queue   error")
        for model in MODELS:
            more = added(pool, model)
            for load in (0.6, 0.8):
                both = [compare(pool, model, more, load, seconds, seed) for seed in range(repeats)]
                runs = np.array(both)[:, :, 1]
                errors = 100.0 * (runs[:, 1:] / runs[:, :1] - 1.0)
                real, pool_ms, one_ms = np.median(runs, axis=0)
                pool_error, one_error = np.median(errors, axis=0)
                held &= bool(abs(pool_error) <= 8.0)
                each = "/".join(f"{e:.1f}" for e in errors[:, 0])
                row = f"{model.batch:5d}  {load:.2f} {real:7.2f} {pool_ms:7.2f} {pool_error:6.1f} %"
                print(row, f"({each:18s})  {one_ms:9.2f} {one_error:6.1f} %", flush=True)
    return held

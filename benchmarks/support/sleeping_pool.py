"""A pool of real Tritons behind the real gateway, beside the simulator on the same arrivals.

As in `sleeping_triton` a model keeps its instance for t(k) ms a batch of k, whatever else runs, so what is
compared is how requests are spread and batched. Beside it, the same servers as they were behind one queue.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bare_triton import BareTriton
from gateway_rig import a_gateway
from open_load import open_loop
from sleeping_triton import (
    EACH_MS,
    FIXED_MS,
    Overhead,
    Served,
    ahead_of_others,
    overhead,
    request,
    simulated,
    sleeping,
)

from controlplane.domain.fleet import Backend, Route
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.profiler.load import ClosedLoop, poisson_times

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
    with ClosedLoop(pool.grpc, [request(model.name)], 1) as lone:
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


def compare(
    pool: Pooled, model: Served, more: Overhead, load: float, seconds: float, seed: int
) -> np.ndarray:
    """P50 and P99 in ms: measured, simulated as a pool, simulated as one queue; shape (3, 2)."""
    rate = load * SERVERS * model.capacity_rps
    due = poisson_times(rate, seconds, np.random.default_rng(seed))
    seen = open_loop(pool.grpc, request(model.name), due, deadline_s=30.0).latency_ms
    measured = np.quantile(seen, [0.5, 0.99])
    outcomes = [
        simulated(plan_of(model, rate, apart=apart), model, more, due, seconds) for apart in (True, False)
    ]
    return np.vstack([measured, *((one.p50_ms, one.p99_ms) for one in outcomes)])


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

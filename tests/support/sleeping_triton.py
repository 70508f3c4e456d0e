"""The real Triton with models of known service time, beside the simulator on the same arrivals.

A model keeps its instance for t(k) ms a batch of k, whatever else runs, so what is compared is the batcher.
What Triton adds is measured on runs of their own: the time beyond t(k) that a batch occupies its instance,
its jitter, and the front end's share of a lone request.
"""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from background import meanwhile
from bare_triton import BareTriton, bare_triton
from known_service import KnownService
from model_files import timed, write
from open_load import open_loop
from tritonclient.grpc.service_pb2 import ModelInferRequest

from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.profiler.load import ClosedLoop, poisson_times
from controlplane.simulate.arrivals import Trace
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions, Noise
from controlplane.simulate.result import WorkloadOutcome

FIXED_MS, EACH_MS = 15.0, 2.5
CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: {batch}
input {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group {{ count: {instances} kind: KIND_CPU }}
dynamic_batching {{ preferred_batch_size: [ {batch} ] max_queue_delay_microseconds: {delay_us} }}
"""


@dataclass(frozen=True)
class Served:
    """One model of the repository."""

    batch: int
    instances: int
    delay_us: int

    @property
    def name(self) -> str:
        return f"sleep_{self.batch}_{self.instances}_{self.delay_us}"

    @property
    def capacity_rps(self) -> float:
        return 1000.0 * self.instances * self.batch / (FIXED_MS + EACH_MS * self.batch)


@dataclass(frozen=True)
class Overhead:
    """What Triton adds on this machine, from runs of their own."""

    occupied_ms: float
    jitter: float
    frontend_ms: float


LATE_TIMES = 5.0
"""So many threads have to be woken for a request, and for what the time beyond t(k) was measured with."""


@dataclass(frozen=True)
class Compared:
    """P50 and P99 in ms, measured and simulated on the same arrivals.

    `host_ms` is what the host may have added to each: how late it let a thread go on meanwhile.
    """

    measured: tuple[float, float]
    simulated: tuple[float, float]
    host_ms: tuple[float, float]

    @property
    def errors_percent(self) -> tuple[float, float]:
        p50, p99 = (100.0 * (s / m - 1.0) for s, m in zip(self.simulated, self.measured, strict=True))
        return p50, p99

    @property
    def host_percent(self) -> tuple[float, float]:
        """The same in percent of what was measured."""
        p50, p99 = (100.0 * h / m for h, m in zip(self.host_ms, self.measured, strict=True))
        return p50, p99


@contextmanager
def watched() -> Iterator[list[float]]:
    """How many ms late the host lets a thread go on that sleeps for a moment, again and again."""
    late_ms: list[float] = []

    def sleep(ended: threading.Event) -> None:
        while not ended.is_set():
            start = time.perf_counter()
            time.sleep(0.005)
            late_ms.append(1000.0 * (time.perf_counter() - start) - 5.0)

    with meanwhile(sleep):
        yield late_ms


@contextmanager
def ahead_of_others() -> Iterator[None]:
    """Where allowed, this thread and all it starts run before whatever else keeps the machine busy.

    They sleep nearly all the time; without it a host shared with others is what would be measured.
    """
    before, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, before, priority)


def lay_out(repository: Path, model: Served, fixed_ms: float = FIXED_MS) -> None:
    """Write the model into a repository."""
    config = CONFIG.format(
        name=model.name, batch=model.batch, instances=model.instances, delay_us=model.delay_us
    )
    write(repository, model.name, timed(fixed_ms, EACH_MS), config)


@contextmanager
def sleeping(models: list[Served]) -> Iterator[BareTriton]:
    """A Triton that serves these models."""
    with ahead_of_others(), tempfile.TemporaryDirectory() as folder:
        for model in models:
            lay_out(Path(folder, "models"), model)
        with bare_triton(Path(folder, "models"), Path(folder, "log")) as running:
            yield running


def request(model: str, client_batch: int = 1, value: float = 1.0) -> bytes:
    asked = ModelInferRequest(model_name=model)
    asked.inputs.add(name="X", datatype="FP32", shape=[client_batch, 1])
    asked.raw_input_contents.append(np.full(client_batch, value, np.float32).tobytes())
    return asked.SerializeToString()


def overhead(running: BareTriton, model: Served, seconds: float = 2.0) -> Overhead:
    """Measured alone: a lone client, then a closed loop that keeps every batch full."""
    assert model.instances == 1
    assert model.delay_us == 0
    with ClosedLoop(running.grpc, [request(model.name)], 1) as lone:
        lone.run(seconds)
        alone_ms = float(np.median(lone.answers(5).latency_ms))
    # Two clients that send full batches: one always waits, so batches run back to back.
    with ClosedLoop(running.grpc, [request(model.name, model.batch)], 2) as full:
        full.run(seconds)
        ended = full.answers(4).ended_s
    gaps = 1000.0 * np.diff(ended)
    # The median: a hiccup of the client delays one end and hastens the next.
    cycle_ms = float(np.median(gaps))
    spread = float(np.subtract(*np.quantile(gaps, [0.84, 0.16]))) / 2.0 / np.sqrt(2.0)
    occupied = max(cycle_ms - FIXED_MS - EACH_MS * model.batch, 0.0)
    return Overhead(occupied, spread / cycle_ms, max(alone_ms - FIXED_MS - EACH_MS - occupied, 0.0))


def simulated(
    plan: Plan, model: Served, added: Overhead, due: list[float], seconds: float, seed: int = 1
) -> WorkloadOutcome:
    """What the simulator makes of these arrivals: it knows how long the model sleeps and what Triton adds."""
    service_ms = tuple(FIXED_MS + EACH_MS * k + added.occupied_ms for k in range(1, model.batch + 1))
    return simulate(
        plan,
        {"t4": KnownService({"m": service_ms})},
        Settings(seconds=seconds, seed=seed, demands={"w": Trace(tuple(due))}),
        Conditions(noise={("t4", "m"): Noise(added.jitter, added.frontend_ms)}),
    ).workloads[0]


def compare(
    running: BareTriton, model: Served, added: Overhead, load: float, seconds: float, seed: int
) -> Compared:
    """Poisson requests to the real one; the simulator on the same arrival times."""
    rate = load * model.capacity_rps
    due = poisson_times(rate, seconds, np.random.default_rng(seed))
    with watched() as late_ms:
        seen = open_loop(running.grpc, request(model.name), due, deadline_s=30.0).latency_ms
    placement = Placement("w", "w", "m", rate, 1000.0)
    served = ServedModel("m", model.batch, model.instances, model.delay_us)
    gpu = PlannedGpu("t4-0", "t4", (Partition("p", 100.0, (served,), (placement,)),))
    plan = Plan("by-hand", Rule.P99, "known", (gpu,))
    result = simulated(plan, model, added, due, seconds, seed)
    p50, p99 = (float(q) for q in np.quantile(seen, [0.5, 0.99]))
    # Of several threads one is rather late: the tenth for the median, the hundredth for P99.
    host50, host99 = (LATE_TIMES * float(q) for q in np.quantile(late_ms, [0.9, 0.99]))
    return Compared((p50, p99), (result.p50_ms, result.p99_ms), (host50, host99))


def table(*, full: bool) -> bool:
    """Print every configuration; True where P50 is within 8 % and P99 within 15 %, by the median repeat.

    The median, because a shared host stalls now and then and only ever slows the real server down.
    """
    batches, loads, repeats = (4, 8), (0.3, 0.5, 0.75) if full else (0.3, 0.75), 3 if full else 2
    models = [Served(b, i, d) for b in batches for i in (1, 2) for d in (0, 5000)]
    if not full:
        models = [m for m in models if (m.instances, m.delay_us) in {(1, 0), (2, 5000)}]
    held = True
    wanted = {Served(b, 1, 0) for b in batches} | set(models)
    with sleeping(sorted(wanted, key=lambda m: m.name)) as running:
        added = {b: overhead(running, Served(b, 1, 0)) for b in batches}
        for b, one in added.items():
            print(
                f"batch {b}: +{one.occupied_ms:.2f} ms a batch, jitter {one.jitter:.3f}, "
                f"front end {one.frontend_ms:.2f} ms"
            )
        print(
            f"{repeats} repeats of 12 s; load of the host {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
        print(
            "batch inst delay load   P50 real  simulated   error, %  (repeats)"
            "      P99 real  simulated   error, %  (repeats)"
        )
        for model in models:
            for load in loads:
                runs = [
                    compare(running, model, added[model.batch], load, 12.0, seed) for seed in range(repeats)
                ]
                real, ours = (np.array([getattr(r, n) for r in runs]) for n in ("measured", "simulated"))
                errors = np.array([r.errors_percent for r in runs])
                middle = np.median(errors, axis=0)
                good = abs(middle[0]) <= 8.0 and abs(middle[1]) <= 15.0
                held &= bool(good)
                each = ["/".join(f"{e:.1f}" for e in column) for column in errors.T]
                row = f"{model.batch:5d} {model.instances:4d} {model.delay_us / 1000:4.0f}  {load:.2f}"
                for i in range(2):
                    medians = f"{np.median(real[:, i]):10.2f} {np.median(ours[:, i]):9.2f}"
                    row += f" {medians}  {middle[i]:8.1f}  ({each[i]:18s})"
                print(row, "" if good else "MISSED", flush=True)
    return held

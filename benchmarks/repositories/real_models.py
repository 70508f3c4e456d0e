"""Real models from Python packages: profiled, planned, applied, and loaded at the planned rates.

    python -m benchmarks.repositories.real_models [--seconds 120] [--runs 3]

Speech in a second of audio (silero-vad), pitches in three seconds (basic-pitch), the layout and the reading
of a line of text (rapidocr-onnxruntime) and an embedding of speech (openwakeword), each in Triton's Python
backend on onnxruntime. The wheels come from pip into .tools/real-models. One core is planned; the clients
have the others. Every model is profiled on the inputs that its client then sends. The P99 that the plan
predicts, with its cautions left out one after the other, and that `ctl simulate` finds are compared with what
the clients saw in the median of the runs; exit code 1 where an SLO does not hold, a prediction misses or a
request fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from host_ports import free_ports

from benchmarks.harness import Figures, show, table
from benchmarks.support import real_repository
from benchmarks.support.real_repository import ROOT
from controlplane.domain.errors import EngineError
from controlplane.domain.plan import Plan
from controlplane.files.plans import read_plan
from controlplane.planning.judge.evaluate import Terms, judge
from controlplane.planning.protocol import Device
from controlplane.profiler.load import off_core, poisson_times
from controlplane.profiler.requests import Inputs, requests_for
from controlplane.render.source import read_source
from controlplane.runtime.demo import clients
from controlplane.runtime.demo.clients import LATE_S, Seen, Tensor, paced, seen_of
from controlplane.runtime.jobs.plan import devices_of

_HTTP_WORKERS = 12
_WINDOWS = 3
"""perf_analyzer compares the last three windows that it measured, and fails with fewer."""
NANOS_PER_MILLI = 1e6
NANOS_PER_SECOND = 1e9


def over_http(target: str, endpoint: str, tensors: Sequence[Tensor], due_s: Iterable[float]) -> Seen:
    """Send requests with tritonclient.http at these times from now, in seconds; one client per thread."""
    import tritonclient.http as triton

    local = threading.local()
    every: list[Any] = []

    def call(due: float) -> tuple[float, float, str | None]:
        if not hasattr(local, "client"):
            local.client = triton.InferenceServerClient(target, network_timeout=LATE_S)
            local.inputs = [triton.InferInput(t.name, list(t.value.shape), t.datatype) for t in tensors]
            for made, tensor in zip(local.inputs, tensors, strict=True):
                made.set_data_from_numpy(tensor.value)
            every.append(local.client)
        try:
            local.client.infer(endpoint, local.inputs)
        except Exception as error:  # any error of the client is a failed request
            return due, time.monotonic(), str(error)
        return due, time.monotonic(), None

    with ThreadPoolExecutor(_HTTP_WORKERS) as pool:
        waiting = [pool.submit(call, due) for due in paced(due_s)]
        answers = [future.result() for future in waiting]
    for client in every:
        client.close()
    return seen_of(answers)


def perf_analyzer(
    home: Path,
    target: str,
    endpoint: str,
    requests_rps: float,
    seconds: float,
    deadline_s: float,
    *,
    input_data: str,
) -> Seen:
    """Run perf_analyzer with Poisson arrivals over gRPC; `input_data` is its option of that name.

    Raises EngineError if it fails.
    """
    environment = {**os.environ, "LD_LIBRARY_PATH": str(home / "lib")}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "requests.json"
        options = {
            "-m": endpoint,
            "-u": target,
            "-i": "grpc",
            "-p": round(seconds * 1000 / _WINDOWS),
            "-s": 999,
            "-r": _WINDOWS,
            "--input-data": input_data,
            "--request-rate-range": f"{requests_rps:g}",
            "--request-distribution": "poisson",
            "--percentile": 99,
            "--profile-export-file": out,
        }
        command = [str(home / "bin" / "perf_analyzer"), "--async"]
        command += [str(word) for option in options.items() for word in option]
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=deadline_s, check=False
        )
        if not out.exists():
            raise EngineError(f"perf_analyzer failed: {(run.stderr or run.stdout).strip()[-300:]}")
        experiments = json.loads(out.read_text())["experiments"]
    requests = [r for e in experiments for r in e["requests"]]
    answered = [r for r in requests if r["response_timestamps"]]
    due = [r["timestamp"] / NANOS_PER_SECOND for r in answered]
    latency = [(r["response_timestamps"][-1] - r["timestamp"]) / NANOS_PER_MILLI for r in answered]
    failures = () if run.returncode == 0 else (run.stdout.strip()[-300:],)
    lost = tuple("no answer" for _ in range(len(requests) - len(answered)))
    return Seen(np.array(due), np.array(latency), failures + lost)


@dataclass(frozen=True, slots=True)
class Parts:
    """P99 of a workload in ms.

    `means`: with mean execution times in place of their upper quantile. `steady`: means, and every batch
    takes its time exactly.
    """

    planned: float
    means: float
    steady: float


def parts_of(plan_file: Path, profiles: Path) -> dict[str, Parts]:
    """By workload."""
    plan, _ = read_plan(plan_file)
    devices = devices_of(plan, profiles)
    steady = {
        kind: replace(d, profiles={m: replace(p, jitter=0.0) for m, p in d.profiles.items()})
        for kind, d in devices.items()
    }
    asked = ((devices, plan.quantile), (devices, None), (steady, None))
    found = [_p99_ms(plan, known, quantile) for known, quantile in asked]
    return {name: Parts(*(one[name] for one in found)) for name in found[0]}


def _p99_ms(plan: Plan, devices: Mapping[str, Device], quantile: float | None) -> dict[str, float]:
    verdicts = judge(plan.gpus, devices, Terms(plan.rule, quantile))
    return {w.name: one.p99_ms for one in verdicts for w in one.workloads}


CORE = 0
LEAST, MEDIAN = 0.95, 1.3
"""Of the predicted P99 over the observed one: for each model, and at most in the median of the models."""
PERF = ROOT / ".tools" / "perf"
WHEELS = ROOT / ".tools" / "real-models"
WORKLOADS: tuple[dict[str, Any], ...] = (
    {"name": "vad", "model": "vad", "slo_ms": 300, "rate_rps": 15},
    {"name": "pitch", "model": "pitch", "slo_ms": 1500, "rate_rps": 3},
    {"name": "layout", "model": "layout", "slo_ms": 300, "rate_rps": 20},
    {"name": "ocr", "model": "ocr", "slo_ms": 400, "rate_rps": 10},
    {"name": "embedding", "model": "embedding", "slo_ms": 200, "rate_rps": 30},
)
SPEC = {"schema_version": 1, "gpus": [{"type": "cpu", "count": 1}], "workloads": WORKLOADS}


@dataclass(frozen=True)
class Row:
    """One workload's P99: planned, simulated, and observed in the median of the runs."""

    workload: str
    percent: float
    batch: int
    slo_ms: float
    predicted: Parts
    simulated_ms: float
    observed_ms: tuple[float, ...]
    answered: int
    failed: int

    @property
    def median_ms(self) -> float:
        return float(np.median(self.observed_ms))

    @property
    def over(self) -> float:
        """The predicted P99 over the observed one."""
        return self.predicted.planned / self.median_ms


class Bench:
    """`ctl` with a repository, profiles, state, ports and a fleet of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fleet = f"real{os.getpid()}"
        self.http, self.grpc, self.metrics = free_ports(3)
        models = [w["model"] for w in WORKLOADS]
        self.inputs = {m: path for m, path in real_repository.write_inputs(directory).items() if m in models}
        real_repository.make(WHEELS, directory / "models", models)

    def ctl(self, *arguments: str) -> str:
        """Stdout of a verb; its progress goes to stderr. Raises CalledProcessError."""
        tools = {
            "TRISECT_TRITON_HOME": str(ROOT / ".tools" / "triton"),
            "XDG_STATE_HOME": str(self.directory),
        }
        command = [str(Path(sys.executable).with_name("ctl")), *arguments]
        told = subprocess.run(
            command,
            cwd=self.directory,
            env={**os.environ, **tools},
            stdout=subprocess.PIPE,
            text=True,
            timeout=900,
            check=True,
        )
        return told.stdout

    def profile(self) -> None:
        given = [f"--input-data={model}:{path}" for model, path in self.inputs.items()]
        where = ["--repository", "models", "--device", f"cpu-{CORE}", "--launcher", "process"]
        print(self.ctl("profile", *where, *given), end="", flush=True)

    def plan(self) -> dict[str, Any]:
        (self.directory / "spec.yaml").write_text(json.dumps(SPEC))
        print(self.ctl("plan", "spec.yaml", "--output", "plan.json"), end="", flush=True)
        return dict(json.loads((self.directory / "plan.json").read_text()))

    def simulated_ms(self) -> dict[str, float]:
        told = json.loads(self.ctl("simulate", "plan.json", "--seconds", "600", "--json"))
        return {w["name"]: w["p99_ms"] for w in told["workloads"]}

    @contextmanager
    def serving(self) -> Iterator[None]:
        ports = [f"--set=serve.listen.http={self.http}", f"--set=serve.listen.grpc={self.grpc}"]
        ports.append(f"--set=serve.listen.metrics={self.metrics}")
        where = ["--repository", "models", "--set=serve.launcher=process", "--fleet", self.fleet]
        try:
            self.ctl("apply", "plan.json", "--yes", *where, *ports)
            yield
        finally:
            self.ctl("destroy", "--yes", "--fleet", self.fleet)

    def load(self, seconds: float, seed: int) -> dict[str, clients.Seen]:
        """Every workload at its planned rate at once, each by another client."""
        random = np.random.default_rng(seed)
        http, grpc = f"127.0.0.1:{self.http}", f"127.0.0.1:{self.grpc}"
        with off_core(CORE), ThreadPoolExecutor(len(WORKLOADS)) as pool:
            under_way = {}
            for n, (name, rate_rps) in enumerate((w["name"], float(w["rate_rps"])) for w in WORKLOADS):
                if name == "embedding":
                    under_way[name] = pool.submit(self._perf_analyzer, name, rate_rps, seconds)
                    continue
                send, target = ((clients.over_grpc, grpc), (over_http, http))[n % 2]
                due_s = poisson_times(rate_rps, seconds, random)
                under_way[name] = pool.submit(send, target, name, self._tensors(name), due_s)
            return {name: future.result() for name, future in under_way.items()}

    def _perf_analyzer(self, model: str, rate_rps: float, seconds: float) -> clients.Seen:
        """It reads the same file of inputs as `ctl profile`."""
        given, deadline_s = str(self.inputs[model]), 4 * seconds + 60
        grpc = f"127.0.0.1:{self.grpc}"
        return perf_analyzer(PERF, grpc, model, rate_rps, seconds, deadline_s, input_data=given)

    def _tensors(self, model: str) -> list[clients.Tensor]:
        source = read_source(self.directory / "models", model)
        return clients.tensors_of(requests_for(source, Inputs(data=self.inputs[model]))[0])


def rows(
    plan: Mapping[str, Any],
    predicted: Mapping[str, Parts],
    simulated_ms: Mapping[str, float],
    runs: list[dict[str, clients.Seen]],
) -> list[Row]:
    found = []
    for partition in (p for gpu in plan["gpus"] for p in gpu["partitions"]):
        for workload in partition["workloads"]:
            name = workload["name"]
            seen = [run[name] for run in runs]
            found.append(
                Row(
                    workload=name,
                    percent=partition["percent"],
                    batch=partition["models"][0]["batch"],
                    slo_ms=workload["slo_ms"],
                    predicted=predicted[name],
                    simulated_ms=simulated_ms[name],
                    observed_ms=tuple(float(np.percentile(one.latency_ms, 99)) for one in seen),
                    answered=sum(int(one.latency_ms.size) for one in seen),
                    failed=sum(len(one.failures) for one in seen),
                )
            )
    return found


def judged(found: list[Row]) -> int:
    """Print the figures; return the exit code."""
    names = ">planned", ">means", ">steady", ">simulated", ">observed", ">planned/observed"
    shown = table("P99 in ms", "workload", *names)
    for row in found:
        parts = row.predicted
        times_ms = parts.planned, parts.means, parts.steady, row.simulated_ms, row.median_ms
        shown.add_row(row.workload, *(f"{ms:.0f}" for ms in times_ms), f"{row.over:.2f}")
    show(shown)
    figures = Figures()
    figures.add("workloads served", len(found), at_least=len(WORKLOADS))
    for row in found:
        what = f"{row.workload}, {row.percent:g} % b{row.batch}"
        figures.add(f"{what}: P99, worst run", max(row.observed_ms), "ms", at_most=row.slo_ms)
        figures.add(f"{what}: P99, median run", row.median_ms, "ms")
        figures.add(f"{what}: predicted over it", row.over, at_least=LEAST)
        figures.add(f"{what}: simulated over it", row.simulated_ms / row.median_ms)
        figures.add(f"{what}: failed of {row.answered + row.failed}", row.failed, at_most=0)
    over = float(np.median([row.over for row in found]))
    figures.add("predicted over observed P99, median of the models", over, at_most=MEDIAN)
    return figures.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of load in a run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep profiles, plan and logs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.keep.resolve() if options.keep else Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        bench = Bench(directory)
        bench.profile()
        plan = bench.plan()
        predicted = parts_of(directory / "plan.json", directory / "profiles")
        simulated_ms = bench.simulated_ms()
        with bench.serving():
            runs = [bench.load(options.seconds, seed) for seed in range(options.runs)]
    return judged(rows(plan, predicted, simulated_ms, runs))


if __name__ == "__main__":
    sys.exit(main())

"""Three real models from Python packages: profiled, planned, applied, and loaded at the planned rates.

    python -m benchmarks.repositories.real_models [--seconds 60]

silero-vad (speech in a second of audio), magika (the type of a file, from a string) and the text
orientation of rapidocr-onnxruntime (images of open width), each in Triton's Python backend on onnxruntime.
The wheels come from pip into .tools/real-models. One core is planned; the clients have the others. Every
model is profiled on the inputs that its client then sends. The P99 that the plan predicts and that `ctl
simulate` finds stand beside what the clients saw; exit code 1 where an SLO does not hold or a request fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton_http
from host_ports import free_ports

from benchmarks.harness import Figures
from benchmarks.support import other_clients, real_repository
from benchmarks.support.real_repository import ROOT
from controlplane.profiler.load import off_core, poisson_times
from controlplane.profiler.requests import Inputs, requests_for
from controlplane.render.source import read_source
from controlplane.runtime.demo import clients

CORE = 0
LEAST = 0.95
"""Of the predicted P99 over the observed one."""
PERF = ROOT / ".tools" / "perf"
CLIENTS = {"vad": "tritonclient gRPC", "orientation": "tritonclient HTTP", "filetype": "perf_analyzer gRPC"}
WHEELS = ROOT / ".tools" / "real-models"
WORKLOADS: tuple[dict[str, Any], ...] = (
    {"name": "vad", "model": "vad", "slo_ms": 300, "rate_rps": 25},
    {"name": "filetype", "model": "filetype", "slo_ms": 500, "rate_rps": 16},
    {"name": "orientation", "model": "orientation", "slo_ms": 150, "rate_rps": 50},
)
SPEC = {"schema_version": 1, "gpus": [{"type": "cpu", "count": 1}], "workloads": WORKLOADS}


@dataclass(frozen=True)
class Row:
    """One workload's P99, foretold and seen."""

    workload: str
    package: str
    client: str
    percent: float
    batch: int
    rate_rps: float
    slo_ms: float
    predicted_ms: float
    simulated_ms: float
    observed_ms: float
    answered: int
    failed: int


class Bench:
    """`ctl` with a repository, profiles, state, ports and a fleet of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fleet = f"real{os.getpid()}"
        self.http, self.grpc, self.metrics = free_ports(3)
        self.inputs = real_repository.write_inputs(directory)
        real_repository.make(WHEELS, directory / "models")

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
            timeout=300,
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

    def load(self, seconds: float) -> dict[str, clients.Seen]:
        """Every workload at its planned rate at once, each by another client."""
        random = np.random.default_rng(7)
        rates = {w["name"]: float(w["rate_rps"]) for w in WORKLOADS}
        due = {name: poisson_times(rate, seconds, random) for name, rate in rates.items()}
        http, grpc = f"127.0.0.1:{self.http}", f"127.0.0.1:{self.grpc}"
        with off_core(CORE), ThreadPoolExecutor(len(due)) as pool:
            audio, image = self._tensors("vad"), self._tensors("orientation")
            under_way = {
                "vad": pool.submit(clients.over_grpc, grpc, "vad", audio, due["vad"]),
                "orientation": pool.submit(
                    other_clients.over_http, http, "orientation", image, due["orientation"]
                ),
                "filetype": pool.submit(self._perf_analyzer, "filetype", rates["filetype"], seconds),
            }
            return {name: future.result() for name, future in under_way.items()}

    def _perf_analyzer(self, model: str, rate_rps: float, seconds: float) -> clients.Seen:
        """It reads the same file of inputs as `ctl profile`."""
        given, deadline_s = str(self.inputs[model]), 4 * seconds + 60
        grpc = f"127.0.0.1:{self.grpc}"
        return other_clients.perf_analyzer(PERF, grpc, model, rate_rps, seconds, deadline_s, input_data=given)

    def _tensors(self, model: str) -> list[clients.Tensor]:
        source = read_source(self.directory / "models", model)
        return clients.tensors_of(requests_for(source, Inputs(data=self.inputs[model]))[0])

    def check_labels(self) -> None:
        """Raise AssertionError where the file types are not what they are."""
        with triton_http.InferenceServerClient(f"127.0.0.1:{self.http}") as client:
            for name, expected in real_repository.TYPED_FILES.items():
                content = triton_http.InferInput("CONTENT", [1, 1], "BYTES")
                content.set_data_from_numpy(np.array([[(ROOT / name).read_bytes()]], dtype=object))
                label = client.infer("filetype", [content]).as_numpy("LABEL")[0, 0].decode()
                assert label == expected, f"{name}: {label!r}, not {expected!r}"


def rows(
    plan: Mapping[str, Any], simulated_ms: Mapping[str, float], seen: Mapping[str, clients.Seen]
) -> list[Row]:
    partitions = [p for gpu in plan["gpus"] for p in gpu["partitions"]]
    return [
        Row(
            workload=w["name"],
            package=real_repository.PACKAGED[w["model"]].requirement,
            client=CLIENTS[w["name"]],
            percent=p["percent"],
            batch=p["models"][0]["batch"],
            rate_rps=w["rate_rps"],
            slo_ms=w["slo_ms"],
            predicted_ms=w["predicted"]["p99_ms"],
            simulated_ms=simulated_ms[w["name"]],
            observed_ms=float(np.percentile(seen[w["name"]].latency_ms, 99)),
            answered=int(seen[w["name"]].latency_ms.size),
            failed=len(seen[w["name"]].failures),
        )
        for p in partitions
        for w in p["workloads"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0, help="of load")
    parser.add_argument("--keep", type=Path, help="keep profiles, plan and logs here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = asked.keep.resolve() if asked.keep else Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        bench = Bench(directory)
        bench.profile()
        plan = bench.plan()
        simulated_ms = bench.simulated_ms()
        with bench.serving():
            bench.check_labels()
            seen = bench.load(asked.seconds)
    found = rows(plan, simulated_ms, seen)
    figures = Figures()
    figures.add("workloads served", len(found), at_least=len(WORKLOADS))
    for row in found:
        what = f"{row.workload}, {row.client}, {row.percent:g} % b{row.batch}"
        figures.add(f"{what}: P99", row.observed_ms, "ms", at_most=row.slo_ms)
        figures.add(f"{what}: predicted over it", row.predicted_ms / row.observed_ms, at_least=LEAST)
        figures.add(f"{what}: simulated over it", row.simulated_ms / row.observed_ms)
        figures.add(f"{what}: failed of {row.answered + row.failed}", row.failed, at_most=0)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())

"""Other public clients for the benches: tritonclient over HTTP, and perf_analyzer.

Latencies of perf_analyzer count from the moment of sending.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.domain.errors import EngineError
from controlplane.runtime.demo.clients import LATE_S, Seen, Tensor, paced, seen_of

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

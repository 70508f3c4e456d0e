"""Public Triton clients with Poisson arrivals: tritonclient over HTTP and gRPC, and perf_analyzer.

Latencies of tritonclient count from the moment a request was due, so that they include the delay of requests
behind a stalled server; those of perf_analyzer count from the moment of sending. Times are seconds since the
epoch, as in a fleet's events.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.errors import EngineError

if TYPE_CHECKING:
    from tritonclient.grpc.service_pb2 import ModelInferRequest

_LATE_S = 30.0
_HTTP_WORKERS = 12
_WINDOWS = 3
"""perf_analyzer compares the last three windows that it measured, and fails with fewer."""
NANOS_PER_MILLI = 1e6
NANOS_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class Seen:
    """One client's requests: when each was due, the latencies, and the messages of failures."""

    client: str
    due_s: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    failures: tuple[str, ...]
    failed_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """The requests for one endpoint: their rate, and the inferences in each one."""

    endpoint: str
    requests_rps: float
    client_batch: int = 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input: its name, KServe data type and value."""

    name: str
    datatype: str
    value: NDArray[Any]


def tensors_of(request: ModelInferRequest) -> list[Tensor]:
    """Return the inputs of a request; all values must be numbers."""
    from tritonclient.utils import triton_to_np_dtype

    tensors = []
    for described, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        value = np.frombuffer(raw, triton_to_np_dtype(described.datatype)).reshape(list(described.shape))
        tensors.append(Tensor(described.name, described.datatype, value))
    return tensors


def over_grpc(target: str, endpoint: str, tensors: Sequence[Tensor], due_s: Iterable[float]) -> Seen:
    """Send requests with tritonclient.grpc at these times from now, in seconds."""
    import tritonclient.grpc as triton

    inputs = [triton.InferInput(t.name, t.value.shape, t.datatype) for t in tensors]
    for made, tensor in zip(inputs, tensors, strict=True):
        made.set_data_from_numpy(tensor.value)
    ended: queue.Queue[tuple[float, float, str | None]] = queue.Queue()

    def done(due: float) -> Callable[..., None]:
        return lambda result, error: ended.put((due, time.monotonic(), str(error) if error else None))

    with triton.InferenceServerClient(target) as client:
        sent = 0
        for due in _paced(due_s):
            client.async_infer(endpoint, inputs, done(due), client_timeout=_LATE_S)
            sent += 1
        answers = [ended.get(timeout=_LATE_S + 5) for _ in range(sent)]
    return _seen("tritonclient gRPC", answers)


def over_http(target: str, endpoint: str, tensors: Sequence[Tensor], due_s: Iterable[float]) -> Seen:
    """Send requests with tritonclient.http at these times from now, in seconds; one client per thread."""
    import tritonclient.http as triton

    local = threading.local()
    every: list[Any] = []

    def call(due: float) -> tuple[float, float, str | None]:
        if not hasattr(local, "client"):
            local.client = triton.InferenceServerClient(target, network_timeout=_LATE_S)
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
        waiting = [pool.submit(call, due) for due in _paced(due_s)]
        answers = [future.result() for future in waiting]
    for client in every:
        client.close()
    return _seen("tritonclient HTTP", answers)


def perf_analyzer(
    home: Path,
    target: str,
    stream: Stream,
    seconds: float,
    deadline_s: float,
    *,
    input_data: str = "zero",
    protocol: str = "grpc",
) -> Seen:
    """Run perf_analyzer with Poisson arrivals over `grpc` or `http`; `input_data` is its option of that name.

    Raises EngineError if it fails.
    """
    environment = {**os.environ, "LD_LIBRARY_PATH": str(home / "lib")}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "requests.json"
        options = {
            "-m": stream.endpoint,
            "-u": target,
            "-i": protocol,
            "-b": stream.client_batch,
            "-p": round(seconds * 1000 / _WINDOWS),
            "-s": 999,
            "-r": _WINDOWS,
            "--input-data": input_data,
            "--request-rate-range": f"{stream.requests_rps:g}",
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
    name = "gRPC" if protocol == "grpc" else "HTTP"
    return Seen(f"perf_analyzer {name}", np.array(due), np.array(latency), failures + lost)


def _paced(due_s: Iterable[float]) -> Iterator[float]:
    """Wait for each time and yield it, on the clock of time.monotonic."""
    start = time.monotonic()
    for offset in due_s:
        # A point in time has no event to wait for.
        time.sleep(max(0.0, start + offset - time.monotonic()))
        yield start + offset


def _seen(client: str, answers: Sequence[tuple[float, float, str | None]]) -> Seen:
    epoch = time.time() - time.monotonic()
    answered = [(due, ended) for due, ended, error in answers if error is None]
    failed = [(due, error) for due, _, error in answers if error is not None]
    return Seen(
        client,
        np.array([epoch + due for due, _ in answered]),
        np.array([1000.0 * (ended - due) for due, ended in answered]),
        tuple(error for _, error in failed),
        tuple(epoch + due for due, _ in failed),
    )

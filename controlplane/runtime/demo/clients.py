"""A public Triton client with requests at given times: tritonclient over gRPC.

Latencies count from the moment a request was due, so that they include the delay of requests behind a stalled
server. Times are seconds since the epoch, as in a fleet's events.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tritonclient.grpc.service_pb2 import ModelInferRequest

LATE_S = 30.0
"""The longest wait for an answer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A client's requests: when each was due, the latencies, and the messages of failures."""

    due_s: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    failures: tuple[str, ...]
    failed_s: tuple[float, ...] = ()


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
        for due in paced(due_s):
            client.async_infer(endpoint, inputs, done(due), client_timeout=LATE_S)
            sent += 1
        answers = [ended.get(timeout=LATE_S + 5) for _ in range(sent)]
    return seen_of(answers)


def paced(due_s: Iterable[float]) -> Iterator[float]:
    """Wait for each time and yield it, on the clock of time.monotonic."""
    start = time.monotonic()
    for offset in due_s:
        # A point in time has no event to wait for.
        time.sleep(max(0.0, start + offset - time.monotonic()))
        yield start + offset


def seen_of(answers: Sequence[tuple[float, float, str | None]]) -> Seen:
    """Return what a client saw, from when each request was due, when it ended, and its error."""
    epoch = time.time() - time.monotonic()
    answered = [(due, ended) for due, ended, error in answers if error is None]
    failed = [(due, error) for due, _, error in answers if error is not None]
    return Seen(
        np.array([epoch + due for due, _ in answered]),
        np.array([1000.0 * (ended - due) for due, ended in answered]),
        tuple(error for _, error in failed),
        tuple(epoch + due for due, _ in failed),
    )

"""The clients of the redirect's bench: each sends a Poisson stream to one endpoint and keeps its requests."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import guard_rig as rig
import numpy as np
from guard_rig import Guarded

from controlplane.runtime.demo import clients

ENDPOINT = "w"
LOAD_S = 8.0
LOAD_REQUESTS = 800.0
"""Requests before the cut, for eight seconds or so many: the guard learns batch times from them."""
CLIENTS = ("tritonclient", "aio pool")
_POOL = 8


def load_s(rate_rps: float) -> float:
    """The seconds of requests before the cut."""
    return max(LOAD_S, LOAD_REQUESTS / rate_rps)


class Running:
    """Load from one client in a thread, until `stop`."""

    def __init__(self, run: Callable[[threading.Event], list[rig.Request]]) -> None:
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._requests: Future[list[rig.Request]] = self._pool.submit(run, self._stopped)

    def stop(self) -> list[rig.Request]:
        """End the load and return its requests. Raises EngineError where the client gave up."""
        self._stopped.set()
        self._pool.shutdown()
        return self._requests.result()


def start(client: str, fleet: Guarded, rate_rps: float, work_s: float, seed: int) -> Running:
    """Start one of CLIENTS against a fleet's gateway."""
    if client == "aio pool":
        return Running(lambda stopped: _aio(fleet, rate_rps, work_s, seed, stopped))
    return Running(lambda stopped: _tritonclient(fleet, rate_rps, work_s, seed, stopped))


def _aio(
    fleet: Guarded, rate_rps: float, work_s: float, seed: int, stopped: threading.Event
) -> list[rig.Request]:
    with rig.Load(fleet.grpc, ENDPOINT, rate_rps, work_s, seed=seed, connections=_POOL) as load:
        stopped.wait()
    return load.requests


def _tritonclient(
    fleet: Guarded, rate_rps: float, work_s: float, seed: int, stopped: threading.Event
) -> list[rig.Request]:
    def due() -> Iterator[float]:
        chance, at = random.Random(seed), 0.0
        while not stopped.is_set():
            at += chance.expovariate(rate_rps)
            yield at

    inputs = [clients.Tensor("X", "FP32", np.array([[work_s]], dtype=np.float32))]
    return _requests(clients.over_grpc(f"127.0.0.1:{fleet.grpc}", ENDPOINT, inputs, due()))


def _requests(seen: clients.Seen) -> list[rig.Request]:
    took_s = seen.latency_ms / 1000.0
    answered = [rig.Request(due, due + took, None) for due, took in zip(seen.due_s, took_s, strict=True)]
    return answered + [rig.Request(time.time(), time.time(), reason) for reason in seen.failures]

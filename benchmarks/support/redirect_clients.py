"""The clients of the redirect's bench: each sends a Poisson stream to one endpoint and keeps its requests."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import guard_rig as rig
import numpy as np
from ctl_fleet import ROOT
from guard_rig import Guarded

from controlplane.runtime.demo import clients

PERF = ROOT / ".tools" / "perf"
ENDPOINT = "w"
LOAD_S = 8.0
LOAD_REQUESTS = 800.0
"""Requests before the cut, for eight seconds or so many: the guard learns batch times from them."""
AFTER_S = 36.0
"""After the cut; a client that cannot end early may begin a little before the clock of the load does."""
CLIENTS = ("tritonclient", "perf_analyzer gRPC", "perf_analyzer HTTP", "aio pool")
_POOL = 8


def load_s(rate_rps: float) -> float:
    """The seconds of requests before the cut."""
    return max(LOAD_S, LOAD_REQUESTS / rate_rps)


class Running:
    """Load from one client in a thread, until `stop` where the client can end early."""

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
    if client == "tritonclient":
        return Running(lambda stopped: _tritonclient(fleet, rate_rps, work_s, seed, stopped))
    protocol = client.removeprefix("perf_analyzer ").lower()
    return Running(lambda _: _perf_analyzer(fleet, protocol, rate_rps, work_s))


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


def _perf_analyzer(fleet: Guarded, protocol: str, rate_rps: float, work_s: float) -> list[rig.Request]:
    given = fleet.directory / "input.json"
    given.write_text(json.dumps({"data": [{"X": [work_s]}]}))
    port = fleet.http if protocol == "http" else fleet.grpc
    stream = clients.Stream(ENDPOINT, rate_rps)
    seconds, deadline_s = load_s(rate_rps) + AFTER_S, 120.0
    seen = clients.perf_analyzer(
        PERF, f"127.0.0.1:{port}", stream, seconds, deadline_s, input_data=str(given), protocol=protocol
    )
    return _requests(seen)


def _requests(seen: clients.Seen) -> list[rig.Request]:
    took_s = seen.latency_ms / 1000.0
    answered = [rig.Request(due, due + took, None) for due, took in zip(seen.due_s, took_s, strict=True)]
    return answered + [rig.Request(time.time(), time.time(), reason) for reason in seen.failures]

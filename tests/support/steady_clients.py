"""Clients of a fleet that each send one request after another, and count what failed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from background import until
from ctl_fleet import Ctl, infer_grpc, infer_http

CLIENTS = 4
PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5


class Traffic:
    """The clients, inside the context, a quarter for each pair of an endpoint and a protocol of four.

    `failed` has the time (monotonic) and the error of each failure.
    """

    def __init__(
        self,
        host: Ctl,
        endpoints: Sequence[str] = ("a",),
        protocols: Sequence[str] = ("http",),
        pause_s: float = PAUSE_S,
    ) -> None:
        self._host = host
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.done = 0
        self.failed: list[tuple[float, str]] = []
        self.pause_s = pause_s
        each = [(endpoint, protocol) for endpoint in endpoints for protocol in protocols]
        self._threads = [threading.Thread(target=self._run, args=each[i % len(each)]) for i in range(CLIENTS)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def walk(self, dice: random.Random) -> None:
        """A step of a random walk of the rate, between that of PAUSE_S and a tenth of it."""
        self.pause_s = min(max(self.pause_s * dice.choice((0.7, 1.0, 1.4)), PAUSE_S), LONGEST_PAUSE_S)

    def await_more(self, count: int, deadline_s: float = 90.0) -> None:
        """Return once so many more requests were answered."""
        wanted = self.done + count
        until(lambda: self.done >= wanted, deadline_s, f"{count} more answers")

    def _call(self, endpoint: str, protocol: str) -> Callable[[], None]:
        if protocol == "http":
            target = f"127.0.0.1:{self._host.http}"
            return partial(
                infer_http, triton_http.InferenceServerClient(target, network_timeout=60.0), endpoint
            )
        return partial(
            infer_grpc, triton_grpc.InferenceServerClient(f"127.0.0.1:{self._host.grpc}"), endpoint
        )

    def _run(self, endpoint: str, protocol: str) -> None:
        call = self._call(endpoint, protocol)
        while not self._stop.wait(self.pause_s):
            try:
                call()
                with self._lock:
                    self.done += 1
            except Exception as error:
                with self._lock:
                    self.failed.append((time.monotonic(), f"{type(error).__name__}: {error}"))

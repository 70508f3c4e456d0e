"""Clients of a fleet that send one request after another, and count what failed."""

from __future__ import annotations

import random
import threading
import time

import tritonclient.http as triton_http
from ctl_host import Host, infer_http

CLIENTS = 4
PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5


class Traffic:
    """The clients, inside the context. `failed` has the time (monotonic) and the error of each failure."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.done = 0
        self.failed: list[tuple[float, str]] = []
        self.pause_s = PAUSE_S
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]

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
        wanted, deadline = self.done + count, time.monotonic() + deadline_s
        while self.done < wanted:
            assert time.monotonic() < deadline, (
                f"{wanted - self.done} answers are missing: {self.failed[-3:]}"
            )
            time.sleep(0.02)

    def _run(self) -> None:
        client = triton_http.InferenceServerClient(f"127.0.0.1:{self._host.http}", network_timeout=60.0)
        while not self._stop.wait(self.pause_s):
            try:
                infer_http(client, "a")
                with self._lock:
                    self.done += 1
            except Exception as error:
                with self._lock:
                    self.failed.append((time.monotonic(), f"{type(error).__name__}: {error}"))

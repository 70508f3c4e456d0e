"""Canaries: small real inferences, sent to servers by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from controlplane.domain.errors import declined_by_policy, is_own_lack
from controlplane.domain.fleet import Server
from controlplane.triton.client import TritonClient, timed_out
from controlplane.triton.samples import SampleRequest, sample_request

_THREADS = 32
"""A canary may wait as long as its model takes, and must keep no other one waiting."""
LIVE_S = 1.0
"""The longest wait for an answer that needs no model."""


class Outcome(StrEnum):
    """What came of a canary."""

    ANSWERED = "answered"
    """Also with a refusal by the queue policy of its model."""
    FAILED = "failed"
    LATE = "no answer in time"
    SILENT = "no call is answered"
    """Not even one that runs no model."""
    UNKNOWN = "not sent"
    """For want of descriptors or memory here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a server's latest canary, sent and ended at times of the monotonic clock."""

    sent_s: float
    at_s: float
    outcome: Outcome
    reason: str = ""


class Canaries:
    """Sends canaries; `ask` returns at once, `verdict` returns the latest result."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="canary")
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._verdicts: dict[str, Verdict] = {}
        self._finished: set[str] = set()
        self._requests: dict[tuple[str, str], SampleRequest] = {}

    def ask(self, server: Server, endpoints: Sequence[str], *, deadline_s: float) -> None:
        """Start canaries for these endpoints of a server, unless some are under way."""
        with self._lock:
            if server.name in self._under_way:
                return
            self._under_way.add(server.name)
        self._pool.submit(self._try, server, tuple(endpoints), deadline_s)

    def verdict(self, name: str) -> Verdict | None:
        """Return the latest verdict; None without one."""
        with self._lock:
            return self._verdicts.get(name)

    def finished(self) -> set[str]:
        """Return the servers with a new verdict since the call before."""
        with self._lock:
            found, self._finished = self._finished, set()
        return found

    def forget(self, name: str) -> None:
        """Drop the data of a server that is gone, and the result of a canary under way."""
        with self._lock:
            self._under_way.discard(name)
            self._verdicts.pop(name, None)
            self._requests = {key: body for key, body in self._requests.items() if key[0] != name}

    def close(self) -> None:
        """Start no more canaries; those under way end at their deadlines."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _try(self, server: Server, endpoints: tuple[str, ...], deadline_s: float) -> None:
        sent_s = time.monotonic()
        outcome, reason = self._outcome(server, endpoints, deadline_s)
        with self._lock:
            if server.name not in self._under_way:
                return
            self._under_way.remove(server.name)
            self._verdicts[server.name] = Verdict(sent_s, time.monotonic(), outcome, reason)
            self._finished.add(server.name)

    def _outcome(self, server: Server, endpoints: tuple[str, ...], deadline_s: float) -> tuple[Outcome, str]:
        late = Outcome.SILENT
        try:
            self._reach(server)
            late = Outcome.LATE
            for endpoint in endpoints:
                self._infer(server, endpoint, deadline_s)
        except Exception as error:  # any error is a failed canary, but for want of time or of our own means
            if timed_out(error):
                return late, f"{late.value} ({deadline_s if late is Outcome.LATE else LIVE_S:g} s)"
            if is_own_lack(error):
                return Outcome.UNKNOWN, str(error)
            reason = str(error) or repr(error)
            return (Outcome.ANSWERED, "") if declined_by_policy(reason) else (Outcome.FAILED, reason)
        return Outcome.ANSWERED, ""

    def _reach(self, server: Server) -> None:
        """Make a call that runs no model."""
        TritonClient(server, deadline_s=LIVE_S).answer()

    def _infer(self, server: Server, endpoint: str, deadline_s: float) -> None:
        key, client = (server.name, endpoint), TritonClient(server, deadline_s=deadline_s)
        with self._lock:
            made = self._requests.get(key)
        if made is None:
            made = sample_request(endpoint, server.spec.repository, client.config)
            with self._lock:
                if server.name in self._under_way:
                    self._requests[key] = made
        client.infer(endpoint, made)

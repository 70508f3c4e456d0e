"""The request log of a gateway of several replicas: the logs of all of them together."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from controlplane.gateway.replicas.control_port import monitor_stream
from controlplane.monitor.client import QUERY, RequestLog
from controlplane.monitor.records import Record

_AGAIN_S = 2.0
"""A replica that does not answer is tried at this interval: each try may hold up the controller's loop."""


@dataclass(slots=True)
class _Follower:
    """Opens the log of one replica, at most once in a while."""

    address: str
    token: str
    tried_s: float = field(default=float("-inf"))

    def __call__(self) -> socket.socket | None:
        now = time.monotonic()
        if now - self.tried_s < _AGAIN_S:
            return None
        self.tried_s = now
        return monitor_stream(self.address, self.token, QUERY)


class ReplicaLogs:
    """Follows the log of each replica that there is at the time."""

    def __init__(self, addresses: Callable[[], Sequence[str]], token: str) -> None:
        self._addresses = addresses
        self._open = partial(_Follower, token=token)
        self._logs: dict[str, RequestLog] = {}

    def take(self) -> list[Record]:
        """Return the requests that ended since the call before, in order."""
        self._follow_present()
        found = [record for log in self._logs.values() for record in log.take()]
        return sorted(found, key=lambda record: record.ended_s)

    @property
    def heard_since_s(self) -> float:
        """The time (monotonic) since which no line of the replicas that answer is missing; else now."""
        now = time.monotonic()
        heard = [since for log in self._logs.values() if (since := log.heard_since_s) < now]
        return max(heard, default=now)

    def close(self) -> None:
        """Stop following."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _follow_present(self) -> None:
        present = self._addresses()
        for address in self._logs.keys() - set(present):
            self._logs.pop(address).close()
        for address in present:
            if address not in self._logs:
                self._logs[address] = RequestLog(self._open(address))

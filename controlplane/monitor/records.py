"""One line of the gateway's log: what an inference was, where it went, how it ended, and when.

    <sender> <number> <endpoint> <host> <port> <http status> <grpc status> <flags> <bytes in> <bytes out>
      <start us> <end us>

HAProxy and the facade both write it, over UDP on loopback. The sender is `<protocol>:<process>` and numbers
its lines. HAProxy leaves the endpoint out (`-`) of what is no inference or what it handed to the facade.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

_FIELDS = 12
_CANCELLED = "1"
_SERVER_FAULTS_GRPC = frozenset({2, 4, 8, 13, 14, 15})
"""UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE, DATA_LOSS."""


class Record(NamedTuple):
    """One line. `endpoint` is empty where it tells of no inference: only its number counts then.

    `grpc` is None over HTTP and for status OK. `host` and `port` are the server's, port 0 where none was
    there to take it. `ended_s` is since the epoch. `abandoned` says that its client left.
    """

    sender: str
    number: int
    endpoint: str
    host: str
    port: int
    http: int
    grpc: int | None
    bytes_in: int
    bytes_out: int
    ended_s: float
    latency_ms: float
    abandoned: bool

    @property
    def failed(self) -> bool:
        """Whether the fault is the fleet's: a client that asks nonsense or leaves is none."""
        return not self.abandoned and (self.http >= 500 or self.grpc in _SERVER_FAULTS_GRPC)


def protocol_of(sender: str) -> str:
    """`http` or `grpc`."""
    return sender.partition(":")[0]


def parse(line: bytes) -> Record | None:
    """None for what is no line of the gateway's."""
    words = line.decode(errors="replace").split()
    if len(words) != _FIELDS:
        return None
    sender, number, endpoint, host, port, http, grpc, flags, size, sent, start_us, end_us = words
    try:
        if endpoint == "-":
            return Record(sender, int(number), "", host, 0, 0, None, 0, 0, 0.0, 0.0, False)
        ended_us = int(end_us)
        return Record(
            sender,
            int(number),
            endpoint,
            host,
            int(port) if port.isdigit() else 0,
            int(http),
            int(grpc) if grpc.isdigit() and grpc != "0" else None,
            int(size),
            int(sent),
            ended_us / 1e6,
            max(0.0, (ended_us - int(start_us)) / 1e3),
            flags.startswith("C") or grpc == _CANCELLED,
        )
    except ValueError:
        return None


@dataclass(slots=True)
class Losses:
    """Lines that were sent and never came, told by the gaps in each sender's counts.

    Lines of one sender may change places on their way: a line that comes late takes its gap back.
    """

    received: int = 0
    lost: int = 0
    _highest: dict[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Both, by name."""
        return {"received": self.received, "lost": self.lost}

    def count(self, sender: str, number: int) -> None:
        """A line came."""
        self.received += 1
        highest = self._highest.get(sender)
        if highest is None:
            self._highest[sender] = number
        elif number > highest:
            self.lost += number - highest - 1
            self._highest[sender] = number
        elif self.lost:
            self.lost -= 1

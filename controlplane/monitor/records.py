"""One line of the gateway's log: what a request was, where it went, how it ended, and when.

    <sender> <count> <model> <host> <port> <http status> <grpc status> <flags> <bytes in> <bytes out>
      <start s> <start us> <end s> <end us> <backend>

The sender is `h:<frontend>:<pid>` for HAProxy and `f:facade:<pid>` for the facade.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FIELDS = 15
_SERVER_FAULTS_GRPC = frozenset({2, 4, 8, 13, 14, 15})
"""UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE, DATA_LOSS."""


@dataclass(frozen=True, slots=True)
class Record:
    """One inference that ended at the gateway. `grpc` is None for one over HTTP or with status OK.

    `host` and `port` are the server's, port 0 where none was there to take it. `ended_s` is since the epoch.
    `abandoned` says that its client left.
    """

    sender: str
    count: int
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


@dataclass(frozen=True, slots=True)
class Other:
    """A line of no inference that a server answered; its count still counts."""

    sender: str
    count: int


def parse(line: bytes) -> Record | Other | None:
    """None for what is no line of the gateway's."""
    words = line.decode(errors="replace").split()
    if len(words) != _FIELDS:
        return None
    sender, count, model, host, port, http, grpc, flags, size, sent, start, start_us, end, end_us, backend = (
        words
    )
    try:
        # What the facade was handed by HAProxy it counts itself.
        if model == "-" or backend.startswith("facade_"):
            return Other(sender, int(count))
        ended_s = int(end) + int(end_us) / 1e6
        return Record(
            sender=sender,
            count=int(count),
            endpoint=model,
            host=host,
            port=int(port) if port.isdigit() else 0,
            http=int(http),
            grpc=int(grpc) if grpc.isdigit() and grpc != "0" else None,
            bytes_in=int(size),
            bytes_out=int(sent),
            ended_s=ended_s,
            latency_ms=max(0.0, 1000.0 * (ended_s - int(start) - int(start_us) / 1e6)),
            abandoned=flags.startswith("C") or grpc == "1",
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

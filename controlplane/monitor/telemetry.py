"""A client of the gateway's monitor; any number of processes may query it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlplane.domain.observation import LatencyWindow
from controlplane.files.queries import ask

if TYPE_CHECKING:
    from controlplane.monitor.windows import Summary


@dataclass(frozen=True, slots=True)
class Counts:
    """The received lines of the gateway's log, and the lost ones.

    `unlogged` counts requests that HAProxy does not log; None before its counters were read.
    """

    received: int
    lost: int
    unlogged: int | None


class GatewayTelemetry:
    """Implements the port `Telemetry`. Raises GatewayError where the monitor does not answer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def windows(self, seconds: float) -> Mapping[str, LatencyWindow]:
        """Return the requests that ended within the last `seconds` (at most 120), by endpoint."""
        said = self._ask({"windows": seconds})
        return {row["endpoint"]: LatencyWindow(**row) for row in said}

    def servers(self, seconds: float) -> Mapping[tuple[str, str], LatencyWindow]:
        """Return the requests that ended within the last `seconds`, by endpoint and server."""
        said = self._ask({"servers": seconds})
        return {(row["endpoint"], server): LatencyWindow(**row) for server, row in said}

    def seconds(self, count: int) -> Sequence[Summary]:
        """Return each of the last `count` whole seconds, for every endpoint and server."""
        from controlplane.monitor.windows import Summary  # brings numpy, which `ctl status` does without

        return [Summary(**row) for row in self._ask({"seconds": count})]

    def counts(self) -> Counts:
        """Return how complete the log is."""
        return Counts(**self._ask({"counts": True}))

    def _ask(self, question: object) -> Any:
        return ask(self._path, question, of="the gateway's monitor")

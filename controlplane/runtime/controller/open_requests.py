"""Requests in flight of active servers that fall silent, read of the gateway at low cost."""

from __future__ import annotations

import math
import time

from controlplane.control.guard.observe import resumed
from controlplane.control.guard.state import Watch
from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, InFlight
from controlplane.ports import Gateway
from controlplane.runtime.controller.polled import Agenda
from controlplane.runtime.controller.probes import ServerRecord
from controlplane.runtime.fleet.execute import backend

_GATEWAY_AGAIN_S = 2.0
_SILENT_S = 0.2
_SILENT_REQUESTS = 3.0
_LULL_S = 1.0
"""The longest silence of a server with traffic until its open requests are read, in a small fleet; ..."""
_LULLS_RPS = 50.0
"""... and how many servers are read in a second in a large one."""
_RARE_RPS = 0.02
"""Requests that come more rarely are no traffic."""


class OpenRequests:
    """Reads a server's requests in flight once it has been silent for long enough."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._silences = Agenda()
        self._gateway_again_s = -math.inf

    def due(self, now: float) -> str | None:
        """Return the first server to look at again, which is due no more; None where none is."""
        return self._silences.take(now)

    def forget(self, name: str) -> None:
        """Drop a server."""
        self._silences.forget(name)

    def read(
        self, watch: Watch, record: ServerRecord, now: float, log_since_s: float, servers: int
    ) -> InFlight:
        """Return the requests in flight of a partition's active server, of so many in the fleet.

        They are read only if it answers nothing under load. Its log is complete since `log_since_s`.
        """
        name = watch.active.server
        if record.active_s is None:
            record.active_s = now
        # Silence counts only while the log is complete, since the server is routed, and since its requests in
        # flight were last read as 0.
        since = max(
            record.answered_s,
            record.active_s,
            log_since_s,
            -math.inf if record.in_flight.unanswered else record.in_flight_s,
        )
        silent_s = _SILENT_S
        if not record.in_flight.unanswered and now - since >= _SILENT_S:
            paused_s = record.in_flight_s - max(record.answered_s, record.active_s)
            silent_s = _read_after_s(resumed(watch, now), paused_s, servers)
        if now - since < silent_s:
            self._silences.put(name, since + silent_s)
            return NOTHING_IN_FLIGHT
        if now - record.in_flight_s > _SILENT_S and now > self._gateway_again_s:
            try:
                record.in_flight = self._gateway.in_flight(backend(record.server))
            except GatewayError:
                # A hanging gateway blocks each query until its deadline, so it is not queried again at once.
                record.in_flight = NOTHING_IN_FLIGHT
                self._gateway_again_s = time.monotonic() + _GATEWAY_AGAIN_S
            record.in_flight_s = now
        self._silences.put(name, now)
        return record.in_flight


def _read_after_s(watch: Watch, paused_s: float, servers: int) -> float:
    """Return the silence after which open requests are read, where none was open for `paused_s`."""
    rates_rps = [max(queue.rates_rps) for queue in watch.queues]
    lull_s = max(_LULL_S, servers / _LULLS_RPS)
    # The longer nothing was open, the less soon is it read again: requests have paused.
    expected_s = max(_SILENT_REQUESTS / max(sum(rates_rps), _RARE_RPS), min(paused_s, lull_s))
    return max(_SILENT_S, min(expected_s, lull_s) if max(rates_rps) > _RARE_RPS else expected_s)

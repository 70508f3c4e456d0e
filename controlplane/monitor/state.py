"""What the monitor knows: servers behind the routes, requests that ended, promises of the plan."""

from __future__ import annotations

import contextlib
import math
import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.domain.errors import TrisectError
from controlplane.domain.fleet import Backend, name_of
from controlplane.domain.observation import LatencyWindow
from controlplane.files.gateway import SlotsRecord, read_slots
from controlplane.files.reading import Remembered, exists
from controlplane.monitor.records import Losses, Record, Unlogged, parse
from controlplane.monitor.totals import Promises, Totals

KEEP_S = 120
_SHORTEST_S = 1.0
"""The shortest window of a rate."""


@dataclass(slots=True)
class Second:
    """Requests that ended within one second, in the order of their lines; refused ones are only counted."""

    number: int
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    latency_ms: array[float] = field(default_factory=lambda: array("d"))
    errors_s: array[float] = field(default_factory=lambda: array("d"))
    refused: int = 0


class Windows:
    """Requests by endpoint in any window of the last minutes up to now, without abandoned ones.

    Latencies are stored one by one, since percentiles of percentiles are meaningless. A minute of thousands
    of requests a second needs a few megabytes.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, deque[Second]] = {}

    def add(self, record: Record) -> None:
        """Add an ended request. Lines may be slightly out of order."""
        if record.abandoned and not record.refused:
            return
        seconds = self._seconds.setdefault(record.endpoint, deque(maxlen=KEEP_S))
        number = int(record.ended_s)
        if not seconds or seconds[-1].number < number:
            seconds.append(Second(number))
        into = seconds[-1]
        if into.number != number:
            into = next((second for second in reversed(seconds) if second.number == number), into)
        if record.refused:
            into.refused += 1
            return
        into.ended_s.append(record.ended_s)
        into.latency_ms.append(record.latency_ms)
        if record.failed:
            into.errors_s.append(record.ended_s)

    def forget(self, now_s: float) -> None:
        """Drop endpoints without recent requests, and seconds to come: the clock was set back."""
        for seconds in self._seconds.values():
            while seconds and seconds[-1].number > now_s:
                seconds.pop()
        oldest = now_s - KEEP_S
        self._seconds = {e: s for e, s in self._seconds.items() if s and s[-1].number >= oldest}

    def by_endpoint(self, now_s: float, seconds: float) -> dict[str, LatencyWindow]:
        """Return the requests that ended within the last `seconds`, by endpoint."""
        return {endpoint: self._window(endpoint, now_s, seconds) for endpoint in sorted(self._seconds)}

    def _window(self, endpoint: str, now_s: float, length_s: float) -> LatencyWindow:
        since, stored = now_s - length_s, self._seconds[endpoint]
        ended, latencies, errors, refused = array("d"), array("d"), 0, 0
        for second in reversed(stored):
            if second.number < int(since):
                break
            ended.extend(second.ended_s)
            latencies.extend(second.latency_ms)
            errors += sum(since < at <= now_s for at in second.errors_s)
            refused += second.refused if since < second.number + 1 and second.number <= now_s else 0
        at_s = np.frombuffer(ended)
        every = np.frombuffer(latencies)[(at_s > since) & (at_s <= now_s)]
        p50, p99 = _quantiles(every)
        first_s = next((second.ended_s[0] for second in stored if second.ended_s), since)
        known_s = max(_SHORTEST_S, now_s - first_s)
        return LatencyWindow(endpoint, min(length_s, known_s), len(every), errors, p50, p99, refused)


def _quantiles(latencies: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float | None, float | None]:
    """Return the smallest latencies that 50 % and 99 % of the requests do not exceed."""
    if not len(latencies):
        return None, None
    ordered = np.sort(latencies)  # np.quantile takes five times as long for a short window
    p50, p99 = (float(ordered[math.ceil(q * len(ordered)) - 1]) for q in (0.5, 0.99))
    return p50, p99


_NO_SERVER = "none"


class ServedRoutes:
    """The routes, and the servers behind them."""

    def __init__(self, slots: Path) -> None:
        self._table = Remembered(slots, partial(read_slots, slots))
        self._taken: SlotsRecord | None = None
        self.present: tuple[Backend, ...] = ()
        self.endpoints: Mapping[str, Sequence[str]] = {}
        self.routes: Mapping[str, Sequence[str]] = {}

    def refresh(self) -> None:
        """Read the table again if it has changed."""
        table = self._taken
        with contextlib.suppress(OSError, TrisectError):
            table = self._table.get()
        if table is None or table is self._taken:
            return
        self._taken = table
        present = {backend.server: backend for slot in table.slots for backend in slot.route.servers}
        self.present = tuple(present.values())
        self.routes = {
            slot.endpoint: [member.server for member in slot.route.members]
            for slot in table.slots
            if not slot.draining
        }
        carried = table.carried()
        self.endpoints = {f"{p}_{index}": e for index, e in carried.items() if e for p in "hg"}


def _read_promises(plan: Path) -> Promises:
    from controlplane.files.plans import read_applied

    return Promises.of(read_applied(plan)) if exists(plan) else Promises()


class Monitor:
    """The monitor's data."""

    def __init__(self, served: ServedRoutes, plan: Path) -> None:
        self.served = served
        self.windows = Windows()
        self.losses = Losses()
        self.unlogged = Unlogged()
        self.totals = Totals()
        self.promises = Promises()
        self._plan = Remembered(plan, partial(_read_promises, plan))

    def refresh(self) -> None:
        """Read the routes and the plan again if they have changed; a broken plan leaves the last promises."""
        self.served.refresh()
        with contextlib.suppress(OSError, TrisectError):
            self.promises = self._plan.get()

    def take(self, line: bytes) -> None:
        """Count one line of the log."""
        record = parse(line)
        if record is None:
            return
        self.losses.count(record.sender, record.number)
        if record.endpoint:
            server = name_of(record.server) or _NO_SERVER
            self.windows.add(record.not_after(time.time()))
            self.totals.add(record, server, self.promises.by_endpoint)

    def answer(self, question: Mapping[str, Any]) -> Any:
        """Answer one query of `controlplane.monitor.client`."""
        match question:
            case {"windows": seconds}:
                found = self.windows.by_endpoint(time.time(), float(seconds))
                return [asdict(window) for window in found.values()]
            case {"counts": _}:
                losses, unlogged = self.losses, self.unlogged.total
                return {"received": losses.received, "lost": losses.lost, "unlogged": unlogged}
        return None

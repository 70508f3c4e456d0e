"""What the monitor knows: servers behind the routes, requests that ended, promises of the plan."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from controlplane.domain.errors import TrisectError
from controlplane.domain.fleet import Backend, name_of
from controlplane.files.gateway import SlotsRecord, read_slots
from controlplane.files.reading import Remembered, exists
from controlplane.monitor.records import Losses, Unlogged, parse
from controlplane.monitor.totals import Promises, Totals
from controlplane.monitor.windows import Windows

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
        with contextlib.suppress(OSError, TrisectError):
            table = self._table.get()
            if table is not self._taken:
                self._take(table)

    def _take(self, table: SlotsRecord) -> None:
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


def read_promises(plan: Path) -> Promises:
    """Return the promises of an applied plan; none without the file. Raises InputError for a broken one."""
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
        self._plan = Remembered(plan, partial(read_promises, plan))

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

"""What a page shows of a fleet, read from its files, engine and monitor; no controller is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from controlplane.domain.errors import InputError
from controlplane.files.fleets import FleetFiles
from controlplane.report.page.document import Json
from controlplane.report.page.fleet import Point, fleet_document, with_timeline
from controlplane.report.page.html import page
from controlplane.report.tables.status_table import Status
from controlplane.runtime.fleet.events import events
from controlplane.runtime.fleet.history import History, Key, Minute

_SHOWN_EVENTS = 50
_REPORTED_EVENTS = 1000
_BUSY_S = 180.0
"""The record's minutes that the measured utilisation is of."""


def live_document(files: FleetFiles, look: Callable[[], Status]) -> Json:
    """Return the fleet as it is now. Raises InputError where nothing is applied."""
    return _document(files, look, since_s=0.0, limit=_SHOWN_EVENTS)


def fleet_report(files: FleetFiles, look: Callable[[], Status], since_s: float) -> str:
    """Return a fleet's report as one HTML file, with its record and events from `since_s` on."""
    document = _document(files, look, since_s=since_s, limit=_REPORTED_EVENTS)
    points = [
        Point(m.at_s, m.endpoint, m.partition, m.percent, m.requests, m.failed, m.p99_ms)
        for m in History(files.history).minutes(since_s)
    ]
    return page(document["title"], with_timeline(document, points))


def _document(files: FleetFiles, look: Callable[[], Status], *, since_s: float, limit: int) -> Json:
    plan = files.plan()
    if plan is None:
        raise InputError(f"fleet {files.fleet!r} has no plan; `ctl apply` gives it one", field="--fleet")
    found = events(files, since_s=since_s, limit=limit)
    recent = History(files.history).minutes(time.time() - _BUSY_S)
    return fleet_document(files.fleet, plan, look(), found, busy_of(recent))


def busy_of(minutes: Iterable[Minute]) -> dict[Key, float]:
    """Return the part of the counted time in which each partition executed batches of an endpoint."""
    executed_s: dict[Key, float] = {}
    counted_s: dict[Key, float] = {}
    for one in minutes:
        if one.batches is None or one.seconds <= 0.0:
            continue
        times_ns = (
            (b.compute_input_ns, b.compute_infer_ns, b.compute_output_ns) for b in one.batches.values()
        )
        executed_s[one.key] = executed_s.get(one.key, 0.0) + sum(map(sum, times_ns)) / 1e9
        counted_s[one.key] = counted_s.get(one.key, 0.0) + one.seconds
    return {key: executed_s[key] / counted_s[key] for key in counted_s}

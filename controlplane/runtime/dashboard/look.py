"""What a page shows of a fleet, read from its files, engine and monitor; no controller is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from controlplane.domain.errors import InputError
from controlplane.files.fleets import FleetFiles
from controlplane.report.page.document import Json
from controlplane.report.page.fleet import Happened, Point, fleet_document, with_timeline
from controlplane.report.page.html import page
from controlplane.report.tables.status_table import Status
from controlplane.runtime.fleet.events import events
from controlplane.runtime.fleet.history import History

_SHOWN_EVENTS = 50
_REPORTED_EVENTS = 1000


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
    found = [Happened(**asdict(event)) for event in events(files, since_s=since_s, limit=limit)]
    return fleet_document(files.fleet, plan, look(), found)

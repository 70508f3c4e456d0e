"""One Prometheus page for the fleet: the gateway's requests, the plan's promises, each Triton's own page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from controlplane.domain.fleet import Backend
from controlplane.domain.observation import LatencyWindow
from controlplane.monitor import metrics
from controlplane.monitor.metrics import Page
from controlplane.monitor.promises import Promises
from controlplane.monitor.records import Losses
from controlplane.monitor.totals import Totals, placed


def write_own(
    page: Page, totals: Totals, losses: Losses, minute: Mapping[str, LatencyWindow], promises: Promises
) -> None:
    """Add what the monitor counted, the last minute, and the plan's promises."""
    page.add(metrics.BUILD, 1, version("trisect"))
    if promises.made_by is not None:
        page.add(metrics.PLAN, 1, *promises.made_by)
    for kind, count in promises.gpus.items():
        page.add(metrics.PLANNED_GPUS, count, kind)
    for endpoint, promise in sorted(promises.by_endpoint.items()):
        page.add(metrics.SLO, promise.slo_s, endpoint)
        page.add(metrics.PROMISED, promise.planned_rps, endpoint)
    totals.write(page)
    for endpoint, window in minute.items():
        page.add(metrics.SEEN, window.requests / window.seconds, endpoint)
        for family, value_ms in ((metrics.P50, window.p50_ms), (metrics.P99, window.p99_ms)):
            if value_ms is not None:
                page.add(family, value_ms / 1e3, endpoint)
    page.add(metrics.LINES, losses.received)
    page.add(metrics.LOST, losses.ever_lost)


def write_routes(page: Page, routes: Mapping[str, Iterable[str]]) -> None:
    """Add where each endpoint's requests go: `routes` has the servers by endpoint."""
    for endpoint, servers in sorted(routes.items()):
        for partition, role in sorted({placed(server) for server in servers}):
            page.add(metrics.ROUTE, 1, endpoint, partition, role)


def write_slots(page: Page, endpoints: Mapping[str, Sequence[str]]) -> None:
    """Add the endpoints of each of HAProxy's backends, whose requests cannot be told apart there."""
    for proxy, names in endpoints.items():
        page.add(metrics.SLOT, 1, proxy, ",".join(names))


def tritons(pages: Sequence[tuple[Backend, str]]) -> Iterator[Metric]:
    """Each Triton's own page, with partition and role as labels; a malformed one is left out.

    Of two servers with one partition and role, as while one replaces the other, the first one counts.
    """
    families: dict[str, Metric] = {}
    first = {placed(backend.server): (backend, text) for backend, text in reversed(pages)}
    for (partition, role), (_, text) in first.items():
        for family in _parsed(text):
            into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, "partition": partition, "role": role}
                into.add_sample(sample.name, labels, sample.value)
    yield from families.values()


def _parsed(page: str) -> list[Metric]:
    try:
        return list(text_string_to_metric_families(page))
    except ValueError:
        return []

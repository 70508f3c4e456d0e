"""The page of metrics: what it counts, what it is called, and that re-plans add no series."""

from pathlib import Path

import prometheus
import pytest
from metrics_reference import reference
from prometheus_client.parser import text_string_to_metric_families

from controlplane.domain.observation import LatencyWindow
from controlplane.monitor.metrics import CATALOGUE, DURATION, Kind, Page
from controlplane.monitor.pages import write_own, write_routes
from controlplane.monitor.records import Losses, Record
from controlplane.monitor.state import Promise, Promises, Totals

ROOT = Path(__file__).parents[3]
SLO_S = 0.04
PROMISES = Promises({"search": Promise(SLO_S, 100.0)}, ("joint", "p99", "ours"), {"v100": 7})


def record(latency_ms: float, *, http: int = 200, abandoned: bool = False) -> Record:
    return Record("http:1", 1, "search", "one:abc", http, None, 10, 20, 1.0, latency_ms, abandoned)


def page_of(totals: Totals, promises: Promises = PROMISES) -> str:
    page = Page()
    window = LatencyWindow("search", 60.0, 6000, 0, 10.0, 30.0)
    write_own(page, totals, Losses(), {"search": window}, promises)
    write_routes(page, {"search": ["fleet.P.active.r1"]})
    return page.text()


def value(text: str, name: str, **labels: str) -> float:
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
    (one,) = (s.value for s in samples if s.name == name and labels.items() <= s.labels.items())
    return one


def test_the_documentation_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == reference()


def test_the_histogram_has_an_edge_at_the_slo_and_late_requests_are_counted() -> None:
    totals = Totals()
    for ended in (record(30), record(40), record(41), record(5, http=503), record(900, abandoned=True)):
        totals.add(ended, "fleet.P.active.r1", PROMISES.by_endpoint)
    text = page_of(totals)
    assert value(text, "trisect_request_duration_seconds_bucket", le="0.04") == 3
    assert value(text, "trisect_request_duration_seconds_count") == 4
    assert value(text, "trisect_late_requests_total") == 2
    assert value(text, "trisect_slo_requests_total") == 4
    assert value(text, "trisect_requests_total", code="abandoned") == 1


def test_refused_requests_are_counted_apart_from_late_ones() -> None:
    totals = Totals()
    for ended in (record(30), record(0, http=503)._replace(refused=True, server="")):
        totals.add(ended, "fleet.P.active.r1", PROMISES.by_endpoint)
    text = page_of(totals)
    assert value(text, "trisect_refused_requests_total") == 1
    assert value(text, "trisect_requests_total", code="503") == 1
    assert value(text, "trisect_late_requests_total") == 0
    assert value(text, "trisect_slo_requests_total") == 1


def test_another_slo_moves_the_edge_and_keeps_the_counters() -> None:
    totals = Totals()
    totals.add(record(50), "fleet.P.active.r1", PROMISES.by_endpoint)
    looser = {"search": Promise(0.06, 100.0)}
    totals.add(record(50), "fleet.P.active.r1", looser)
    text = page_of(totals)
    assert value(text, "trisect_late_requests_total") == 1
    assert value(text, "trisect_slo_requests_total") == 2
    assert value(text, "trisect_request_duration_seconds_bucket", le="0.06") == 1
    assert 'le="0.04"' not in text


def test_fifty_plans_leave_as_many_series_as_one() -> None:
    totals, counts = Totals(), []
    for revision in range(51):
        totals.add(record(30), f"fleet.P.active.r{revision}", PROMISES.by_endpoint)
        counts.append(sum(not line.startswith("#") for line in page_of(totals).splitlines()))
    assert counts[-1] == counts[0]


def test_a_late_line_of_the_log_does_not_make_a_counter_fall() -> None:
    losses, shown = Losses(), []
    for number in (1, 3, 2, 4, 7):
        losses.count("http:1", number)
        page = Page()
        write_own(page, Totals(), losses, {}, PROMISES)
        shown.append(value(page.text(), "trisect_telemetry_lines_lost_total"))
    assert shown == sorted(shown)
    assert shown[-1] == 2


def test_labels_are_escaped_and_numbers_are_read_back() -> None:
    page = Page()
    page.add(DURATION, 0.1 + 0.2, 'a"\\\n')
    page.add_histogram(DURATION, (0.1,), (1, 2), 3.5, "b")
    text = page.text()
    assert value(text, "trisect_request_duration_seconds", endpoint='a"\\\n') == 0.1 + 0.2
    assert value(text, "trisect_request_duration_seconds_bucket", endpoint="b", le="+Inf") == 3


def test_promtool_finds_no_fault_in_any_metric() -> None:
    if prometheus.found("promtool") is None:
        pytest.skip(prometheus.NOT_RUN)
    page = Page()
    for family in CATALOGUE:
        labels = ["x"] * len(family.labels)
        if family.kind is Kind.HISTOGRAM:
            page.add_histogram(family, (0.1,), (1, 2), 3.5, *labels)
        else:
            page.add(family, 1.0, *labels)
    checked = prometheus.promtool("check", "metrics", page=page.text())
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")

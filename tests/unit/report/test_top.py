"""What `ctl top` shows: rows of a status, their order, their sparklines."""

import pytest

from controlplane.report.tables.status_table import GuardRow, Status, StatusRow, WorkloadRow, is_late
from controlplane.report.top import KEPT, Order, Row, companions, ordered, rows, sparkline


def server(partition: str, *endpoints: str, routed: bool = True, percent: float = 50.0) -> StatusRow:
    return StatusRow(partition, "active", "running", "v100-0", percent, "MPS", endpoints, routed, "a", "b")


def workload(name: str, *partitions: str, p99_ms: float | None = None, rate_rps: float = 10.0) -> WorkloadRow:
    return WorkloadRow(name, name, partitions, 40.0, 100.0, p99_ms, rate_rps, 0)


def status(*workloads: WorkloadRow) -> Status:
    servers = (server("P", "search", "ads"), server("P", "search", "ads", routed=False, percent=60.0))
    return Status(servers, workloads, (GuardRow("P", "guarded", 3.0),), 7)


def row(name: str, p99_ms: float | None, rate_rps: float = 1.0) -> Row:
    return rows(status(workload(name, "P", p99_ms=p99_ms, rate_rps=rate_rps)), ())[0]


def test_a_row_names_the_servers_that_have_the_traffic_and_the_guard() -> None:
    search, lost = rows(status(workload("search", "P", p99_ms=41.0), workload("lost", "Q")), ())
    assert (search.served_by, search.guard) == ("P 50 % of v100-0", "guarded")
    assert is_late(search.seen)
    assert (lost.served_by, lost.guard) == ("no server", "–")


def test_figures_are_kept_for_a_bounded_number_of_looks() -> None:
    found: tuple[Row, ...] = ()
    for look in range(KEPT + 5):
        found = rows(status(workload("search", "P", rate_rps=float(look))), found)
    assert found[0].rates == tuple(float(look) for look in range(5, KEPT + 5))
    assert rows(status(), found) == (), "a workload that is gone leaves no row"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.SPEC, ["slow", "idle", "busy"]),
        (Order.P99, ["slow", "busy", "idle"]),
        (Order.RATE, ["busy", "idle", "slow"]),
        (Order.NAME, ["busy", "idle", "slow"]),
    ],
)
def test_the_most_urgent_workload_comes_first(order: Order, expected: list[str]) -> None:
    found = [row("slow", 80.0), row("idle", None), row("busy", 20.0, rate_rps=90.0)]
    assert [r.seen.workload for r in ordered(found, order)] == expected


def test_a_sparkline_has_one_width_and_leaves_out_what_is_unknown() -> None:
    drawn = sparkline((None, 0.0, 20.0, 40.0, 400.0), 40.0)
    assert drawn == " ▁▅██".rjust(KEPT)


def test_a_redirect_moves_all_workloads_of_a_partition() -> None:
    found = status(workload("search", "P"), workload("ads", "P", "Q"), workload("other", "Q"))
    assert companions(found, "search") == ("ads",)
    assert companions(found, "unknown") == ()

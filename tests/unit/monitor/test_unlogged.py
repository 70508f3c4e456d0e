"""What HAProxy's counters tell of the requests that it writes no line of."""

from __future__ import annotations

from controlplane.monitor.records import Losses, Unlogged, parse
from controlplane.monitor.totals import Totals

CARRIED = {"g_0": ("w", "alias"), "h_0": ("w", "alias"), "g_1": ("v",)}


def rows(given: int = 100, **ended: int) -> list[dict[str, str]]:
    """Each backend was given so many requests, has seven, and so many ended without an answer."""
    told = [
        {"pxname": name, "stot": str(given), "scur": "7", "req_tot": str(given - 7 - silent)}
        for name, silent in ended.items()
    ]
    return [*told, {"pxname": "facade_grpc", "stot": "9", "scur": "", "req_tot": ""}]


def test_what_ended_without_an_answer_is_told_once() -> None:
    unlogged = Unlogged()
    assert unlogged.total is None
    assert unlogged.lines(rows(g_0=3, h_0=0, g_1=1), CARRIED, 10.0) == []
    assert unlogged.total == 0, "what was before may have been told by the monitor before"
    lines = unlogged.lines(rows(g_0=5, h_0=1, g_1=1), CARRIED, 12.5)
    assert unlogged.lines(rows(g_0=5, h_0=1, g_1=1), CARRIED, 17.5) == []
    records = [record for record in map(parse, lines) if record is not None]
    told = [(r.sender, r.number, r.endpoint, r.server, r.ended_s, r.latency_ms, r.failed) for r in records]
    assert told == [
        ("grpc:unlogged", 0, "w", "", 12.5, 0.0, True),
        ("grpc:unlogged", 1, "w", "", 12.5, 0.0, True),
        ("http:unlogged", 0, "w", "", 12.5, 0.0, True),
    ]
    assert [(r.http, r.grpc, r.lost, r.held) for r in records] == [
        (200, 14, True, True),
        (200, 14, True, True),
        (502, None, True, True),
    ]
    assert unlogged.total == 3
    (later,) = unlogged.lines(rows(g_0=5, h_0=1, g_1=2), CARRIED, 20.0)
    losses = Losses()
    for record in (*records, parse(later)):
        assert record is not None
        losses.count(record.sender, record.number)
    assert losses.counts() == {"received": 4, "lost": 0}


def test_a_haproxy_that_was_started_again_counts_from_nought() -> None:
    unlogged = Unlogged()
    unlogged.lines(rows(g_0=3, g_1=0), CARRIED, 10.0)
    assert unlogged.lines([], CARRIED, 11.0) == [], "while it is gone"
    assert len(unlogged.lines(rows(given=90, g_0=2, g_1=1), CARRIED, 15.0)) == 3


def test_a_request_that_ends_as_haproxy_tells_brings_nothing_back() -> None:
    unlogged = Unlogged()
    unlogged.lines(rows(g_0=3, g_1=0), CARRIED, 10.0)
    assert len(unlogged.lines(rows(given=200, g_0=8, g_1=0), CARRIED, 15.0)) == 5
    # Counted as answered by one of its threads, and not yet as gone.
    assert unlogged.lines(rows(given=300, g_0=7, g_1=-1), CARRIED, 20.0) == []
    assert unlogged.lines(rows(given=400, g_0=8, g_1=0), CARRIED, 25.0) == []
    assert len(unlogged.lines(rows(given=500, g_0=9, g_1=0), CARRIED, 30.0)) == 1


def test_a_slot_that_was_emptied_meanwhile_is_still_known() -> None:
    unlogged = Unlogged()
    unlogged.lines(rows(g_1=0, g_2=0), CARRIED, 10.0)
    (line,) = unlogged.lines(rows(g_1=1, g_2=1), {}, 15.0)
    assert b" v " in line


def test_a_page_of_metrics_says_what_the_client_reads() -> None:
    lines = [
        b"grpc:unlogged 0 w - - 200 14 SH 0 0 5 5",
        b"http:unlogged 0 w - - 502 - SH 0 0 5 5",
        # HAProxy's own line of a call that it ended as REFUSED_STREAM.
        b"grpc:h1 1 w - - 503 - SC 292 0 5 9",
        b"grpc:h1 2 w 127.0.0.1 9 200 - -- 292 80 5 9",
    ]
    totals = Totals()
    for line in lines:
        record = parse(line)
        assert record is not None
        totals.add(record, "none", {})
    assert totals.requests() == {
        ("w", "none", "", "grpc", "14"): 2,
        ("w", "none", "", "http", "502"): 1,
        ("w", "none", "", "grpc", "0"): 1,
    }

"""What a line of the gateway's log says of a request, and which lines are missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.monitor.records import Losses, Record, Unlogged, parse
from controlplane.monitor.state import Totals

LINE = "grpc:h77 12 m one:abc g_3 200 - -- 100 200 1700000000250000 1700000001750000"


def record(line: str) -> Record:
    found = parse(line.encode())
    assert found is not None
    return found


def test_a_line_is_read() -> None:
    found = record(LINE)
    assert found == Record("grpc:h77", 12, "m", "one:abc", 200, None, 100, 200, 1700000001.75, 1500.0, False)
    assert not found.failed
    assert record(LINE.replace(" -- ", " SH/0/shop ")).client == "shop", "where clients have tokens"
    only_counts = record(LINE.replace(" m ", " - "))
    assert (only_counts.sender, only_counts.number, only_counts.endpoint) == ("grpc:h77", 12, "")


FLAGS = ("failed", "abandoned", "refused", "held", "lost")


@pytest.mark.parametrize(
    ("http", "grpc", "flags", "expected"),
    [
        (502, "-", "SH/0/-", "failed held lost"),  # the server died over it
        (503, "-", "SC/0/-", "failed held lost"),  # so did one, and the next one refused the connection
        (503, "-", "SC/-251/-", "failed held lost"),  # HAProxy counts back from the last try
        (503, "-", "SC/-1/-", "failed lost"),  # none was reached
        (200, "14", "SD/1/-", "failed held lost"),
        (200, "14", "SC/-1/-", "failed lost"),
        (500, "-", "--/0/-", "failed held"),  # a server's own answer
        (200, "13", "--/0/-", "failed held"),
        (200, "15", "--/0/-", "failed held"),
        (200, "16", "--/0/-", ""),  # a token is wrong
        (200, "3", "--/0/-", ""),  # a bad request
        (200, "5", "--/0/-", ""),
        (404, "-", "--/0/-", ""),
        (503, "-", "--/0/-", "refused"),  # a full queue
        (200, "14", "--/0/-", "refused"),
        (200, "-", "--/0/-", ""),
        (502, "-", "SH", "failed held lost"),  # as requests that HAProxy did not log are reported
        (503, "-", "SC", "failed lost"),
        (200, "-", "CH/0/-", "abandoned held"),  # its client left, and the server goes on
        (200, "-", "CD/0/-", "abandoned held"),
        (0, "-", "C-", "abandoned held"),  # as the facade writes it
        (200, "1", "--", "abandoned held"),
        (200, "-", "CL/0/-", "abandoned"),  # while the last bytes were passed on
        (200, "-", "CR/-1/-", "abandoned"),
    ],
)
def test_how_a_request_ended(http: int, grpc: str, flags: str, expected: str) -> None:
    found = record(f"grpc:h1 1 m one:abc g_3 {http} {grpc} {flags} 9 9 1700 1800")
    assert " ".join(name for name in FLAGS if getattr(found, name)) == expected


@pytest.mark.parametrize(
    ("http", "grpc", "succeeded"), [(200, "-", True), (400, "-", False), (200, "3", False)]
)
def test_a_bad_request_did_not_succeed(http: int, grpc: str, succeeded: bool) -> None:
    found = record(f"grpc:h1 1 m one:abc g_3 {http} {grpc} --/0/- 9 9 1700 1800")
    assert (found.succeeded, found.failed) == (succeeded, False)


@pytest.mark.parametrize(("protocol", "http", "grpc"), [("grpc", 200, 14), ("http", 503, None)])
def test_a_server_that_has_unloaded_the_model_failed(protocol: str, http: int, grpc: int | None) -> None:
    found = record(f"{protocol}:h1 1 m one:abc g_3 {http} unloaded -- 9 9 1700 1800")
    assert (found.unloaded, found.failed, found.grpc, found.http) == (True, True, grpc, http)


@pytest.mark.parametrize(
    ("words", "server"),
    [
        ("one:abc:backup g_3", "one:abc"),
        ("gate q_3", ""),
        ("<NOSRV> g_3", ""),
        ("127.0.0.1 9001", ""),
        ("::1 9001", ""),
    ],
)
def test_a_server_is_known_by_its_line_and_one_of_an_earlier_version_by_nothing(
    words: str, server: str
) -> None:
    found = record(LINE.replace("one:abc g_3", words))
    assert (found.server, found.failed) == (server, False)


@given(st.binary(max_size=200))
def test_noise_is_no_line(noise: bytes) -> None:
    assert parse(noise) is None or len(noise.split()) >= 12


@given(st.lists(st.integers(1, 30), unique=True, min_size=2))
def test_losses_are_the_gaps_whatever_the_order(numbers: list[int]) -> None:
    first = min(numbers)
    losses = Losses()
    for number in (first, *(n for n in numbers if n != first)):
        losses.count("a", number)
    assert losses.received == len(numbers)
    assert losses.lost == max(numbers) - first + 1 - len(numbers)


def test_each_sender_counts_for_itself() -> None:
    losses = Losses()
    for sender, number in (("a", 5), ("b", 100), ("a", 6), ("b", 103)):
        losses.count(sender, number)
    assert (losses.received, losses.lost) == (4, 2)


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
    assert (losses.received, losses.lost) == (4, 0)


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
        b"grpc:h1 2 w one:abc g_3 200 - -- 292 80 5 9",
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

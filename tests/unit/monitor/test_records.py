"""What a line of the gateway's log says of a request that failed."""

from __future__ import annotations

import pytest

from controlplane.monitor.records import parse


@pytest.mark.parametrize(
    ("http", "grpc", "flags", "held"),
    [
        (502, "-", "SH/0/-", True),  # the server died over it
        (503, "-", "SC/0/-", True),  # so did one, and the next one refused the connection
        (503, "-", "SC/-251/-", True),  # HAProxy counts back from the last try
        (503, "-", "SC/-1/-", False),  # none was reached
        (200, "14", "SD/1/-", True),
        (200, "14", "SC/-1/-", False),
        (500, "-", "--/0/-", True),  # a server's own answer
        (200, "13", "--/0/-", True),
        (503, "-", "--/0/-", False),  # a full queue
        (200, "-", "--/0/-", False),  # answered
        (502, "-", "SH", True),  # as earlier versions wrote it
        (503, "-", "SC", False),
        (200, "-", "CH/0/-", True),  # its client left, and the server goes on
        (200, "-", "CD/0/-", True),
        (0, "-", "C-", True),  # as the facade writes it
        (200, "-", "CL/0/-", False),  # while the last bytes were passed on
        (200, "-", "CR/-1/-", False),
    ],
)
def test_a_failed_or_abandoned_request_was_held_where_a_server_was_reached(
    http: int, grpc: str, flags: str, held: bool
) -> None:
    record = parse(f"grpc:h1 1 m 127.0.0.1 9001 {http} {grpc} {flags} 9 9 1700 1800".encode())
    assert record is not None
    assert record.held == held


@pytest.mark.parametrize(("http", "flags", "lost"), [(502, "SH/0/-", True), (500, "--/0/-", False)])
def test_a_failure_that_its_server_answered_was_not_lost(http: int, flags: str, lost: bool) -> None:
    record = parse(f"grpc:h1 1 m 127.0.0.1 9001 {http} - {flags} 9 9 1700 1800".encode())
    assert record is not None
    assert record.lost == lost


def test_the_client_of_a_request_is_known_where_clients_have_tokens() -> None:
    record = parse(b"http:h1 1 m 127.0.0.1 9001 502 - SH/0/shop 9 9 1700 1800")
    assert record is not None
    assert (record.client, record.held) == ("shop", True)

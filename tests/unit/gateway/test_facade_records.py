"""The facade's lines about its own requests, as the monitor reads them."""

from __future__ import annotations

import socket
import time

import pytest

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.records import ABANDONED, Records
from controlplane.monitor.records import parse

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_request_that_its_client_left_is_none_that_was_answered(abandoned: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as monitor:
        monitor.bind(("127.0.0.1", 0))
        monitor.settimeout(10.0)
        records = Records(monitor.getsockname()[1], "secret")
        try:
            server = Backend("s", "127.0.0.1", 8000, 8001)
            records.request(
                "w", server, time.monotonic(), 1, 0, http=0, grpc=None, flags=ABANDONED if abandoned else "--"
            )
            _, _, line = monitor.recv(4096).partition(b" ")
        finally:
            records.close()
    record = parse(line)
    assert record is not None
    assert (record.endpoint, record.abandoned) == ("w", abandoned)

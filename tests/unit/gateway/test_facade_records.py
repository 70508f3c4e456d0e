"""The facade's lines about its own requests, as the monitor reads them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from controlplane.domain.fleet import Backend
from controlplane.files.gateway_paths import open_log
from controlplane.gateway.facade.records import ABANDONED, Ended, Records
from controlplane.monitor.records import parse


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_request_that_its_client_left_is_none_that_was_answered(tmp_path: Path, abandoned: bool) -> None:
    path = tmp_path / "log.pipe"
    with open(open_log(path), "rb", buffering=0) as monitor:
        records = Records(open_log(path))
        try:
            server = Backend("s", "127.0.0.1", 8000, 8001)
            flags = ABANDONED if abandoned else "--"
            records.request("w", server, time.monotonic(), (1, 0), Ended(0, None, flags))
        finally:
            records.close()
        record = parse(monitor.read(4096))
    assert record is not None
    assert (record.endpoint, record.abandoned) == ("w", abandoned)

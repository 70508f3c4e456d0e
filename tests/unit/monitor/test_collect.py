from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.monitor.state import Addresses, Monitor

pytestmark = pytest.mark.unit

LINE = b"grpc:h77 12 m 127.0.0.1 9001 200 - -- 100 200 1700000000250000 1700000001750000"


def test_lines_of_other_senders_are_no_lines(tmp_path: Path) -> None:
    monitor = Monitor(Addresses(tmp_path / "slots.json"), "a secret")
    assert monitor.own(b"a secret " + LINE + b"\n") == LINE
    for forged in (LINE, b"guess " + LINE, b"a secre", b"", b" " + LINE):
        assert monitor.own(forged) is None

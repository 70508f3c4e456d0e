"""Readings of servers under suspicion, in threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.runtime.controller import suspects

pytestmark = pytest.mark.unit

SPEC = ServerSpec(Labels("f", "p", "w", Role.ACTIVE, "r"), "/models", ("w",), "cpu-0", 50.0)
SERVER = Server("1", SPEC, ServerState.RUNNING, "127.0.0.1", 1, 2, 3)


def test_a_server_whose_reading_failed_for_any_reason_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Semaphore(0)

    def broken(*_: Any, **__: Any) -> None:
        begun.release()
        raise ValueError("a page that no Triton writes")

    monkeypatch.setattr(suspects, "StatisticsClient", broken)
    times = suspects.TimesOfSuspects()
    try:
        for now in (0.0, 1.0):
            while not begun.acquire(timeout=0.01):
                times.ask(SERVER, ["w"], now)
                now += suspects.EVERY_S
    finally:
        times.close()
    assert times.found(SERVER.name, 2.0) is suspects.UNKNOWN

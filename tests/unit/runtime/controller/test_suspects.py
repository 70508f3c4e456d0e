"""Readings of servers under suspicion, in threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from controlplane.domain.errors import EngineError
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

    monkeypatch.setattr(suspects, "TritonClient", broken)
    times = suspects.TimesOfSuspects()
    try:
        for now in (0.0, 1.0):
            while not begun.acquire(timeout=0.01):
                times.ask(SERVER, ["w"], now)
                now += suspects.EVERY_S
    finally:
        times.close()
    assert times.found(SERVER.name, 2.0) is suspects.UNKNOWN


def test_many_servers_under_suspicion_are_each_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    class Silent:
        def __init__(self, server: Server, deadline_s: float) -> None:
            asked[server.name] += 1
            raise EngineError("it does not answer")

    monkeypatch.setattr(suspects, "TritonClient", Silent)
    servers = [
        replace(SERVER, spec=replace(SPEC, labels=replace(SPEC.labels, partition=f"p{n}"))) for n in range(20)
    ]
    times = suspects.TimesOfSuspects()
    times._pool = cast(Any, AtOnce())
    for tick in range(100):
        for server in servers:
            times.ask(server, ["w"], 0.05 * tick)
    assert sum(asked.values()) <= 1.2 * suspects.READINGS_RPS * 5.0
    assert max(asked.values()) <= min(asked.values()) + 1, "all in turn"
    assert len(asked) == len(servers)


class AtOnce:
    def submit(self, work: Callable[..., None], *given: object) -> None:
        work(*given)

"""A host that refuses processes and threads cannot be had for a test."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controlplane.gateway import supervision
from controlplane.gateway.places import Places

pytestmark = pytest.mark.unit


def test_a_host_that_refuses_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places.of(tmp_path)
    places.supervisor_lock.touch()
    refusals: list[Exception] = [BlockingIOError("no process"), RuntimeError("can't start new thread")]

    async def run() -> None:
        started = asyncio.Event()

        async def refused(*_: object) -> None:
            if refusals:
                raise refusals.pop(0)
            started.set()

        for name in ("_LOOK_S", "_STARTING_S"):
            monkeypatch.setattr(supervision, name, 0.0)
        monkeypatch.setattr(asyncio, "to_thread", refused)
        keeping = asyncio.create_task(supervision.keep(places, None))
        try:
            await asyncio.wait_for(started.wait(), 10)
            assert not keeping.done()
        finally:
            keeping.cancel()

    asyncio.run(run())

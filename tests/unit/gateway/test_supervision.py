"""A host that refuses processes and threads cannot be had for a test, nor a supervisor that dies at will."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

import pytest

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.facade import chores
from controlplane.gateway.listeners import Held

pytestmark = pytest.mark.unit


def test_a_host_that_refuses_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = GatewayPaths.of(tmp_path)
    places.supervisor_lock.touch()
    refusals: list[Exception] = [BlockingIOError("no process"), RuntimeError("can't start new thread")]

    async def run() -> None:
        started = asyncio.Event()

        async def refused(*_: object) -> None:
            if refusals:
                raise refusals.pop(0)
            started.set()

        monkeypatch.setattr(chores, "_LOOK_S", 0.0)
        monkeypatch.setattr(processes, "STARTING_S", 0.0)
        monkeypatch.setattr(asyncio, "to_thread", refused)
        keeping = asyncio.create_task(chores.keep_supervisor(places, Held()))
        try:
            await asyncio.wait_for(started.wait(), 30)
            assert not keeping.done()
        finally:
            keeping.cancel()

    asyncio.run(run())


def test_one_that_dies_soon_after_its_start_is_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = GatewayPaths.of(tmp_path)
    places.supervisor_lock.touch()
    monkeypatch.setattr(chores, "_LOOK_S", 0.01)
    monkeypatch.setattr(processes, "STARTING_S", 3600.0)

    async def run() -> None:
        starts: asyncio.Queue[None] = asyncio.Queue()

        async def started(*_: object) -> None:
            starts.put_nowait(None)

        monkeypatch.setattr(asyncio, "to_thread", started)
        keeping = asyncio.create_task(chores.keep_supervisor(places, Held()))
        try:
            for _ in range(2):
                await asyncio.wait_for(starts.get(), 30)
                with places.supervisor_lock.open() as held:
                    fcntl.flock(held, fcntl.LOCK_EX)
                    await asyncio.sleep(0.1)
                    assert starts.empty(), "nobody else is started while it lives, or has not begun to"
        finally:
            keeping.cancel()

    asyncio.run(run())

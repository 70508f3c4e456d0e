"""Chores of the facade: keep a supervisor running, and give memory back after large messages."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from collections.abc import Callable

from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import processes
from controlplane.gateway.listeners import Held

_LOOK_S = 1.0
_WORTH_BYTES = 32 * 2**20


async def keep_supervisor(paths: GatewayPaths, held: Held) -> None:
    """Start a supervisor whenever none runs, and keep the sockets open for it. Never returns."""
    while True:
        await asyncio.sleep(_LOOK_S)
        if processes.supervisor_is_missing(paths):
            # What the host refuses now is tried again; a thread that it refuses is a RuntimeError.
            with contextlib.suppress(OSError, RuntimeError):
                await asyncio.to_thread(processes.start_supervisor, paths, held)
            deadline = time.monotonic() + processes.STARTING_S
            while processes.supervisor_is_missing(paths) and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_S)


async def give_memory_back(handled_bytes: Callable[[], int]) -> None:
    """Return freed memory to the kernel after every 32 MB handled; the process keeps it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    done = 0
    while True:
        await asyncio.sleep(_LOOK_S)
        if handled_bytes() - done > _WORTH_BYTES:
            done = handled_bytes()
            await asyncio.to_thread(trim, 0)

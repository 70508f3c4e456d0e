"""The supervisor, as others see it: whether one is there, and how to have one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import time

from controlplane.gateway import processes
from controlplane.gateway.listeners import Listeners
from controlplane.gateway.places import Places

_LOOK_S = 1.0
_STARTING_S = 10.0
"""For one that was started to hold its lock, also on a busy host, before another one is."""


def start(places: Places, listeners: Listeners | None = None) -> None:
    """Start one, nobody's child, that takes the sockets over. Where one lives, the new one ends."""
    descriptors = () if listeners is None else listeners.descriptors()
    command = [sys.executable, "-m", "controlplane.gateway.supervise", str(places.state)]
    processes.spawn_detached(places, processes.SUPERVISOR, [*command, *map(str, descriptors)], descriptors)


def is_missing(places: Places) -> bool:
    """Whether it died: its lock is there and nobody holds it. Who ends it on purpose removes that first."""
    try:
        with places.supervisor_lock.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


async def keep(places: Places, listeners: Listeners | None) -> None:
    """A process that the supervisor keeps up keeps the supervisor up, and its sockets open. Never returns."""
    while True:
        await asyncio.sleep(_LOOK_S)
        if is_missing(places):
            # What the host does not allow now is tried again; a thread that it refuses is a RuntimeError.
            with contextlib.suppress(OSError, RuntimeError):
                await asyncio.to_thread(start, places, listeners)
            deadline = time.monotonic() + _STARTING_S
            while is_missing(places) and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_S)

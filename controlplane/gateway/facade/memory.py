"""Gives memory back after large messages: freed pieces of them otherwise stay with the process for good."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

_LOOK_S = 1.0
_WORTH_BYTES = 32 * 2**20
ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "1048576"}
"""For glibc, set before the process starts: few arenas, and large blocks go back to the kernel when freed."""


async def give_back(handled_bytes: Callable[[], int]) -> None:
    """For ever: after every so many bytes handled, return what is free to the kernel."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    done = 0
    while True:
        await asyncio.sleep(_LOOK_S)
        if handled_bytes() - done > _WORTH_BYTES:
            done = handled_bytes()
            await asyncio.to_thread(trim, 0)

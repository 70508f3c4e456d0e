import asyncio
import gc
import tracemalloc
from pathlib import Path
from typing import Any, Self, cast

import grpc

from controlplane.gateway.facade import over_grpc
from controlplane.gateway.facade.upstream import SERVICE

_MESSAGE = bytes(8 * 2**20)


class _AnyCaller:
    """The callers of a fleet without tokens."""

    clients = None

    def of(self, _: object) -> Self:
        return self


class _Parts:
    """A facade of a fleet that is not served yet."""

    fleet = broadcast = None
    callers = _AnyCaller()


async def _kept_bytes(address: str) -> int:
    """Return what a call with a large message leaves in memory, while nothing collects circles."""
    server = await over_grpc.serve(over_grpc.Service(cast(Any, _Parts), cast(Any, None)), address)
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"{SERVICE}ServerLive")
        await call(b"")
        before, _ = tracemalloc.get_traced_memory()
        await call(_MESSAGE)
        await server.stop(None)
    return tracemalloc.get_traced_memory()[0] - before


def test_a_message_that_was_answered_is_not_held(nearby: Path) -> None:
    gc.disable()
    tracemalloc.start()
    try:
        kept = asyncio.run(_kept_bytes(f"unix:{nearby / 'facade.sock'}"))
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < len(_MESSAGE) / 2

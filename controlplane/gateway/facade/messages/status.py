"""Ends of gRPC calls, and messages as bytes."""

from __future__ import annotations

from typing import Any, NoReturn


async def abort(context: Any, code: Any, details: str) -> NoReturn:
    """End a call with a status."""
    await context.abort(code, details)
    raise AssertionError("abort raises")


async def pass_on(context: Any, error: Any) -> NoReturn:
    """End a call as a server ended it."""
    await context.abort(error.code(), error.details() or "", error.trailing_metadata() or ())
    raise AssertionError("abort raises")


def as_bytes(message: Any) -> bytes:
    """Return a message of protobuf on the wire."""
    serialised: bytes = message.SerializeToString()
    return serialised

"""HTTP answers of the facade, in a Triton's form."""

from __future__ import annotations

from aiohttp import web


def error(status: int, text: str) -> web.Response:
    """Return a refusal."""
    return web.json_response({"error": text}, status=status)

"""HTTP answers of the facade, in a Triton's form."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web


class BadBody(Exception):
    """A body that the gateway refuses, with the HTTP status of the answer."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


def error(status: int, text: str) -> web.Response:
    """Return a refusal."""
    return web.json_response({"error": text}, status=status)

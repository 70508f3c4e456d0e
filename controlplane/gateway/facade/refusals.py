"""What the facade refuses, with its status in both protocols."""

from __future__ import annotations

from collections.abc import Mapping

from grpc import StatusCode

_HTTP = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.UNAUTHENTICATED: 403,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.UNAVAILABLE: 503,
}


class Refusal(Exception):
    """A request that is refused. `headers` go with the answer, over gRPC as trailing metadata."""

    def __init__(
        self,
        code: StatusCode,
        words: str,
        *,
        http: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(words)
        self.code = code
        self.http = http or _HTTP.get(code, 500)
        self.headers = headers or {}


class LimitReached(Refusal):
    """The endpoint takes no further request now."""

    def __init__(self, words: str = "this endpoint has reached its limit of requests") -> None:
        super().__init__(StatusCode.RESOURCE_EXHAUSTED, words, headers={"retry-after": "1"})


class TooLarge(Refusal):
    """A body beyond the limit of the endpoint or of the client."""

    def __init__(self, whose: str) -> None:
        words = f"the request body is larger than this {whose}'s limit"
        super().__init__(StatusCode.RESOURCE_EXHAUSTED, words, http=413)


class BadBody(Refusal):
    """A body over HTTP that the gateway refuses."""

    def __init__(self, http: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(StatusCode.INVALID_ARGUMENT, words, http=http, headers=headers)


def unchangeable() -> Refusal:
    """Return the refusal of a call that would load or unload a model."""
    words = "models are loaded and unloaded by the control plane, not by clients"
    return Refusal(StatusCode.PERMISSION_DENIED, words)

"""What the facade refuses, with its status in both protocols, and the limits of endpoints.

HAProxy cannot count streamed messages and compressed gRPC calls, so the facade does.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping

from grpc import StatusCode

from controlplane.files.gateway.access import Limit

_WINDOW_S = 1.0
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


class ServerEnding(Refusal):
    """The server of a routed model has unloaded it, as one that ends does; it worked on nothing of this."""

    def __init__(self) -> None:
        super().__init__(StatusCode.UNAVAILABLE, "the model's server is ending", headers={"retry-after": "1"})


class TooLarge(Refusal):
    """A body beyond the limit of the endpoint or of the client."""

    def __init__(self, whose: str) -> None:
        words = f"the request body is larger than this {whose}'s limit"
        super().__init__(StatusCode.RESOURCE_EXHAUSTED, words, http=413)


class BadBody(Refusal):
    """A body over HTTP that the gateway refuses."""

    def __init__(self, http: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(StatusCode.INVALID_ARGUMENT, words, http=http, headers=headers)


def unknown_model(name: str) -> str:
    """Return a Triton's words for a model that it does not have."""
    return f"Request for unknown model: '{name}' is not found"


def unchangeable() -> Refusal:
    """Return the refusal of a call that would load or unload a model."""
    words = "models are loaded and unloaded by the control plane, not by clients"
    return Refusal(StatusCode.PERMISSION_DENIED, words)


class Meter:
    """Requests of each endpoint at once and in the last second."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._begun: defaultdict[str, deque[float]] = defaultdict(deque)

    def enter(self, endpoint: str, limit: Limit, now_s: float) -> None:
        """Count a request; `leave` follows. Raises LimitReached, and counts nothing then."""
        if limit.max_requests is not None and self._running[endpoint] >= limit.max_requests:
            raise LimitReached
        if limit.max_rate_rps is not None:
            begun = self._begun[endpoint]
            while begun and begun[0] <= now_s - _WINDOW_S:
                begun.popleft()
            if len(begun) >= limit.max_rate_rps:
                raise LimitReached
            begun.append(now_s)
        self._running[endpoint] += 1

    def leave(self, endpoint: str) -> None:
        """A request has ended."""
        self._running[endpoint] -= 1
        if not self._running[endpoint]:
            del self._running[endpoint]

    def keep_only(self, limits: Mapping[str, Limit]) -> None:
        """Forget the times of endpoints without limits."""
        for endpoint in [one for one in self._begun if one not in limits]:
            del self._begun[endpoint]


def check_size(size: int, endpoint: int | None, client: int | None) -> None:
    """Raise TooLarge for a body beyond one of these limits."""
    if endpoint is not None and size > endpoint:
        raise TooLarge("endpoint")
    if client is not None and size > client:
        raise TooLarge("client")

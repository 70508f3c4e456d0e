"""Limits of endpoints for what HAProxy cannot count: streamed messages and compressed gRPC calls."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from controlplane.files.limits import Limit
from controlplane.gateway.facade.refusals import LimitReached, TooLarge

_WINDOW_S = 1.0


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

    @contextmanager
    def counted(self, endpoint: str, limit: Limit, now_s: float) -> Iterator[None]:
        """Count a request within."""
        self.enter(endpoint, limit, now_s)
        try:
            yield
        finally:
            self.leave(endpoint)

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

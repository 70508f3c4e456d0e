"""Where each sequence lives: on the server that saw its first request, until it ends or falls silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.domain.fleet import Backend

Key = tuple[str, str]
"""Endpoint and correlation id."""


@dataclass(slots=True)
class _Home:
    backend: Backend
    idle_s: float
    busy: int = 0
    last_s: float = 0.0


class Sequences:
    """Pure bookkeeping; `now_s` is any clock that never goes back."""

    def __init__(self) -> None:
        self._homes: dict[Key, _Home] = {}

    def enter(
        self, key: Key, *, start: bool, idle_s: float, now_s: float, choose: Callable[[], Backend | None]
    ) -> Backend | None:
        """The server of a request that begins now; one without a home is placed by `choose`.

        A first request that starts anew may be placed anew: its server forgets what was before.
        """
        home = self._homes.get(key)
        if home is None or (start and not home.busy) or self._silent(home, now_s):
            backend = choose()
            if backend is None:
                return None
            home = self._homes[key] = _Home(backend, idle_s)
        home.busy += 1
        home.last_s = now_s
        return home.backend

    def leave(self, key: Key, *, end: bool, now_s: float) -> None:
        """A request has been answered; with `end` its sequence is over."""
        home = self._homes.get(key)
        if home is None:
            return
        home.busy -= 1
        home.last_s = now_s
        if end and home.busy <= 0:
            del self._homes[key]

    def expire(self, now_s: float) -> None:
        """Forget sequences that their servers have forgotten."""
        self._homes = {key: home for key, home in self._homes.items() if not self._silent(home, now_s)}

    def living(self) -> dict[str, int]:
        """Server -> sequences it still holds."""
        counts: dict[str, int] = {}
        for home in self._homes.values():
            counts[home.backend.server] = counts.get(home.backend.server, 0) + 1
        return counts

    @staticmethod
    def _silent(home: _Home, now_s: float) -> bool:
        return not home.busy and now_s - home.last_s > home.idle_s

"""Tells `ctl status` how each partition is guarded: a file, replaced whenever something changes."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path

from controlplane.control.guard.state import GuardState, Watch, phase
from controlplane.domain.errors import EngineError
from controlplane.domain.observation import Guarding
from controlplane.files.guarding import write_guarding
from controlplane.ports import Clock

_EVERY_S = 1.0


class Board:
    """What was told last, and where it is written. A disk that refuses stops nobody."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._shown_s = -math.inf
        self._told: dict[str, Guarding] = {}

    def show(self, state: GuardState, *, changed: bool) -> None:
        """Tell the state, if it is not what was told before; once a second unless something `changed`.

        A phase keeps the time since when it lasts.
        """
        if state.now_s - self._shown_s < _EVERY_S and not changed:
            return
        self._shown_s = state.now_s
        wall_s = self._clock.wall()
        # The guard's clock is another one: it tells how long until a moment, not when.
        ahead_s = wall_s - state.now_s
        told = {}
        for name, watch in state.watches.items():
            fresh, before = _guarding(watch, state.now_s, ahead_s), self._told.get(name)
            if before is not None and before.phase == fresh.phase:
                fresh = replace(fresh, since_s=before.since_s)
            if before is not None and before.retry_at_s is not None and fresh.retry_at_s is not None:
                same = abs(before.retry_at_s - fresh.retry_at_s) < 1.0
                fresh = replace(fresh, retry_at_s=before.retry_at_s) if same else fresh
            told[name] = fresh
        if told == self._told:
            return
        self._told = told
        with contextlib.suppress(EngineError):
            write_guarding(self._path, list(told.values()))


def _guarding(watch: Watch, now_s: float, ahead_s: float) -> Guarding:
    book, standby = watch.launches, watch.standby
    waits = book.retry_at_s > now_s
    return Guarding(
        partition=watch.partition.id,
        phase=phase(watch, now_s).value,
        since_s=round(now_s + ahead_s, 3),
        standby=standby.server if standby is not None else None,
        standby_ready=standby is not None and standby.since_s <= now_s,
        failed_starts=book.failures,
        breaker_open=book.open,
        retry_at_s=round(book.retry_at_s + ahead_s, 3) if waits else None,
    )

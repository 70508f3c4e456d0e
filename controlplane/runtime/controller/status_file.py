"""The file with the guard's state of each partition, for `ctl status` and the next controller."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from controlplane.control.guard.state import GuardState, Watch, phase
from controlplane.domain.errors import EngineError
from controlplane.domain.observation import Guarding
from controlplane.files.fleets import write_guarding
from controlplane.ports import Clock

_EVERY_S = 1.0


class StatusFile:
    """Writes the file. A failing disk does not stop the controller."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._written_s = -math.inf
        self._written: dict[str, Guarding] = {}
        self._watches: Mapping[str, Watch] = {}

    def show(self, state: GuardState, *, changed: bool) -> None:
        """Write a different state at most once a second, or at once if something `changed`.

        A phase keeps its start time.
        """
        if state.now_s - self._written_s < _EVERY_S and not changed:
            return
        self._written_s = state.now_s
        wall_s = self._clock.wall()
        # The guard's clock has another origin: only its differences are meaningful here.
        ahead_s = wall_s - state.now_s
        states = {}
        for name, watch in state.watches.items():
            before = self._written.get(name)
            if before is not None and self._watches.get(name) is watch:
                states[name] = before
                continue
            fresh = _guarding(watch, state.now_s, ahead_s)
            if before is not None and before.phase == fresh.phase:
                fresh = replace(fresh, since_s=before.since_s)
            if before is not None and before.retry_at_s is not None and fresh.retry_at_s is not None:
                same = abs(before.retry_at_s - fresh.retry_at_s) < 1.0
                fresh = replace(fresh, retry_at_s=before.retry_at_s) if same else fresh
            states[name] = fresh
        self._watches = state.watches
        if states == self._written:
            return
        self._written = states
        with contextlib.suppress(EngineError):
            write_guarding(self._path, list(states.values()))


def _guarding(watch: Watch, now_s: float, ahead_s: float) -> Guarding:
    starts, standby = watch.launches, watch.standby
    waits = starts.retry_at_s > now_s
    return Guarding(
        partition=watch.partition.id,
        phase=phase(watch, now_s).value,
        since_s=round(now_s + ahead_s, 3),
        standby=standby.server if standby is not None else None,
        standby_ready=standby is not None and standby.since_s <= now_s,
        failed_starts=starts.failures,
        breaker_open=starts.open,
        retry_at_s=round(starts.retry_at_s + ahead_s, 3) if waits else None,
        owned_gpu=watch.owned.gpu if watch.owned is not None else None,
        owned_percent=watch.owned.percent if watch.owned is not None else None,
    )

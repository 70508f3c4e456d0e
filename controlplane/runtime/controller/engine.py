"""The servers that run according to the engine, queried in a thread."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from controlplane.domain.fleet import ServerState
from controlplane.ports import Launcher

_LATE_S = 5.0


class Pace(NamedTuple):
    """The interval of queries; it is longer where they would take more than this part of a core."""

    every_s: float
    part: float


CALM = Pace(5.0, 0.01)
HURRIED = Pace(0.5, 0.1)
AT_ONCE = Pace(0.0, math.inf)


class EngineQueries:
    """Queries an engine for a fleet's servers now and then."""

    def __init__(self, launcher: Launcher, fleet: str) -> None:
        self._launcher = launcher
        self._fleet = fleet
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._queried_s = -math.inf
        self._spent_s = 0.0
        self._under_way = False
        self.running: frozenset[str] = frozenset()
        """The names of the servers that ran at the latest answered query, paused ones among them."""
        self.paused: frozenset[str] = frozenset()
        """Those of them that were paused."""
        self.ends: Mapping[str, str] = {}
        """Why servers had ended by then, or were about to, where the engine said so."""
        self.answered_s = -math.inf
        """The time of the latest answered query."""
        self.trouble = ""

    def ask(self, now: float, pace: Pace) -> None:
        """Start a query, unless the last one is recent or still unanswered."""
        if self._under_way and now - self._queried_s > _LATE_S:
            self.trouble = f"the engine has not answered for {_LATE_S:g} s"
        every_s = max(pace.every_s, self._spent_s / pace.part)
        if not self._under_way and now - self._queried_s >= every_s:
            self._queried_s, self._under_way = now, True
            self._pool.submit(self._ask, now)

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, now: float) -> None:
        began_s = time.thread_time()
        try:
            found = self._launcher.servers(self._fleet)
            self.running = frozenset(s.name for s in found if s.state is not ServerState.EXITED)
            self.paused = frozenset(s.name for s in found if s.state is ServerState.PAUSED)
            self.ends = {s.name: s.end for s in found if s.end is not None}
            self.trouble, self.answered_s = "", now
        except Exception as error:  # any error: the engine gave no answer
            self.trouble = str(error) or repr(error)
        finally:
            self._spent_s = time.thread_time() - began_s
            self._under_way = False

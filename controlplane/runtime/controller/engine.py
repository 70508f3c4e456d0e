"""The servers that run according to the launcher, and to the engine, which is queried in a thread."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from controlplane.domain.fleet import Batches, Server, ServerState
from controlplane.domain.observation import News
from controlplane.ports import Launcher
from controlplane.runtime.polled import Polled

_LATE_S = 5.0


class Pace(NamedTuple):
    """The interval of queries; it is longer where they would take more than this part of a core."""

    every_s: float
    part: float


CALM = Pace(5.0, 0.01)
HURRIED = Pace(0.5, 0.1)
AT_ONCE = Pace(0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Listed:
    """The servers of the latest query that was answered, at `answered_s`, by name.

    `running` has the paused ones too. `ends` says why servers had ended by then, or were about to, where the
    engine said so. `batches` has those of the running ones that can be changed. The latest query took
    `spent_s` of a core; `trouble` is why it had no answer.
    """

    answered_s: float = -math.inf
    running: frozenset[str] = frozenset()
    paused: frozenset[str] = frozenset()
    ends: Mapping[str, str] = field(default_factory=dict)
    batches: Mapping[str, Batches] = field(default_factory=dict)
    spent_s: float = 0.0
    trouble: str = ""


class EngineNews:
    """What the launcher reports of a fleet's servers, and the engine lists when it is asked now and then."""

    def __init__(self, launcher: Launcher, fleet: str) -> None:
        self._launcher = launcher
        self._fleet = fleet
        self._watch = launcher.watch(fleet)
        self._queries: Polled[Listed] = Polled(1, "engine")
        self._reports: list[tuple[float, News]] = []
        self.listed = Listed()
        self._taken_s = -math.inf
        self._missing: frozenset[str] = frozenset()
        self._remarkable: frozenset[str] = frozenset()

    def look(self, servers: Collection[Server], now: float, *, failed: bool) -> tuple[list[News], set[str]]:
        """Return the reports that are believed, and the servers of which the engine's list has news, by name.

        `failed`: requests failed, so the list is asked for soon.
        """
        self._reports += [(now, one) for one in self._watch.news(servers)]
        names = {server.name for server in servers}
        # A launcher watches a model's process from the first list with it on.
        unlisted = not names <= self.listed.running
        self.ask(now, AT_ONCE if self._reports else HURRIED if failed or unlisted else CALM)
        answered_s = self.listed.answered_s
        # An engine that is shutting down reports many deaths and answers no query. Such reports do not count.
        believed = [one for at, one in self._reports if one.certain or answered_s >= at]
        self._reports = [(at, one) for at, one in self._reports if not one.certain and answered_s < at]
        changed: set[str] = set()
        if answered_s != self._taken_s:
            before, self._taken_s = self._remarkable, answered_s
            self._missing = frozenset(names - self.listed.running)
            self._remarkable = self._missing | self.listed.paused | self.listed.ends.keys()
            changed |= before | self._remarkable
        return believed, changed

    def is_missing(self, name: str, since_s: float) -> bool:
        """Return whether a server that was there at `since_s` was in no list after that."""
        return self._taken_s > since_s and name in self._missing

    def ask(self, now: float, pace: Pace) -> None:
        """Start a query, unless the last one is recent or still unanswered, and take what was answered."""
        if self._queries.is_under_way(self._fleet) and now - self._queries.asked_s(self._fleet) > _LATE_S:
            late = f"the engine has not answered for {_LATE_S:g} s"
            self.listed = replace(self.listed, trouble=late)
        every_s = max(pace.every_s, self.listed.spent_s / pace.part)
        self._queries.ask(self._fleet, partial(self._list, now), now, every_s)
        for _, listed in self._queries.take():
            self.listed = listed

    def close(self) -> None:
        """Stop listening, and end the thread."""
        self._watch.close()
        self._queries.close()

    def _list(self, now: float) -> Listed:
        began_s, before = time.thread_time(), self.listed
        try:
            found = self._launcher.servers(self._fleet)
        except Exception as error:  # any error: the engine gave no answer
            return replace(before, spent_s=time.thread_time() - began_s, trouble=str(error) or repr(error))
        return Listed(
            now,
            running=frozenset(s.name for s in found if s.state is not ServerState.EXITED),
            paused=frozenset(s.name for s in found if s.state is ServerState.PAUSED),
            ends={s.name: s.end for s in found if s.end is not None},
            batches={s.name: s.spec.batches for s in found if s.state is ServerState.RUNNING},
            spent_s=time.thread_time() - began_s,
        )

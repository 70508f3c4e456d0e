"""What is asked of a server to know whether it lives, and what is remembered of it.

Canaries, Triton's counters and those of its quota are asked in threads; the observer takes the answers.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from controlplane.domain.errors import EngineError, declined_by_policy, is_own_lack
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, Delays, InFlight, QuotaUse, Server
from controlplane.domain.observation import Health, ModelStatistics, News
from controlplane.ports import Launcher
from controlplane.runtime.polled import Polled
from controlplane.triton import own
from controlplane.triton.client import TritonClient, timed_out
from controlplane.triton.own import Discount
from controlplane.triton.samples import SampleRequest, sample_request
from controlplane.triton.statistics import compute_ms, difference, inferences_each, queue_ms

LIVE_S = 1.0
"""The longest wait of a canary for an answer that needs no model."""
READ_EVERY_S = 0.05
"""Between two readings of one server's counters."""
READINGS_RPS = 40.0
"""The limit of readings of all servers: a busy host has many suspects, and no core to spare."""
_THREADS = 8
"""A reading waits where a server is silent, and must keep those of others waiting for a moment only."""
_READ_S = 0.25
"""The longest wait for a reading, which runs no model."""
_SUSPECT_S = 1.0
_KEPT_S = 2.0
SILENT_READINGS = 2
"""So many in a row without an answer show a hang: Triton's HTTP threads take connections in turn, and one of
them may be busy with a large body."""
QUOTA_WINDOW_S = 0.25
"""The shortest time that delays are computed over: some 25 periods of a quota."""
_QUOTA_KEPT_S = 3.0
_GRAVITY = (Health.ENDING, Health.IMPAIRED, Health.GONE)


class Outcome(StrEnum):
    """What came of a canary."""

    ANSWERED = "answered"
    REFUSED = "refused by the model's queue policy"
    FAILED = "failed"
    LATE = "no answer in time"
    OVERDUE = "a model has answered nothing for as long as a request may take"
    """After refused or late ones, however many requests are open."""
    SILENT = "no call is answered"
    """Not even one that runs no model."""
    UNKNOWN = "not sent"
    """For want of descriptors or memory here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a server's latest canary, sent and ended at times of the monotonic clock.

    `endpoint` is the one that did not answer.
    """

    sent_s: float
    at_s: float
    outcome: Outcome
    reason: str = ""
    endpoint: str = ""


def send_canary(
    server: Server,
    endpoints: Sequence[str],
    samples: MutableMapping[str, SampleRequest],
    discount: Discount,
    deadline_s: float,
) -> Verdict:
    """Send a small real inference to each endpoint. `samples` keeps what is sent, by endpoint."""
    sent_s = time.monotonic()
    late, endpoint = Outcome.SILENT, ""
    try:
        with TritonClient(server, deadline_s=LIVE_S) as client:
            client.answer()
            client.allow(deadline_s)
            late = Outcome.LATE
            for endpoint in endpoints:
                if endpoint not in samples:
                    samples[endpoint] = sample_request(endpoint, server.spec.repository, client.config)
                own.infer(client, endpoint, samples[endpoint], discount)
    except Exception as error:  # any error is a failed canary, but for want of time or of our own means
        outcome, reason = Outcome.FAILED, str(error) or repr(error)
        if timed_out(error):
            outcome, reason = late, f"{late.value} ({deadline_s if late is Outcome.LATE else LIVE_S:g} s)"
        elif is_own_lack(error):
            outcome = Outcome.UNKNOWN
        elif declined_by_policy(reason):
            outcome = Outcome.REFUSED
        return Verdict(sent_s, time.monotonic(), outcome, reason, endpoint)
    return Verdict(sent_s, time.monotonic(), Outcome.ANSWERED)


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of a server's models at a time, or why there are none."""

    at_s: float
    counted: Mapping[str, ModelStatistics] | None
    error: EngineError | None = None


def read_counters(server: Server, models: Sequence[str], deadline_s: float = _READ_S) -> Reading:
    """Read the counters of some of a server's models."""
    counted, found = None, None
    try:
        with TritonClient(server, deadline_s=deadline_s) as client:
            counted = {model: client.statistics(model) for model in models}
    except EngineError as error:
        found = error
    return Reading(time.monotonic(), counted, found)


class Readings(Polled[Reading]):
    """Readings of servers under suspicion."""

    def __init__(self) -> None:
        super().__init__(_THREADS, "statistics")
        # The time of the last look, and how many servers were read within the second before.
        self._counted: tuple[float, int] = (-math.inf, 0)

    def read(
        self, name: str, server: Server, models: Sequence[str], now: float, every_s: float = READ_EVERY_S
    ) -> None:
        """Begin a reading, unless the last one is recent. With many suspects each is read less often."""
        if self._counted[0] != now:
            self._counted = now, self.asked_since(now - _SUSPECT_S)
        every_s = max(every_s, self._counted[1] / READINGS_RPS)
        self.ask(name, partial(read_counters, server, models), now, every_s)


class Times(NamedTuple):
    """Mean times of a server under suspicion, those of its slowest model, and inferences per request."""

    queue_ms: float | None = None
    compute_ms: float | None = None
    inferences: Mapping[str, float] = MappingProxyType({})


UNKNOWN = Times()


@dataclass(slots=True)
class Signs:
    """A server's times and signs of life by its readings, the latest at `read_s`.

    `moved_s` is when each model's counters of work last moved, `failed_s` when it failed requests and did
    nothing else, `compared_s` when that was last looked at, `silent` the number of readings in a row without
    an answer, the first of them at `silent_s`. Times are of the monotonic clock; without a recent reading
    nothing is known.
    """

    read_s: float = -math.inf
    silent: int = 0
    silent_s: float = -math.inf
    compared_s: float = -math.inf
    moved_s: dict[str, float] = field(default_factory=dict)
    failed_s: dict[str, float] = field(default_factory=dict)
    _counted: Mapping[str, ModelStatistics] = field(default_factory=dict)
    _times_s: float = -math.inf
    _times: Times = UNKNOWN

    def are_recent(self, now: float) -> bool:
        """Return whether they say anything of the present."""
        return now - self.read_s < _KEPT_S

    def times(self, now: float) -> Times:
        """Return the latest times; `UNKNOWN` without a recent reading."""
        return self._times if now - self._times_s < _KEPT_S else UNKNOWN

    def moved_since(self, at_s: float) -> bool:
        """Return whether any model was seen to work since then."""
        return any(moved_s > at_s for moved_s in self.moved_s.values())

    def only_failed_since(self, model: str, at_s: float) -> bool:
        """Return whether a model was seen to fail requests since then, and not to work after that."""
        return self.failed_s.get(model, -math.inf) > max(at_s, self.moved_s.get(model, -math.inf))

    def take(self, reading: Reading) -> None:
        """Add a reading. One that failed, but not for want of an answer in time, says nothing."""
        if reading.counted is not None:
            before, self._counted = self._counted, reading.counted
            now = reading.counted
            for model in before.keys() & now.keys():
                if now[model].work != before[model].work:
                    self.moved_s[model] = reading.at_s
                elif now[model].failures > before[model].failures:
                    self.failed_s[model] = reading.at_s
            self.compared_s = reading.at_s if before else self.compared_s
            self.read_s, self.silent = reading.at_s, 0
            with contextlib.suppress(EngineError):  # a model that was loaded again counts from 0
                passed = {m: difference(before[m], now[m]) for m in now if m in before}
                self._times_s, self._times = reading.at_s, _times(passed)
        elif reading.error is not None and timed_out(reading.error):
            if not self.silent or not self.are_recent(reading.at_s):
                self.silent, self.silent_s = 0, reading.at_s
            self.silent += 1
            self.read_s = reading.at_s


def _times(passed: Mapping[str, ModelStatistics]) -> Times:
    """Return the times of what each model did since the reading before."""

    def slowest(mean_of: Callable[[ModelStatistics], float | None]) -> float | None:
        return max((mean for p in passed.values() if (mean := mean_of(p)) is not None), default=None)

    each = {model: n for model, p in passed.items() if (n := inferences_each(p)) is not None}
    return Times(slowest(queue_ms), slowest(compute_ms), each)


class QuotaReading(NamedTuple):
    """What had delayed a server at a time since its start; `used` is None where nothing counts."""

    at_s: float
    used: QuotaUse | None


def read_quota(launcher: Launcher, server: Server) -> QuotaReading:
    """Read what delayed a server. Raises EngineError."""
    return QuotaReading(time.monotonic(), launcher.quota_use(server))


@dataclass(slots=True)
class Quota:
    """What delays a server: its core or its quota, by readings of its counters. `counts`: there are some."""

    counts: bool = True
    _readings: deque[QuotaReading] = field(default_factory=deque)
    _delays_s: float = -math.inf
    _delays: Delays | None = None

    def delays(self, now: float) -> Delays | None:
        """Return what delayed the server recently; None where that is not known."""
        return self._delays if now - self._delays_s < _QUOTA_KEPT_S else None

    def take(self, reading: QuotaReading) -> None:
        """Add a reading."""
        self.counts = reading.used is not None or bool(self._readings)
        if reading.used is None:
            return
        self._readings.append(reading)
        while len(self._readings) > 2 and reading.at_s - self._readings[1].at_s >= QUOTA_WINDOW_S:
            self._readings.popleft()
        first = self._readings[0].used
        delays = reading.used.since(first) if first is not None else None
        if delays is not None:
            self._delays_s, self._delays = reading.at_s, delays


class Failures(NamedTuple):
    """How many requests failed in a row; when the last one did, and the last that had waited before."""

    requests: int
    last_s: float
    waited_s: float


@dataclass(slots=True)
class ServerRecord:
    """What is remembered of a server while it runs. Times are of the monotonic clock.

    It is seen as ready since `ready_s` and as active since `active_s`. A request was last answered at
    `answered_s`, of each endpoint at `answered_of`, also with a refusal or a failure at `spoke_s`, since its
    process works then. A row of failures of an endpoint is in `failures`. A client last left a request
    of an endpoint at `left_s`, which the server may still work on. A canary was last asked for at `canary_s`;
    `lost` in a row failed, the latest as `verdict` says; `unanswered` is the endpoint that has answered none
    since the one of that time. Its open requests were last read at `in_flight_s`. `news` is the gravest of
    the launcher or the log, `samples` are what canaries send, by endpoint.
    """

    server: Server
    ready_s: float | None = None
    active_s: float | None = None
    answered_s: float = -math.inf
    answered_of: dict[str, float] = field(default_factory=dict)
    spoke_s: float = -math.inf
    failures: dict[str, Failures] = field(default_factory=dict)
    left_s: dict[str, float] = field(default_factory=dict)
    canary_s: float = -math.inf
    lost: int = 0
    verdict: Verdict | None = None
    unanswered: tuple[str, float] | None = None
    in_flight_s: float = -math.inf
    in_flight: InFlight = NOTHING_IN_FLIGHT
    news: News | None = None
    samples: dict[str, SampleRequest] = field(default_factory=dict)
    signs: Signs = field(default_factory=Signs)
    quota: Quota = field(default_factory=Quota)

    def answered(self, queue: Sequence[str]) -> float:
        """Return when a queue, of these endpoints, last answered a request."""
        return max(self.answered_of.get(endpoint, -math.inf) for endpoint in queue)

    def failed(self, queue: Sequence[str]) -> Failures:
        """Return the row of failures of a queue, of these endpoints."""
        found = [self.failures[endpoint] for endpoint in queue if endpoint in self.failures]
        return Failures(
            sum(one.requests for one in found),
            max((one.last_s for one in found), default=-math.inf),
            max((one.waited_s for one in found), default=-math.inf),
        )

    def passed(self, queue: Sequence[str], since_s: float) -> None:
        """Forget what was left of a queue before a time: a request of that time has been answered."""
        for endpoint in queue:
            if self.left_s.get(endpoint, math.inf) <= since_s:
                del self.left_s[endpoint]

    def note(self, news: News) -> None:
        """Keep the gravest news. Whether it is paused, the engine's list says."""
        if news.health not in _GRAVITY:
            return
        if self.news is None or _GRAVITY.index(self.news.health) <= _GRAVITY.index(news.health):
            self.news = news

"""The same simulation in plain Python, written for reading: what the compiled loop is held against.

Every arrival, batch end and batcher deadline is an event of its own; after each, every GPU's running
batches are brought up to date. It shares no code with `kernel`, only the component it runs.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from controlplane.simulate.network import Component, Conditions, Route, jitter_table, seed_of

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Seen:
    """One request's fate: `latency_ms` is None where it was dropped; `batch` counts requests."""

    stream: int
    arrival_ms: float
    latency_ms: float | None
    batch: int = 0
    server: int = -1


@dataclass(slots=True)
class _Request:
    stream: int
    arrival: float


@dataclass(slots=True)
class _Executor:
    """One instance of a server."""

    server: int
    requests: list[_Request] = field(default_factory=list)
    work_left: float = 0.0
    idle_since: float = 0.0


@dataclass(slots=True)
class _Line:
    """One server's queue: what waits, and the payloads its batcher has formed.

    growing: the payload that still takes more. The batcher sleeps until `enough` wait, or until `timer`.
    """

    server: int
    pending: deque[_Request] = field(default_factory=deque)
    payloads: list[list[_Request]] = field(default_factory=list)
    growing: list[_Request] | None = None
    enough: float = 0
    timer: float = math.inf


@dataclass(slots=True)
class _Entry:
    """A route with what it has in flight: by server, how many, and since when so many."""

    route: Route
    flying: dict[int, int]
    since: dict[int, float]

    def left(self, server: int, now: float) -> None:
        self.flying[server] -= 1
        self.since[server] = now


class _Jitter:
    """Factors of one server's work: splitmix64 of a counter picks from a table."""

    def __init__(self, cv: float, salt: int) -> None:
        self._table = jitter_table(cv) if cv > 0 else None
        self._salt = salt
        self._count = 0

    def next(self) -> float:
        if self._table is None:
            return 1.0
        self._count += 1
        z = (self._salt + self._count * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return float(self._table[(z ^ (z >> 31)) >> 52])


class Oracle:
    """One component, request by request."""

    def __init__(self, part: Component, conditions: Conditions, seed: int) -> None:
        self._part = part
        self._conditions = conditions
        self._lines = [_Line(s) for s in range(len(part.servers))]
        self._executors = [
            _Executor(s) for s, server in enumerate(part.servers) for _ in range(server.instances)
        ]
        self._entry = {
            stream: entry
            for entry in (
                _Entry(d, dict.fromkeys(d.servers, 0), dict.fromkeys(d.servers, 0.0)) for d in part.routes
            )
            for stream in entry.route.streams
        }
        self._jitter = [
            _Jitter(s.jitter, int(seed_of(seed, f"{s.partition}/{s.model}").generate_state(1, "uint64")[0]))
            for s in part.servers
        ]
        self._batches = [0 for _ in part.servers]
        self._seen: list[Seen] = []

    def run(self, arrivals_ms: Sequence[Sequence[float]]) -> list[Seen]:
        """Every request of every stream, in the order their fates were decided."""
        coming = deque(
            sorted((at, stream) for stream, times in enumerate(arrivals_ms) for at in map(float, times))
        )
        now = 0.0
        while True:
            ends = [self._end(now, e) for e in self._executors]
            wakes = [line.timer for line in self._lines]
            nearest = min([*ends, *wakes, coming[0][0] if coming else math.inf])
            if nearest == math.inf:
                return self._seen
            self._work(nearest - now)
            now = nearest
            woken = {id(line) for line in self._lines if now >= line.timer}
            if nearest in ends:
                executor = self._executors[ends.index(nearest)]
                self._finish(executor, now)
                woken.add(id(self._lines[executor.server]))
            elif coming and coming[0][0] == nearest:
                line = self._arrive(*coming.popleft())
                room = len(line.payloads) < self._ahead(line)
                woken |= {id(line)} if room and len(line.pending) >= line.enough else set()
            for line in sorted(self._lines, key=self._due):
                self._dispatch(line, now, notified=id(line) in woken)

    def _due(self, line: _Line) -> float:
        """The line's place among those that take turns with it."""
        after_ms = self._part.servers[line.server].after_ms
        if after_ms is None:
            return self._batches[line.server]
        return line.pending[0].arrival + after_ms if line.pending else math.inf

    def _pace(self, executor: _Executor) -> float:
        """Ms of time for a ms of work, beside everyone busy on the same GPU."""
        server = self._part.servers[executor.server]
        mask = 0
        for other in self._executors:
            beside = self._part.servers[other.server]
            if other.requests and beside.gpu == server.gpu:
                mask |= beside.bit
        return float(server.pace[mask])

    def _end(self, now: float, executor: _Executor) -> float:
        if not executor.requests:
            return math.inf
        return now + executor.work_left * self._pace(executor)

    def _work(self, passed: float) -> None:
        done = [passed / self._pace(e) if e.requests else 0.0 for e in self._executors]
        for executor, ms in zip(self._executors, done, strict=True):
            executor.work_left -= ms

    def _finish(self, executor: _Executor, now: float) -> None:
        server = self._part.servers[executor.server]
        size = len(executor.requests)
        extra = float(server.extra_ms[size - 1])
        for r in executor.requests:
            self._seen.append(Seen(r.stream, r.arrival, now - r.arrival + extra, size, executor.server))
            self._entry[r.stream].left(executor.server, now)
        executor.requests = []
        executor.idle_since = now

    def _arrive(self, at: float, stream: int) -> _Line:
        entry = self._entry[stream]
        chosen = min(entry.route.servers, key=lambda s: (entry.flying[s], entry.since[s]))
        line = self._lines[chosen]
        if len(line.pending) >= self._conditions.waiting:
            self._seen.append(Seen(stream, at, None))
        else:
            line.pending.append(_Request(stream, at))
            entry.flying[chosen] += 1
            entry.since[chosen] = at
        return line

    def _delay(self, line: _Line) -> float:
        return self._part.servers[line.server].delay_ms

    def _ahead(self, line: _Line) -> int:
        return 2 * self._part.servers[line.server].instances

    def _idle(self, line: _Line) -> _Executor | None:
        if any(e.requests and self._take_turns(e.server, line.server) for e in self._executors):
            return None
        idle = [e for e in self._executors if e.server == line.server and not e.requests]
        return min(idle, key=lambda e: e.idle_since, default=None)

    def _take_turns(self, one: int, other: int) -> bool:
        a, b = self._part.servers[one], self._part.servers[other]
        return one != other and (a.gpu, a.partition) == (b.gpu, b.partition)

    def _dispatch(self, line: _Line, now: float, *, notified: bool) -> None:
        """Let idle executors take what they may; `notified`: something woke a batcher that is not greedy."""
        if self._part.servers[line.server].greedy:
            while line.pending and (executor := self._idle(line)):
                self._expire(line, now)
                if not line.pending:
                    return
                batch = self._part.servers[executor.server].batch
                self._begin(executor, [line.pending.popleft() for _ in range(min(batch, len(line.pending)))])
            return
        while True:
            while line.payloads and (executor := self._idle(line)):
                self._begin(executor, self._fetch(line, now))
                notified = True
            if not notified or not self._form(line, now):
                return

    def _expire(self, line: _Line, now: float) -> None:
        """Drop what has waited too long where a batch starts."""
        while line.pending and now - line.pending[0].arrival > self._part.servers[line.server].drop_ms:
            one = line.pending.popleft()
            self._seen.append(Seen(one.stream, one.arrival, None))
            self._entry[one.stream].left(line.server, now)

    def _fetch(self, line: _Line, now: float) -> list[_Request]:
        """The oldest payload, joined by those after it that are older than the delay and fit."""
        largest = self._part.servers[line.server].largest
        taken = self._close(line, line.payloads.pop(0))
        delay = self._delay(line)
        while delay > 0 and line.payloads and now - line.payloads[0][0].arrival > delay:
            self._close(line, line.payloads[0])
            if len(taken) + len(line.payloads[0]) > largest:
                break
            taken = taken + line.payloads.pop(0)
        return taken

    def _close(self, line: _Line, payload: list[_Request]) -> list[_Request]:
        if payload is line.growing:
            line.growing = None
            line.enough = 0
        return payload

    @staticmethod
    def _scan(held: int, waiting: int, preferred: float, largest: int) -> tuple[int, int, bool, bool]:
        """How many of those waiting fit, the best number to send, whether more wait, whether held is full."""
        best = 0
        saturated = False
        for count in range(waiting):
            size = held + count + 1
            if size > 1 and size > preferred and best == 0:
                best = count
                saturated = True
            if size > 1 and size > largest:
                return count, best, True, saturated
            if size == preferred:
                best = count + 1
        return waiting, best, False, saturated

    def _form(self, line: _Line, now: float) -> bool:
        """Triton's GetDynamicBatch, for one preferred size; False where the batcher goes to sleep."""
        server = self._part.servers[line.server]
        preferred, largest = server.preferred, server.largest
        line.timer = math.inf
        while line.pending and len(line.payloads) < self._ahead(line):
            held = len(line.growing or [])
            count, best, full, saturated = self._scan(held, len(line.pending), preferred, largest)
            delay = self._delay(line)
            old = count == 0 or (delay > 0 and now >= line.pending[0].arrival + delay)
            if best > 0 and not old:
                count = best
            elif count > 0 and (full or held + count >= preferred):
                saturated = True
            elif not old and delay > 0:
                line.enough = preferred - held
                if held == 0:
                    line.timer = line.pending[0].arrival + delay
                    return False
            if count > 0:
                if line.growing is None:
                    line.growing = []
                    line.payloads.append(line.growing)
                line.growing.extend(line.pending.popleft() for _ in range(count))
            if saturated:
                line.growing = None
                line.enough = 0
            if count > 0:
                return True
        return False

    def _begin(self, executor: _Executor, requests: list[_Request]) -> None:
        work = float(self._part.servers[executor.server].work_ms[len(requests) - 1])
        executor.requests = requests
        self._batches[executor.server] += 1
        executor.work_left = work * self._jitter[executor.server].next()

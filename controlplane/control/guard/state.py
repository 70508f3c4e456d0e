"""The guard's values: its state, its effects, and the invariants of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from controlplane.control.guard.sequential import Evidence, Promise
from controlplane.control.guard.service import Service
from controlplane.control.guard.slo_window import SloWindow
from controlplane.domain.observation import Level, ServerSeen
from controlplane.domain.plan import Placement, Plan, ServedModel
from controlplane.domain.workload import ShadowPolicy

WHOLE_PERCENT = 100.0
_ROUNDING = 1e-6

STEP_PERCENT = 10.0
"""How much larger a shadow is than what it covers, where that much is free (as planned shadows are)."""


class Cause(StrEnum):
    """Why a route moves."""

    SLOW = "slow server"
    CRASH = "crash"
    HANG = "hang"
    FAILING = "failing inferences"
    IMPAIRED = "a model's process died"
    ENDING = "another program ends it"
    SHARE = "share given back"


class Topic(StrEnum):
    """The topic of a message that is repeated only after a while."""

    SLO = "P99 above the SLO"
    TRAFFIC = "traffic above plan"
    HOST = "the host is contended"
    EXHAUSTED = "no larger share left"
    WAITING = "waiting for a shadow"
    NO_ROOM = "no room for a shadow"
    ERRORS = "failed requests"
    REFUSED = "refused by policy"


@dataclass(frozen=True, slots=True)
class Redirect:
    """New requests of a partition go to `target` from now on."""

    partition: str
    source: str
    target: str
    cause: Cause


class Ending(StrEnum):
    """How a server ends that no route leads to."""

    DRAINED = "after draining"
    """When it has no open request any more."""
    HUNG = "when it cannot answer any more"
    """As DRAINED, but a process that does nothing gets SIGTERM and a moment to answer if it runs again."""
    REFUSED = "after what the dead process held"
    """It gets SIGTERM, and has the second in which Triton refuses the requests of the dead model process: one
    of them may have crashed it. The others go to the shadow when the server ends."""
    AT_ONCE = "at once"


@dataclass(frozen=True, slots=True)
class DrainAndStop:
    """End a server no route leads to.

    A server that drains is waited for while it streams, and until it has given no answer for `patience_s`: it
    has given none for `silent_s` so far.
    """

    server: str
    ending: Ending
    patience_s: float
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a server for a partition, as its shadow or, where no other lives, as its active server."""

    partition: str
    server: str
    gpu: str
    percent: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load the models of a warm shadow."""

    server: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Send a real inference to a server now; its health shows the result."""

    server: str


class Accused(NamedTuple):
    """An endpoint whose requests were open at several deaths; of one client where that is known."""

    endpoint: str
    client: str = ""

    def __str__(self) -> str:
        return f"endpoint {self.endpoint}" + (f" from client {self.client}" if self.client else "")


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse the requests of `accused` for `seconds`; afterwards give them no second server for a while."""

    partition: str
    accused: Accused
    seconds: float


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """Start no server for this partition until `until_s`: its starts fail."""

    partition: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Add a message to the status and the events."""

    level: Level
    subject: str
    reason: str


Effect = Redirect | DrainAndStop | Launch | Load | Probe | Refuse | OpenBreaker | Report


@dataclass(frozen=True, slots=True)
class Limits:
    """The guard's times, in seconds, and the number of starts that may fail in a row."""

    settle_s: float = 3.0
    hang_s: float = 0.5
    """No answer for this long, or 2 SLOs if that is longer, while `due` requests are open, is a hang."""
    due: int = 3
    """Fewer open requests may all be long ones."""
    overdue_s: float = 60.0
    """No answer for this long, or for what the model ever took, is a hang however few requests are open."""
    drain_s: float = 600.0
    """No answer for this long ends the wait for a server that drains, if no request may take longer."""
    stable_s: float = 10.0
    """A server that lived this long (two canaries) did not fail to start."""
    loop_s: float = 60.0
    """Servers that live shorter than this, one after the other, are a crash loop: the shadow of a server that
    serves for 30 s lives for nearly twice as long."""
    gap_s: float = 2.0
    """After so long without a look, a slow server looks like a host that stood still."""
    back_off_s: float = 1.0
    back_off_max_s: float = 60.0
    """The longest wait between starts of a partition that no server serves."""
    failures: int = 5
    breaker_s: float = 600.0
    calm_s: float = 60.0
    sizes_s: float = 0.5
    """The longest wait for Triton's counts of inferences before a verdict from batch times."""
    repeat_s: float = 300.0
    failed_in_a_row: int = 5
    probe_s: float = 1.0
    """The time between two canaries of a failing server."""
    deaths: int = 3
    """So many deaths within `deaths_s`, each with a request of one endpoint open, accuse that endpoint."""
    deaths_s: float = 20.0
    refused_s: float = 30.0
    """How long the requests of an accused endpoint are refused; twice as long each time, ..."""
    refused_max_s: float = 600.0
    remembered_s: float = 600.0
    """... until so long after the last time: meanwhile one more death is enough."""


@dataclass(frozen=True, slots=True)
class GuardedPartition:
    """A partition as planned: its promises, and where its shadow may run."""

    id: str
    gpu: str
    percent: float
    promises: tuple[Promise, ...]
    policy: ShadowPolicy
    shadow_gpu: str
    step_percent: float

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Return every endpoint of the partition: they are routed together."""
        return tuple(endpoint for promise in self.promises for endpoint in promise.endpoints)


@dataclass(frozen=True, slots=True)
class PlacedServer:
    """A server by its unique name, its GPU and its percent.

    `since_s` is when it was first seen ready: inf is not yet, -inf before this controller began.
    """

    server: str
    gpu: str
    percent: float
    since_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Share:
    """A percent of a GPU."""

    gpu: str
    percent: float


@dataclass(frozen=True, slots=True)
class Launches:
    """The record of starts: failures in a row, and the time of the next start."""

    failures: int = 0
    retry_at_s: float = -math.inf
    open: bool = False


@dataclass(frozen=True, slots=True)
class Offence:
    """How often requests were refused for crashing servers, and until when."""

    times: int = 0
    until_s: float = -math.inf


class Death(NamedTuple):
    """When a server died, or only a process of its models: then it still refused what that had held."""

    at_s: float
    whole: bool


class Held(NamedTuple):
    """When a request failed that a server had: `lost` without an answer, or by the server's own refusal."""

    at_s: float
    who: Accused
    lost: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """One partition as it is now.

    `evidence`, `services` and `rates_rps` (moving means of arrivals, a short and a long one) have one entry a
    promise, and `windows` what its clients saw lately. Times: `answered_s`, the active server's last answer,
    or the last look without an open request; `worked_s`, the same without refusals and lost requests;
    `refused_s`, the last request that it refused by policy; `broken_s`, the first alarm on which nothing was
    done yet, and `alarm_s`, the latest one; `settled_s`, before which only a dead server is left; `died_s`,
    the last death of a server that had served. `unexplained` is the part of recent late answers' time that
    the host cannot explain. `longest_s` is the longest time without an answer that one ended, of any server
    of this partition. `looked_s` is the look that this is from: a partition that rests is not looked at in
    each tick (`attention`). `owned` is the partition's share while a shadow that took over from a dead server
    has another one; else None. `deaths` are the recent ones, `held` the requests that failed in a server
    (`culprits`). `ending`: another program ends the active server.
    """

    partition: GuardedPartition
    active: PlacedServer
    evidence: tuple[Evidence, ...]
    rates_rps: tuple[tuple[float, ...], ...]
    services: tuple[Service, ...]
    windows: tuple[SloWindow, ...]
    standby: PlacedServer | None = None
    owned: Share | None = None
    down: bool = False
    answered_s: float = -math.inf
    worked_s: float = -math.inf
    refused_s: float = -math.inf
    longest_s: float = 0.0
    settled_s: float = -math.inf
    broken_s: float | None = None
    alarm_s: float = -math.inf
    in_flight: int = 0
    unexplained: float = 1.0
    probed_s: float = -math.inf
    died_s: float = -math.inf
    launches: Launches = Launches()
    generation: int = 0
    reported: Mapping[Topic, float] = field(default_factory=dict)
    looked_s: float = -math.inf
    deaths: tuple[Death, ...] = ()
    held: tuple[Held, ...] = ()
    ending: bool = False
    offences: Mapping[Accused, Offence] = field(default_factory=dict)

    @property
    def share(self) -> Share:
        """The share that the partition owns. A takeover after a death does not change it."""
        return self.owned or Share(self.active.gpu, self.active.percent)

    def reported_but(self, ended: Topic) -> dict[Topic, float]:
        """Return what was reported and has not ended, without a topic that ends now."""
        return {topic: at_s for topic, at_s in self.reported.items() if topic is not ended}

    def has_reported(self, topic: Topic) -> bool:
        """Return whether this was reported and has not ended."""
        return topic in self.reported


class Phase(StrEnum):
    """The phase of a partition; the picture is in docs/design/faults.md."""

    GUARDED = "guarded"
    EXPOSED = "exposed"
    SETTLING = "settling"
    EXHAUSTED = "exhausted"
    LATE = "late"
    DOWN = "down"


def phase(watch: Watch, now_s: float) -> Phase:
    """Return the partition's phase."""
    if watch.down:
        return Phase.DOWN
    if now_s < watch.settled_s:
        return Phase.SETTLING
    if watch.has_reported(Topic.EXHAUSTED):
        return Phase.EXHAUSTED
    if watch.has_reported(Topic.SLO):
        return Phase.LATE
    if watch.standby is not None and watch.standby.since_s <= now_s:
        return Phase.GUARDED
    return Phase.EXPOSED


@dataclass(frozen=True, slots=True)
class GuardState:
    """All partitions, in the plan's order, the GPUs known to be lost, and when the host last stood still.

    `servers` are those of the look before. `due_s` is when each partition is looked at though nothing is new
    about it; all of them are in the next tick while it is empty.
    """

    watches: Mapping[str, Watch]
    lost_gpus: frozenset[str] = frozenset()
    limits: Limits = Limits()
    now_s: float = -math.inf
    stood_s: float = -math.inf
    servers: Mapping[str, ServerSeen] = field(default_factory=dict)
    due_s: Mapping[str, float] = field(default_factory=dict)


def used_percent(watches: Iterable[Watch]) -> dict[str, float]:
    """Return GPU -> its percentage that active servers have. A dead server's share is its successor's."""
    return _sums(Share(watch.active.gpu, watch.active.percent) for watch in watches)


def owned_percent(watches: Iterable[Watch]) -> dict[str, float]:
    """Return GPU -> its percentage that has an owner, whatever shadows have taken over for a moment."""
    return _sums(watch.share for watch in watches)


def _sums(shares: Iterable[Share]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for share in shares:
        sums[share.gpu] = sums.get(share.gpu, 0.0) + share.percent
    return sums


def room_percent(used: Mapping[str, float], own: Share | PlacedServer, gpu: str) -> float:
    """Return the percentage of `gpu` that a partition could have, its `own` share included."""
    return WHOLE_PERCENT - used.get(gpu, 0.0) + (own.percent if own.gpu == gpu else 0.0)


def fits(used: Mapping[str, float], own: Share | PlacedServer, placed: PlacedServer) -> bool:
    """Return whether a partition could move from `own` to `placed` with no share owned twice."""
    return placed.percent <= room_percent(used, own, placed.gpu) + _ROUNDING


def exceeds(placed: PlacedServer, share: Share) -> bool:
    """Return whether a server has another share than this, or more of it."""
    return placed.gpu != share.gpu or placed.percent > share.percent + _ROUNDING


def overdrawn(used: Mapping[str, float], gpu: str) -> bool:
    """Return whether more than the whole GPU has owners."""
    return used.get(gpu, 0.0) > WHOLE_PERCENT + _ROUNDING


def guarded_partitions(plan: Plan) -> tuple[GuardedPartition, ...]:
    """Return the guarded partitions of a plan, in its order."""
    result = []
    for gpu, partition in plan.partitions():
        shadow = partition.shadow
        served = {one.model: one for one in partition.models}
        policy = ShadowPolicy.NONE if shadow is None else shadow.policy
        promises = tuple(
            _promise(queue, served.get(model, ServedModel(model, 1)))
            for model, queue in partition.queues().items()
        )
        result.append(
            GuardedPartition(
                id=partition.id,
                gpu=gpu.id,
                percent=partition.percent,
                promises=promises,
                policy=policy,
                shadow_gpu=gpu.id if shadow is None else shadow.gpu,
                step_percent=0.0 if policy is ShadowPolicy.NONE else STEP_PERCENT,
            )
        )
    return tuple(result)


def _promise(queue: Sequence[Placement], served: ServedModel) -> Promise:
    """Return the promise of the workloads that share a queue.

    They wait in one queue and run in the same batches, so all their requests are evidence for the strictest
    SLO. A hang is judged by the widest one: a request within its SLO shows nothing.
    """
    first, *others = queue
    times_ms = [p.predicted.execution_ms for p in queue if p.predicted.execution_ms is not None]
    loads = [p.predicted.utilisation for p in queue if p.predicted.utilisation is not None]
    rate_rps = sum(p.rate_rps / p.client_batch for p in queue)
    return Promise(
        first.endpoint,
        min(p.slo_ms for p in queue),
        rate_rps,
        max(times_ms, default=None),
        tuple(p.endpoint for p in others),
        inferences=sum(p.rate_rps for p in queue) / rate_rps,
        instances=served.instances,
        batch=max(1, served.batch // first.client_batch),
        utilisation=max(loads, default=None),
        longest_ms=max((p.longest_ms for p in queue if p.longest_ms is not None), default=None),
        widest_slo_ms=max(p.slo_ms for p in queue) if others else None,
        p99_ms=first.predicted.p99_ms,
        batch_ms=first.predicted.batch_ms,
    )


def validate_state(state: GuardState) -> None:
    """Raise AssertionError where the state breaks what must always hold.

    Called by every test after every tick. A GPU may be overdrawn only by servers that took over from dead
    ones and give the excess back: one of its partitions owns more than was planned.
    """
    names: set[str] = set()
    for watch in state.watches.values():
        for placed in (watch.active, watch.standby):
            if placed is None:
                continue
            assert placed.server not in names, f"{placed.server} has two places"
            assert 0.0 < placed.percent <= WHOLE_PERCENT + _ROUNDING, f"{placed} is no share"
            names.add(placed.server)
        kept = (watch.evidence, watch.services, watch.windows, watch.rates_rps)
        assert all(len(one) == len(watch.partition.promises) for one in kept)
        assert watch.launches.failures >= 0
        assert not watch.launches.open or watch.launches.failures >= state.limits.failures
        assert watch.broken_s is None or watch.broken_s <= state.now_s
        assert all(mean >= 0.0 for rate in watch.rates_rps for mean in rate)
    used = used_percent(state.watches.values())
    for gpu in used:
        if overdrawn(used, gpu):
            moved = [
                w
                for w in state.watches.values()
                if w.active.gpu == gpu and (w.partition.gpu != gpu or w.active.percent > w.partition.percent)
            ]
            assert moved, f"{gpu} is overdrawn and no partition on it can give back"

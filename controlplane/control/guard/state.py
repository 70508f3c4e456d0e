"""The guard's values: its state, its effects, and the invariants of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from controlplane.control.guard.sequential import Evidence, Promise
from controlplane.control.guard.service import Service
from controlplane.domain.observation import Level
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
    SHARE = "share given back"


class Topic(StrEnum):
    """The topic of a message that is repeated only after a while."""

    TRAFFIC = "traffic above plan"
    HOST = "the host is contended"
    EXHAUSTED = "no larger share left"
    WAITING = "waiting for a shadow"
    NO_ROOM = "no room for a shadow"
    ERRORS = "failed requests"


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
    """Once it owes no answer any more."""
    GRACE = "after a moment"
    """It is told to end, and has a moment to answer what it owes if it comes round."""
    REFUSED = "after what the dead process held"
    """It is told to end, and has the second Triton takes to refuse what its model's dead process held: it may
    have died of that. What waits behind is sent to the shadow when the server ends."""
    AT_ONCE = "at once"


@dataclass(frozen=True, slots=True)
class DrainAndStop:
    """End a server no route leads to."""

    server: str
    ending: Ending


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a server for a partition, to stand by or, where nothing else lives, to take over."""

    partition: str
    server: str
    gpu: str
    percent: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load the models of a warm shadow: it is needed."""

    server: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Try a real inference on a server now; its health says how that went."""

    server: str


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """Nothing more is started for this partition until `until_s`: it cannot start."""

    partition: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Say:
    """Tell whoever reads status and events."""

    level: Level
    subject: str
    reason: str


Effect = Redirect | DrainAndStop | Launch | Load | Probe | OpenBreaker | Say


@dataclass(frozen=True, slots=True)
class Limits:
    """The guard's patience, in seconds, and how often a start may fail in a row."""

    settle_s: float = 3.0
    hang_s: float = 0.5
    """No answer for this long, or 2 SLOs if that is longer, while answers are owed: a hang."""
    stable_s: float = 30.0
    """A server that lived this long did not fail to start."""
    gap_s: float = 2.0
    """Who did not look for this long cannot tell a slow server from a host that stood still."""
    back_off_s: float = 1.0
    back_off_max_s: float = 60.0
    """Nobody who is served by nothing waits longer for a start, whatever failed before."""
    failures: int = 5
    breaker_s: float = 600.0
    calm_s: float = 60.0
    sizes_s: float = 0.5
    """So long a verdict from batch times waits to learn from Triton what requests carry."""
    repeat_s: float = 300.0
    failed_in_a_row: int = 5
    probe_s: float = 1.0
    """How long one canary of a failing server has before the next."""


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
        """Every endpoint of the partition: they are routed together."""
        return tuple(endpoint for promise in self.promises for endpoint in promise.endpoints)


@dataclass(frozen=True, slots=True)
class PlacedServer:
    """A server by its unique name, its GPU and its percent; `since_s`: when it was first seen ready."""

    server: str
    gpu: str
    percent: float
    since_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Launches:
    """How starting went lately: failures in a row, and when the next start may be."""

    failures: int = 0
    retry_at_s: float = -math.inf
    open: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """One partition as it is now.

    `evidence`, `services` and `rates_rps` (moving means of arrivals, a short and a long one) have one entry a
    promise.
    `heard_s`: when the active server last answered or owed nothing. `broken_s`: since when its SLO is known
    to be broken and nothing has been done about it yet. `alarm_s`: the latest sign of that. `settled_s`:
    before this no redirect but from a dead server. `died_s`: when a server that had served died last.
    """

    partition: GuardedPartition
    active: PlacedServer
    evidence: tuple[Evidence, ...]
    rates_rps: tuple[tuple[float, ...], ...]
    services: tuple[Service, ...]
    standby: PlacedServer | None = None
    down: bool = False
    heard_s: float = -math.inf
    settled_s: float = -math.inf
    broken_s: float | None = None
    alarm_s: float = -math.inf
    in_flight: int = 0
    failed_in_a_row: int = 0
    probed_s: float = -math.inf
    died_s: float = -math.inf
    launches: Launches = Launches()
    generation: int = 0
    told: Mapping[Topic, float] = field(default_factory=dict)

    def has_told(self, topic: Topic) -> bool:
        """Whether this stands said."""
        return topic in self.told


class Phase(StrEnum):
    """How a partition is served; the picture is in docs/design/faults.md."""

    GUARDED = "guarded"
    EXPOSED = "exposed"
    SETTLING = "settling"
    EXHAUSTED = "exhausted"
    DOWN = "down"


def phase(watch: Watch, now_s: float) -> Phase:
    """The partition's phase."""
    if watch.down:
        return Phase.DOWN
    if now_s < watch.settled_s:
        return Phase.SETTLING
    if watch.has_told(Topic.EXHAUSTED):
        return Phase.EXHAUSTED
    if watch.standby is not None and watch.standby.since_s <= now_s:
        return Phase.GUARDED
    return Phase.EXPOSED


@dataclass(frozen=True, slots=True)
class GuardState:
    """All partitions, in the plan's order, the GPUs known to be lost, and when the host last stood still."""

    watches: Mapping[str, Watch]
    lost_gpus: frozenset[str] = frozenset()
    limits: Limits = Limits()
    now_s: float = -math.inf
    stood_s: float = -math.inf


def used_percent(watches: Iterable[Watch]) -> dict[str, float]:
    """GPU -> its shares that have an owner. A dead server's share is its successor's."""
    used: dict[str, float] = {}
    for watch in watches:
        used[watch.active.gpu] = used.get(watch.active.gpu, 0.0) + watch.active.percent
    return used


def room_percent(used: Mapping[str, float], watch: Watch, gpu: str) -> float:
    """The share of `gpu` this partition could own, its own one included."""
    own = watch.active.percent if watch.active.gpu == gpu else 0.0
    return WHOLE_PERCENT - used.get(gpu, 0.0) + own


def fits(used: Mapping[str, float], watch: Watch, placed: PlacedServer) -> bool:
    """Whether this partition could move to `placed` with no share owned twice."""
    return placed.percent <= room_percent(used, watch, placed.gpu) + _ROUNDING


def overdrawn(used: Mapping[str, float], gpu: str) -> bool:
    """Whether more than the whole GPU has owners."""
    return used.get(gpu, 0.0) > WHOLE_PERCENT + _ROUNDING


def guarded_partitions(plan: Plan) -> tuple[GuardedPartition, ...]:
    """The guarded partitions of a plan, in its order."""
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
    """The promise of the workloads that share a queue.

    They wait in one line and execute in the same batches, so a request of any of them takes as long as one of
    the strictest would have: all of them are evidence for its SLO.
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
    )


def validate_state(state: GuardState) -> None:
    """Raise AssertionError where the state breaks what must always hold.

    Called by every test after every tick. A GPU may be overdrawn only by servers that took over from dead
    ones, which give the excess back; so somebody on it owns more than was planned.
    """
    names: set[str] = set()
    for watch in state.watches.values():
        for placed in (watch.active, watch.standby):
            if placed is None:
                continue
            assert placed.server not in names, f"{placed.server} has two places"
            assert 0.0 < placed.percent <= WHOLE_PERCENT + _ROUNDING, f"{placed} is no share"
            names.add(placed.server)
        kept = (watch.evidence, watch.services, watch.rates_rps)
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

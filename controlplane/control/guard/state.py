"""The guard's state: guarded partitions, their servers, and what is held against them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from controlplane.control.converge.desired import Desired, planned_servers, successor
from controlplane.control.guard.effects import Accused, Topic
from controlplane.control.guard.promise import Promise, promise_of
from controlplane.control.guard.queues import QueueState
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.observation import ServerSeen
from controlplane.domain.plan import Plan, ServedModel
from controlplane.domain.workload import ShadowPolicy

WHOLE_PERCENT = 100.0
_ROUNDING = 1e-6

STEP_PERCENT = 10.0
"""How much larger a shadow is than what it covers, where that much is free (as planned shadows are)."""


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


ModelOnGpu = tuple[str, str]
"""A model and a type of GPU."""


@dataclass(frozen=True, slots=True)
class GuardedPartition:
    """A partition as planned: its promises, and where its shadow may run.

    `covers` is how many times slower than planned its models may be on the shadow; None where unknown.
    `shared` is the shadow that it shares with other partitions, by its id in the plan and with its share.
    `names` and `shared_names` begin the names of the servers that are launched. `endpoints` are those of all
    promises: they are routed together.
    """

    id: str
    gpu: str
    percent: float
    promises: tuple[Promise, ...]
    policy: ShadowPolicy
    shadow_gpu: str
    step_percent: float
    gpu_type: str = ""
    covers: float | None = None
    shared: tuple[str, float] | None = None
    names: str = ""
    shared_names: str = ""
    endpoints: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        every = tuple(endpoint for promise in self.promises for endpoint in promise.endpoints)
        object.__setattr__(self, "endpoints", every)

    def launched(self, number: int) -> str:
        """Return the name of its launched server of this number."""
        return f"{self.names or f'{self.id}.'}{number}"


@dataclass(frozen=True, slots=True)
class PlacedServer:
    """A server by its unique name, its GPU and its percent.

    `since_s` is when it was first seen ready: inf is not yet, -inf before this controller began. `shared`: it
    stands by for several partitions, and serves one only until that has a server of its own again.
    """

    server: str
    gpu: str
    percent: float
    since_s: float = math.inf
    shared: bool = False


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


class Slower(NamedTuple):
    """A verdict: batches of a model take `factor` times as long as planned; `always`: since the first one."""

    at_s: float
    model: str
    factor: float
    always: bool


class Rebatched(NamedTuple):
    """How often a batch was changed in a row, and when last."""

    times: int = 0
    at_s: float = -math.inf


_NEVER = Rebatched()


class Held(NamedTuple):
    """When a request failed that a server had: `lost` without an answer, or by the server's own refusal."""

    at_s: float
    who: Accused
    lost: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """One partition as it is now.

    `queues` has the evidence, one for each promise. Times: `answered_s`, the active server's last answer, or
    the last look without an open request; `worked_s`, the same without refusals and lost requests;
    `refused_s`, the last request that it refused by policy; `broken_s`, the first alarm on which nothing was
    done yet, and `alarm_s`, the latest one; `settled_s`, before which only a dead server is left; `died_s`,
    the last death of a server that had served, `failed_s`, when one was left that only failed.
    `unexplained` is the part of recent late answers' time that the host cannot explain. `longest_s` is the
    longest time without an answer that one ended, of any server of this partition. `looked_s` is the look
    that this is from: a partition that rests is not looked at in each tick (`observe`). `owned` is the
    partition's share while a shadow that took over from a dead server has another one; else None. `deaths`
    are the recent ones, `held` the requests that failed in a server (`deaths`). `ending`: another program
    ends the active server. `slower` is the last verdict on batches that take longer than planned. The
    promises of `queues` have the batches in force; `rebatched` counts the changes of these.
    """

    partition: GuardedPartition
    active: PlacedServer
    queues: tuple[QueueState, ...]
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
    failed_s: float = -math.inf
    launches: Launches = Launches()
    generation: int = 0
    reported: Mapping[Topic, float] = field(default_factory=dict)
    looked_s: float = -math.inf
    deaths: tuple[Death, ...] = ()
    held: tuple[Held, ...] = ()
    ending: bool = False
    slower: Slower | None = None
    rebatched: Rebatched = _NEVER
    offences: Mapping[Accused, Offence] = field(default_factory=dict)

    @property
    def servers(self) -> tuple[PlacedServer, ...]:
        """The active server, and the shadow where there is one."""
        return (self.active,) if self.standby is None else (self.active, self.standby)

    @property
    def share(self) -> Share:
        """The share that the partition owns. A takeover after a death does not change it."""
        return self.owned or Share(self.active.gpu, self.active.percent)

    def reported_but(self, ended: Topic) -> dict[Topic, float]:
        """Return what was reported and has not ended, without a topic that ends now."""
        return {topic: at_s for topic, at_s in self.reported.items() if topic is not ended}


class Phase(StrEnum):
    """The phase of a partition; docs/design/faults.md has the table."""

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
    if Topic.EXHAUSTED in watch.reported:
        return Phase.EXHAUSTED
    if Topic.SLO in watch.reported:
        return Phase.LATE
    if watch.standby is not None and watch.standby.since_s <= now_s:
        return Phase.GUARDED
    return Phase.EXPOSED


@dataclass(frozen=True, slots=True)
class GuardState:
    """All partitions, in the plan's order, the GPUs known to be lost, and when the host last stood still.

    `learned` are the errors of models that were found. `servers` are those of the look before. `due_s` is
    when each partition is looked at though nothing is new about it; all of them are in the next tick while it
    is empty.
    """

    watches: Mapping[str, Watch]
    lost_gpus: frozenset[str] = frozenset()
    limits: Limits = Limits()
    now_s: float = -math.inf
    stood_s: float = -math.inf
    learned: Mapping[ModelOnGpu, float] = field(default_factory=dict)
    servers: Mapping[str, ServerSeen] = field(default_factory=dict)
    due_s: Mapping[str, float] = field(default_factory=dict)


def percent_by_gpu(shares: Iterable[Share | PlacedServer]) -> dict[str, float]:
    """Return GPU -> the sum of these shares of it."""
    sums: dict[str, float] = {}
    for share in shares:
        sums[share.gpu] = sums.get(share.gpu, 0.0) + share.percent
    return sums


def percent_in_use(watches: Iterable[Watch]) -> dict[str, float]:
    """Return GPU -> the percentage that active servers have: one of several partitions counts once."""
    return percent_by_gpu({watch.active.server: watch.active for watch in watches}.values())


def room_percent(used: Mapping[str, float], own: Share | PlacedServer, gpu: str) -> float:
    """Return the percentage of `gpu` that a partition could have, its `own` share included."""
    return WHOLE_PERCENT - used.get(gpu, 0.0) + (own.percent if own.gpu == gpu else 0.0)


def fits(used: Mapping[str, float], own: Share | PlacedServer, placed: PlacedServer) -> bool:
    """Return whether a partition could move from `own` to `placed` with no share owned twice."""
    return placed.percent <= room_percent(used, own, placed.gpu) + _ROUNDING


def exceeds(placed: PlacedServer, share: Share) -> bool:
    """Return whether a server has another share than this, or more of it."""
    return placed.gpu != share.gpu or placed.percent > share.percent + _ROUNDING


def differs(placed: PlacedServer, share: Share) -> bool:
    """Return whether a server has another share than this, more or less of it."""
    return placed.gpu != share.gpu or abs(placed.percent - share.percent) > _ROUNDING


def overdrawn(used: Mapping[str, float], gpu: str) -> bool:
    """Return whether more than the whole GPU has owners."""
    return used.get(gpu, 0.0) > WHOLE_PERCENT + _ROUNDING


def guarded_partitions(plan: Plan, desired: Desired) -> tuple[GuardedPartition, ...]:
    """Return the guarded partitions of a plan, in its order; `desired` is its fleet."""
    largest, result = desired.largest, []
    names = {name: successor(spec, "").name for name, spec in planned_servers(desired).items()}
    for gpu, partition in plan.partitions():
        shadow = partition.shadow
        served = {one.model: one for one in partition.models}
        shared = None if gpu.shared is None else (gpu.shared.id, gpu.shared.percent)
        policy = ShadowPolicy.NONE if shadow is None else shadow.policy
        takes, promises = dict(largest.get(partition.id, ())), []
        for model, queue in partition.queues().items():
            one = served.get(model, ServedModel(model, 1))
            # Elsewhere there is memory for the plan's batch only.
            roomy = gpu.type == CPU_DEVICE and partition.memory_limit_mb is None
            most = takes.get(queue[0].endpoint, 0) if roomy else 0
            promises.append(promise_of(queue, one, most))
        result.append(
            GuardedPartition(
                id=partition.id,
                gpu=gpu.id,
                percent=partition.percent,
                promises=tuple(promises),
                policy=policy,
                shadow_gpu=gpu.id if shadow is None else shadow.gpu,
                step_percent=0.0 if policy is ShadowPolicy.NONE else STEP_PERCENT,
                gpu_type=gpu.type,
                covers=1.0 if shadow is None else shadow.covers,
                shared=shared if policy is ShadowPolicy.SHARED else None,
                names=names.get(partition.id, ""),
                shared_names="" if gpu.shared is None else names.get(gpu.shared.id, ""),
            )
        )
    return tuple(result)

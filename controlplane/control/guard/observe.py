"""What a tick observes, and what becomes of it: answers weighed as evidence, then state and effects. Pure.

Most of a large fleet rests: its servers are ready, no request waits, no evidence stands against them. Such a
partition is looked at once something is new about it, or at a time that is known before. The effect of the
looks that were left out depends on the time alone (`resumed`). A partition under suspicion is looked at in
every tick, one that serves every LOOK_S. So a tick costs what happens in the fleet, not its size, and one
suspect costs no look at the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.control.guard import queues
from controlplane.control.guard.batch_times import NO_PART, HostPart
from controlplane.control.guard.effects import Accused, Effect, Launch, Learn, Load, Probe, Report, Topic
from controlplane.control.guard.rule import host_part, is_slow, suspicion
from controlplane.control.guard.state import (
    GuardState,
    Held,
    Limits,
    PlacedServer,
    Watch,
    percent_by_gpu,
    percent_in_use,
)
from controlplane.domain.observation import GONE, Answer, FleetSeen, Health, Level, ServerSeen
from controlplane.domain.workload import ShadowPolicy

AT_ONCE = -math.inf
SUSPICIOUS = 0.25
"""The evidence, of 1 for an alarm, from which on a partition is looked at in every tick."""
LOOK_S = 0.2
"""The time between two looks at a partition that serves, ..."""
AGAIN_S = 0.8 * LOOK_S
"""... and that after which a tick may look again: ticks come late, never early."""

RECENT = 15.0
"""The number of late answers over which the host's part in them is averaged: single readings are noisy."""

MOST_HELD = 1000
"""Requests that are kept: a model may fail all of them without any death."""


def observe(state: GuardState, seen: FleetSeen) -> GuardState:
    """Return the state with the evidence of the answers since the look before.

    Partitions about which something is new are due, and stay so until a decision on them is carried out.
    """
    now, missed = seen.now_s, missed_s(state, seen) > 0.0
    present = replace(state, now_s=now, servers=seen.servers, stood_s=now if missed else state.stood_s)
    # Nor is the time in which the gateway stood still a server's.
    missed = missed or (seen.host is not None and seen.host.stood_s > state.limits.gap_s)
    looked_at = frozenset(state.watches) if missed else _concerned(state, seen)
    answers: dict[str, list[Answer]] = {}
    for answer in seen.answers:
        answers.setdefault(answer.server, []).append(answer)
    if "" in answers:
        present = replace(present, watches=_learn_longest(state.watches, answers[""]))
    if not looked_at:
        return present
    failed = [answer for answer in seen.answers if answer.held]
    since_s = min(state.now_s, seen.since_s)
    watches = dict(present.watches)
    for partition in looked_at:
        watch = watches[partition]
        began_s = max(watch.looked_s, since_s)
        if missed:
            # A host that stood still looks like servers that do; what waited meanwhile is answered late.
            settled_s = max(watch.settled_s, now + state.limits.settle_s)
            watch = replace(watch, answered_s=now, worked_s=now, settled_s=settled_s)
        active = seen.servers.get(watch.active.server, GONE)
        heard = answers.get(watch.active.server, [])
        host = host_part(seen.host, active, watch.active.percent)
        watch = update(watch, active, heard, (began_s, now), host)
        held = [
            Held(a.ended_s, Accused(a.endpoint, a.client), a.lost)
            for a in failed
            if a.endpoint in watch.partition.endpoints
        ]
        watches[partition] = replace(watch, held=(*watch.held, *held)[-MOST_HELD:]) if held else watch
    return replace(present, watches=watches, due_s={**state.due_s, **dict.fromkeys(looked_at, AT_ONCE)})


def missed_s(state: GuardState, seen: FleetSeen) -> float:
    """Return the time without a look before this one where it is too long to judge servers by, else 0.

    It counts once in a while only: a host that often stands still is slow for clients too.
    """
    gap_s = seen.now_s - state.now_s
    seldom = seen.now_s - state.stood_s > state.limits.calm_s
    return gap_s if seldom and state.limits.gap_s < gap_s < math.inf else 0.0


def resumed(watch: Watch, until_s: float) -> Watch:
    """Return the watch of a partition that rested as looks without anything new would have left it."""
    rested_s = until_s - watch.looked_s
    if not 0.0 < rested_s < math.inf:
        return watch
    rested = tuple(queues.arrive(queue, 0.0, rested_s) for queue in watch.queues)
    return replace(watch, queues=rested, answered_s=until_s, worked_s=until_s, looked_s=until_s)


def update(
    watch: Watch,
    seen: ServerSeen,
    answers: Sequence[Answer],
    ticks_s: tuple[float, float],
    host: HostPart = NO_PART,
) -> Watch:
    """Return the watch after the answers of its active server between two ticks.

    Until the first of them it has rested since it was looked at, as `resumed` says.
    """
    before_s, now_s = ticks_s
    rested_s = before_s - watch.looked_s
    rested = 0.0 < rested_s < math.inf
    answered_s, worked_s = watch.answered_s, watch.worked_s
    if rested:
        answered_s, worked_s = max(answered_s, before_s), max(worked_s, before_s)
    settled = now_s >= watch.settled_s
    broken = False
    recent_part = watch.unexplained
    waiting = max(0, seen.in_flight - watch.in_flight)
    weighed = []
    for left in watch.queues:
        before = queues.arrive(left, 0.0, rested_s) if rested else left
        sent = [a for a in answers if a.endpoint in before.promise.endpoints]
        own = [a for a in sent if not a.refused]
        queue, alarm = queues.weigh(before, own, now_s, host)
        broken = broken or alarm or is_slow(queue, host)
        late = sum(a.latency_ms > queue.promise.slo_ms for a in own)
        recent_part += (1.0 - math.exp(-late / RECENT)) * (host.own - recent_part)
        # Requests that wait have arrived too; their endpoints are not known, so they count like the answers.
        arrived = len(sent) + (waiting * len(sent) / len(answers) if answers else 0.0)
        queue = queues.arrive(queue, arrived, now_s - before_s)
        weighed.append(queue if settled else queues.restart(queue))
    lives = bool(answers) or seen.progressed
    works = seen.progressed or any(a.shows_work for a in answers)
    idle = not (seen.in_flight or seen.streaming)
    silent_s = now_s - answered_s if lives and settled else 0.0
    return replace(
        watch,
        queues=tuple(weighed),
        answered_s=now_s if lives or idle or math.isinf(answered_s) else answered_s,
        worked_s=now_s if works or idle or math.isinf(worked_s) else worked_s,
        refused_s=now_s if any(a.refused for a in answers) else watch.refused_s,
        longest_s=max(watch.longest_s, silent_s) if math.isfinite(silent_s) else watch.longest_s,
        broken_s=now_s if broken and settled and watch.broken_s is None else watch.broken_s,
        alarm_s=now_s if broken and settled else watch.alarm_s,
        unexplained=recent_part,
        in_flight=seen.in_flight,
        looked_s=now_s,
    )


def _learn_longest(watches: Mapping[str, Watch], answers: Sequence[Answer]) -> dict[str, Watch]:
    """Learn from the answers of servers that are stopped when they have drained: they may have taken long."""
    longest_s: dict[str, float] = {}
    for answer in answers:
        if not answer.failed:
            longest_s[answer.endpoint] = max(longest_s.get(answer.endpoint, 0.0), answer.latency_ms / 1000.0)
    learned = dict(watches)
    for partition, watch in watches.items() if longest_s else ():
        took_s = max(longest_s.get(endpoint, 0.0) for endpoint in watch.partition.endpoints)
        if took_s > watch.longest_s:
            learned[partition] = replace(watch, longest_s=took_s)
    return learned


def due(state: GuardState, now_s: float) -> frozenset[str]:
    """Return the partitions that a tick looks at though nothing is new about them."""
    if not state.due_s:
        return frozenset(state.watches)
    return frozenset(partition for partition, at_s in state.due_s.items() if at_s <= now_s)


def next_look_s(watch: Watch, seen: FleetSeen, limits: Limits) -> float:
    """Return when a partition is looked at though nothing is new about it; AT_ONCE for the next tick."""
    if suspicion(watch) > SUSPICIOUS:
        return AT_ONCE
    if _is_busy(watch, seen, limits):
        return seen.now_s + AGAIN_S
    times = [at_s for at_s in (watch.settled_s, watch.launches.retry_at_s) if at_s > seen.now_s]
    if watch.launches.failures:
        since_s = max(placed.since_s for placed in watch.servers)
        times.append(since_s + limits.loop_s)
    return min(times, default=math.inf)


def _concerned(state: GuardState, seen: FleetSeen) -> frozenset[str]:
    """Return the partitions that are due, those with answers, and those whose servers changed."""
    found = due(state, seen.now_s)
    new = {answer.server for answer in seen.answers}
    if seen.servers is not state.servers:
        new |= state.servers.keys() - seen.servers.keys()
        # Most look the same, by identity: fields are compared for the others alone.
        pairs = ((name, state.servers.get(name), present) for name, present in seen.servers.items())
        new |= {name for name, before, present in pairs if before is not present and before != present}
    # What a dead server held is known by its endpoint only.
    held = {answer.endpoint for answer in seen.answers if answer.held}
    if not new and not held:
        return found
    return found.union(
        p
        for p, watch in state.watches.items()
        if any(placed.server in new for placed in watch.servers)
        or not held.isdisjoint(watch.partition.endpoints)
    )


def _is_busy(watch: Watch, seen: FleetSeen, limits: Limits) -> bool:
    """Return whether time alone may lead to a decision or to evidence."""
    active = seen.servers.get(watch.active.server, GONE)
    unanswered = active.in_flight > 0 or active.streaming > 0
    unserved = watch.down or active.health is not Health.READY or unanswered
    uncovered = watch.standby is None and watch.partition.policy is not ShadowPolicy.NONE
    unseen = watch.standby is not None and watch.standby.server not in seen.servers
    failing = active.failing >= limits.failed_in_a_row
    incomplete = any(queue.batches.open for queue in watch.queues)
    broken = (
        watch.broken_s is not None
        or bool(watch.reported)
        or watch.owned is not None
        or watch.rebatched.times > 0
    )
    return unserved or uncovered or unseen or failing or incomplete or broken


def health(seen: FleetSeen, placed: PlacedServer) -> Health:
    """Return the health of a server; one that is not seen is gone."""
    return seen.servers.get(placed.server, GONE).health


@dataclass(slots=True)
class Tick:
    """The state and the effects of one tick.

    `watches` is the state's own mapping and changes only here. `used` is the percentage of each GPU that
    active servers have, `owned` what partitions own, whatever shadows have taken over for a moment; `moved`
    are the GPUs of which one of them changed. `decided` are the partitions so far, `failed_gpus` those on
    which the servers of several partitions died at once, `errors` those of models that were found.
    """

    state: GuardState
    seen: FleetSeen
    watches: dict[str, Watch] = field(init=False)
    used: dict[str, float] = field(init=False)
    owned: dict[str, float] = field(init=False)
    effects: list[Effect] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    decided: list[str] = field(default_factory=list)
    failed_gpus: frozenset[str] = frozenset()
    errors: list[Learn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watches = dict(self.state.watches)
        self.state = replace(self.state, watches=self.watches)
        self._sum_shares()

    def _sum_shares(self) -> None:
        # A dead server's share is its successor's.
        self.used = percent_in_use(self.watches.values())
        self.owned = percent_by_gpu(watch.share for watch in self.watches.values())

    @property
    def now_s(self) -> float:
        """The time of the look."""
        return self.seen.now_s

    def set(self, watch: Watch) -> None:
        """Keep what a partition has become."""
        before = self.watches[watch.partition.id]
        if watch is before:
            return
        self.watches[watch.partition.id] = watch
        if watch.active.server != before.active.server or watch.share != before.share:
            self._sum_shares()
            self.moved |= {before.active.gpu, before.share.gpu, watch.active.gpu, watch.share.gpu}

    def is_concerned(self, watch: Watch) -> bool:
        """Return whether a share has moved on a GPU of this partition: what fitted there may fit no more."""
        return bool(self.moved) and any(one.gpu in self.moved for one in watch.servers)

    def active(self, watch: Watch) -> ServerSeen:
        """Return what was seen of the active server."""
        return self.seen.servers.get(watch.active.server, GONE)

    def health(self, placed: PlacedServer) -> Health:
        """Return the health of a server; one that this tick has launched for several partitions starts."""
        if placed.shared and any(isinstance(e, Launch) and e.server == placed.server for e in self.effects):
            return Health.STARTING
        return health(self.seen, placed)

    def is_covered(self, watch: Watch) -> bool:
        """Return whether the shadow can take over now."""
        return watch.standby is not None and self.health(watch.standby) is Health.READY

    def wake(self, watch: Watch) -> Watch:
        """Load the models of a warm shadow."""
        if watch.standby is not None and self.health(watch.standby) is Health.UNLOADED:
            self.effects.append(Load(watch.standby.server))
        return watch

    def probe(self, watch: Watch) -> Watch:
        """Probe the active server, unless that was done a moment ago."""
        if self.now_s - watch.probed_s <= self.state.limits.probe_s:
            return watch
        self.effects.append(Probe(watch.active.server))
        return replace(watch, probed_s=self.now_s)

    def report(self, level: Level, subject: str, reason: str) -> None:
        """Add a message to the events."""
        self.effects.append(Report(level, subject, reason))

    def report_once(self, watch: Watch, topic: Topic, level: Level, reason: str) -> Watch:
        """Report on a topic, unless that was done lately."""
        at_s = watch.reported.get(topic)
        if at_s is not None and self.now_s - at_s < self.state.limits.repeat_s:
            return watch
        self.report(level, watch.partition.id, reason)
        return replace(watch, reported={**watch.reported, topic: self.now_s})

"""Which partitions a tick looks at, and what it observes of them. Pure.

Most of a large fleet rests: its servers are ready, no request waits, no evidence stands against them. Such a
partition is looked at once something is new about it, or at a time that is known before. The effect of the
looks that were left out depends on the time alone (`signals.resumed`). So a tick costs what happens in the
fleet, not its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controlplane.control.guard import culprits
from controlplane.control.guard.host import unexplained
from controlplane.control.guard.signals import GONE, LATE, missed_s, resumed, suspicion, update
from controlplane.control.guard.state import GuardState, Limits, Watch
from controlplane.domain.observation import Answer, FleetSeen, Health, ServerSeen
from controlplane.domain.workload import ShadowPolicy

AT_ONCE = -math.inf


def observe(state: GuardState, seen: FleetSeen) -> GuardState:
    """Return the state with the evidence of the answers since the look before.

    Partitions about which something is new are due, and stay so until a decision on them is carried out.
    """
    now, missed = seen.now_s, missed_s(state, seen) > 0.0
    present = replace(state, now_s=now, servers=seen.servers, stood_s=now if missed else state.stood_s)
    # Nor is the time in which the gateway stood still a server's.
    missed = missed or (seen.host is not None and seen.host.stood_s > state.limits.gap_s)
    looked_at = frozenset(state.watches) if missed else _fresh(state, seen)
    answers: dict[str, list[Answer]] = {}
    for answer in seen.answers:
        answers.setdefault(answer.server, []).append(answer)
    if "" in answers:
        present = replace(present, watches=_learn_longest(state.watches, answers[""]))
    if not looked_at:
        return present
    failed = [answer for answer in seen.answers if answer.held]
    watches = dict(present.watches)
    for partition in looked_at:
        watch = resumed(watches[partition], state.now_s)
        if missed:
            # A host that stood still looks like servers that do; what waited meanwhile is answered late.
            settled_s = max(watch.settled_s, now + state.limits.settle_s)
            watch = replace(watch, answered_s=now, worked_s=now, settled_s=settled_s)
        active = seen.servers.get(watch.active.server, GONE)
        heard = answers.get(watch.active.server, [])
        watch = update(watch, active, heard, (state.now_s, now), unexplained(seen.host, active))
        watches[partition] = culprits.heard(watch, failed)
    return replace(present, watches=watches, due_s={**state.due_s, **dict.fromkeys(looked_at, AT_ONCE)})


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
    if _is_busy(watch, seen, limits):
        return AT_ONCE
    times = [at_s for at_s in (watch.settled_s, watch.launches.retry_at_s) if at_s > seen.now_s]
    if watch.launches.failures:
        since_s = max(one.since_s for one in (watch.active, watch.standby) if one is not None)
        times.append(since_s + limits.loop_s)
    return min(times, default=math.inf)


def _fresh(state: GuardState, seen: FleetSeen) -> frozenset[str]:
    """Return the partitions that are due, those with answers, and those whose servers changed."""
    found = due(state, seen.now_s)
    new = {*_changed(state.servers, seen.servers), *(answer.server for answer in seen.answers)}
    # What a dead server held is known by its endpoint only.
    held = {answer.endpoint for answer in seen.answers if answer.held}
    if not new and not held:
        return found
    return found.union(
        p
        for p, watch in state.watches.items()
        if not new.isdisjoint(_names(watch)) or not held.isdisjoint(watch.partition.endpoints)
    )


def _is_busy(watch: Watch, seen: FleetSeen, limits: Limits) -> bool:
    """Return whether time alone may lead to a decision or to evidence."""
    active = seen.servers.get(watch.active.server, GONE)
    unanswered = active.in_flight > 0 or active.streaming > 0
    unserved = watch.down or active.health is not Health.READY or unanswered
    uncovered = watch.standby is None and watch.partition.policy is not ShadowPolicy.NONE
    unseen = watch.standby is not None and watch.standby.server not in seen.servers
    failing = active.failing >= limits.failed_in_a_row
    incomplete = any(baseline.open for baseline in watch.services)
    broken = watch.broken_s is not None or bool(watch.reported) or watch.owned is not None
    return unserved or uncovered or unseen or failing or incomplete or broken or suspicion(watch) >= LATE


def _changed(before: Mapping[str, ServerSeen], now: Mapping[str, ServerSeen]) -> Iterable[str]:
    """Yield the servers that look different, or are gone."""
    if now is before:
        return
    yield from before.keys() - now.keys()
    for name, seen in now.items():
        known = before.get(name)
        if known is not seen and known != seen:
            yield name


def _names(watch: Watch) -> tuple[str, ...]:
    return (watch.active.server,) if watch.standby is None else (watch.active.server, watch.standby.server)

"""One tick: the state and the effects as they become, partition by partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from controlplane.control.guard import observe
from controlplane.control.guard.effects import Effect, Launch, Load, Probe, Report, Topic
from controlplane.control.guard.learning import ModelError
from controlplane.control.guard.liveness import GONE
from controlplane.control.guard.state import GuardState, PlacedServer, Watch, percent_by_gpu
from controlplane.domain.observation import FleetSeen, Health, Level, ServerSeen


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
    watches: dict[str, Watch]
    used: dict[str, float] = field(default_factory=dict)
    owned: dict[str, float] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    decided: list[str] = field(default_factory=list)
    failed_gpus: frozenset[str] = frozenset()
    errors: list[ModelError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = replace(self.state, watches=self.watches)
        self._sum_shares()

    def _sum_shares(self) -> None:
        # A dead server's share is its successor's.
        self.used = percent_by_gpu(watch.active for watch in self.watches.values())
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

    def next_looks(self) -> Iterator[tuple[str, float]]:
        """Yield when those partitions are looked at again of which that may have changed."""
        for partition in self.decided:
            yield partition, observe.next_look_s(self.watches[partition], self.seen, self.state.limits)
        for partition, watch in self.watches.items():
            if self.is_concerned(watch):
                yield partition, observe.AT_ONCE

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

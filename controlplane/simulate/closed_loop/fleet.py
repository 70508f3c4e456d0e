"""A simulated fleet: servers that start, stop, slow down and die while requests arrive."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.control.converge.desired import NamedRoute
from controlplane.domain.observation import Answer, FleetSeen, Health, ServerSeen
from controlplane.domain.plan import Partition, Plan, PlannedGpu
from controlplane.domain.units import MILLIS_PER_SECOND
from controlplane.domain.workload import ShadowPolicy
from controlplane.latency.protocol import FloatArray, IntArray, LatencyModel
from controlplane.simulate.arrivals import Arriving
from controlplane.simulate.closed_loop.live import LiveLoop
from controlplane.simulate.engine import Settings
from controlplane.simulate.network import Conditions, gpu_servers, whole


@dataclass(slots=True, eq=False)
class _Place:
    """Where a server of a partition can run; `queues` has its queue for each model, by number."""

    partition: Partition
    gpu: int
    queues: Mapping[str, int]
    percent: float
    server: str | None = None
    ready_s: float = math.inf
    unloaded: bool = False
    ending: bool = False
    slowdown: float = 1.0

    def serves(self, now_s: float) -> bool:
        """Whether it takes new requests."""
        return self.server is not None and self.ready_s <= now_s and not self.unloaded


@dataclass(frozen=True, slots=True)
class _Start:
    server: str
    partition: str
    gpu: str
    percent: float
    ready_s: float


class SimulatedFleet:
    """Each partition has two places on its GPU, and two on its shadow's where that is another one.

    It has three where it shares a shadow, which stays while a server of its own starts.
    """

    def __init__(
        self, plan: Plan, truth: Mapping[str, LatencyModel], settings: Settings, conditions: Conditions
    ) -> None:
        self._truth, self._conditions = truth, conditions
        self._gpus, homes = _with_places(plan)
        self._sharers = {g.shared.id: [p.id for p in g.sharers] for g in plan.gpus if g.shared is not None}
        self.part = whole(plan, self._gpus, truth, conditions)
        self._loop = LiveLoop(self.part, conditions, settings.seed)
        self._arriving = Arriving(self.part, settings.demands or {}, settings.seed)
        self._first = np.cumsum([0, *(sum(len(p.models) for p in gpu.partitions) for gpu in self._gpus)])
        number = {(s.gpu, s.partition, s.model): n for n, s in enumerate(self.part.servers)}
        self._places = [
            _Place(partition, i, {m.model: number[i, place.id, m.model] for m in place.models}, place.percent)
            for i, place, partition in homes
        ]
        self._of_queue = {q: place for place in self._places for q in place.queues.values()}
        self._waiting: list[_Start] = []
        self._routes: Mapping[str, NamedRoute] = {}
        self._lost: set[str] = set()
        self._slower: dict[str, float] = {}
        self.now_s = 0.0
        seconds = math.ceil(settings.seconds)
        self.sent = np.zeros((len(self.part.streams), seconds))
        self.late = np.zeros_like(self.sent)
        self._dropped = np.zeros(len(self.part.streams), dtype=np.int64)

    def start(self, server: str, partition: str, gpu: str, percent: float, takes_s: float) -> None:
        """Start a server; it begins once a place of its partition is free.

        A shared shadow has a place of each partition that it stands by for.
        """
        for one in self._sharers.get(partition, (partition,)):
            self._waiting.append(_Start(server, one, gpu, percent, self.now_s + takes_s))
        self._settle()

    def unload(self, server: str) -> None:
        """Unload the models of a warm shadow."""
        for place in self._running(server):
            place.unloaded = True

    def load(self, server: str, takes_s: float) -> None:
        """Load them again, within `takes_s` where the plan does not say how long that takes."""
        for place in self._running(server):
            shadow = place.partition.shadow
            planned_s = None if shadow is None else shadow.load_s
            place.unloaded, place.ready_s = False, self.now_s + (planned_s or takes_s)

    def route(self, routes: Mapping[str, NamedRoute]) -> None:
        """Send new requests by these routes."""
        self._routes = routes
        self._lead()

    def stop(self, server: str, *, at_once: bool) -> None:
        """End a server that no route leads to: at once, or when it has answered."""
        self._waiting = [w for w in self._waiting if w.server != server]
        for place in self._running(server):
            if at_once:
                self._end(place)
            else:
                place.ending = True

    def slow(self, partition: str, factor: float) -> None:
        """Make the server that answers for a partition take `factor` times as long."""
        for place in self._answering(partition):
            place.slowdown = factor
        for place in self._answering(partition)[:1]:
            self._retime(place.gpu)

    def slow_model(self, model: str, factor: float) -> None:
        """Make every server of a model take `factor` times as long, later ones too."""
        self._slower[model] = factor
        for gpu in range(len(self._gpus)):
            self._retime(gpu)

    def crash(self, partition: str) -> None:
        """Kill the server that answers for a partition."""
        for place in self._answering(partition):
            self._end(place)

    def lose(self, gpu: str) -> None:
        """Kill every server of a GPU, for good."""
        self._lost.add(gpu)
        for place in self._places:
            if self._gpus[place.gpu].id == gpu and place.server is not None:
                self._end(place)

    def advance(self, until_s: float) -> tuple[Answer, ...]:
        """Let requests arrive and servers work until then; return the requests that ended."""
        until_ms = until_s * MILLIS_PER_SECOND
        arrivals, bounds = self._arriving.window(min(until_ms, self.sent.shape[1] * MILLIS_PER_SECOND))
        self._loop.advance(arrivals, bounds, until_ms)
        self.now_s = until_s
        np.add.at(self.sent, (arrivals["workload"], self._second(arrivals["arrival"])), 1.0)
        rows = self._loop.answered()
        answers = self._heard(rows)
        self._count(rows)
        self._settle()
        return answers

    def seen(self, answers: tuple[Answer, ...]) -> FleetSeen:
        """Return what a controller sees of this fleet now."""
        servers = {w.server: ServerSeen(Health.STARTING) for w in self._waiting}
        for name in {place.server for place in self._places if place.server} - servers.keys():
            own = self._running(name)
            health = Health.READY if all(p.serves(self.now_s) for p in own) else Health.STARTING
            servers[name] = ServerSeen(
                Health.UNLOADED if any(p.unloaded for p in own) else health,
                in_flight=sum(self._loop.held(q) for p in own for q in p.queues.values()),
                inferences={w.endpoint: float(w.client_batch) for p in own for w in p.partition.workloads},
            )
        return FleetSeen(self.now_s, answers, servers)

    def close(self) -> None:
        """Count the requests that have no answer yet as late."""
        unanswered = self.sent.sum(axis=1) - self._loop.state.counts.sum(axis=1) - self._dropped
        self.late[:, -1] += unanswered

    def _heard(self, rows: FloatArray) -> tuple[Answer, ...]:
        heard = []
        for workload, arrival_ms, latency_ms, _, queue in rows.tolist():
            ended_s = min(self.now_s, (arrival_ms + latency_ms) / MILLIS_PER_SECOND)
            server = self._of_queue[int(queue)].server or ""
            endpoint = self.part.streams[int(workload)].placement.endpoint
            heard.append(Answer(ended_s, latency_ms, False, endpoint, server))
        return tuple(heard)

    def _count(self, rows: FloatArray) -> None:
        workload = rows[:, 0].astype(np.int64)
        late = rows[:, 2] > np.array([s.slo_ms for s in self.part.streams])[workload]
        np.add.at(self.late, (workload[late], self._second(rows[late, 1])), 1.0)
        dropped = self._loop.state.tallies["drops"] - self._dropped
        self._dropped = self._loop.state.tallies["drops"].copy()
        self.late[:, min(int(self.now_s), self.late.shape[1] - 1)] += dropped

    def _second(self, times_ms: FloatArray) -> IntArray:
        return np.minimum(times_ms / MILLIS_PER_SECOND, self.sent.shape[1] - 1).astype(np.int64)

    def _settle(self) -> None:
        """Free the places of servers that have answered everything; begin the starts that wait for one."""
        for place in self._places:
            if place.ending and not any(map(self._loop.held, place.queues.values())):
                self._free(place)
        # On a GPU that is lost a start ends without a server.
        self._waiting = [w for w in self._waiting if w.gpu not in self._lost or self.now_s < w.ready_s]
        for start in tuple(self._waiting):
            free = (p for p in self._places if self._fits(p, start))
            if (found := next(free, None)) is not None:
                self._waiting.remove(start)
                found.server, found.percent, found.ready_s = start.server, start.percent, start.ready_s
                self._retime(found.gpu)
        self._lead()

    def _fits(self, place: _Place, start: _Start) -> bool:
        gpu = self._gpus[place.gpu].id
        return (
            place.server is None
            and (place.partition.id, gpu) == (start.partition, start.gpu)
            and gpu not in self._lost
        )

    def _lead(self) -> None:
        for place in self._places:
            for queue in place.queues.values():
                self._loop.admit(queue, open_=place.serves(self.now_s))
        for number, route in enumerate(self.part.routes):
            model = self.part.servers[route.servers[0]].model
            endpoint = self.part.streams[route.streams[0]].placement.endpoint
            if places := self._led(endpoint):
                self._loop.lead(number, [place.queues[model] for place in places])

    def _led(self, endpoint: str) -> list[_Place]:
        """The places that new requests go to: as in HAProxy the members that live, else the backup."""
        route = self._routes.get(endpoint, NamedRoute(()))
        for names in (route.members, (route.backup,) if route.backup else ()):
            running = (p for name in names for p in self._running(name) if p.serves(self.now_s))
            living = [p for p in running if any(w.endpoint == endpoint for w in p.partition.workloads)]
            if living:
                return living
        return []

    def _end(self, place: _Place) -> None:
        """End a server at once: what it holds goes where new requests go, or is lost."""
        place.ready_s = math.inf
        endpoint = place.partition.workloads[0].endpoint
        others = [other for other in self._led(endpoint) if other.partition is place.partition]
        target = next(iter(others or self._led(endpoint)), None)
        for model, queue in place.queues.items():
            self._loop.hand_over(
                queue, None if target is None else target.queues[model], self.now_s * MILLIS_PER_SECOND
            )
        self._free(place)
        self._lead()

    def _free(self, place: _Place) -> None:
        place.server, place.ready_s, place.slowdown = None, math.inf, 1.0
        place.unloaded = place.ending = False

    def _retime(self, gpu: int) -> None:
        """Compute a GPU's times anew from the shares that its servers have now."""
        own = [place for place in self._places if place.gpu == gpu]
        percent = {q: place.percent for place in own for q in place.queues.values()}
        slowdown = {
            q: place.slowdown * self._slower.get(model, 1.0)
            for place in own
            for model, q in place.queues.items()
        }
        queue, partitions = int(self._first[gpu]), []
        for partition in self._gpus[gpu].partitions:
            partitions.append(replace(partition, percent=percent[queue]))
            queue += len(partition.models)
        present = replace(self._gpus[gpu], partitions=tuple(partitions))
        servers, _ = gpu_servers(gpu, present, self._truth, self._conditions)
        times = {}
        for queue, server in enumerate(servers, int(self._first[gpu])):
            factor = slowdown[queue]
            times[queue] = replace(server, work_ms=factor * server.work_ms, extra_ms=factor * server.extra_ms)
        self._loop.retime(times)

    def _running(self, server: str) -> list[_Place]:
        return [place for place in self._places if place.server == server]

    def _answering(self, partition: str) -> Sequence[_Place]:
        own = [p for p in self._places if p.partition.id == partition and p.serves(self.now_s)]
        routed = {m for route in self._routes.values() for m in route.members}
        answering = next((p.server for p in own if p.server in routed), None)
        return [] if answering is None else self._running(answering)


def _with_places(plan: Plan) -> tuple[list[PlannedGpu], list[tuple[int, Partition, Partition]]]:
    """Return the GPUs with a partition for each place, and each place with its GPU and planned partition."""
    index = {gpu.id: i for i, gpu in enumerate(plan.gpus)}
    added: dict[int, list[tuple[Partition, Partition]]] = {}
    for gpu, partition in plan.partitions():
        shadow = partition.shadow
        if shadow is None or shadow.policy is ShadowPolicy.NONE:
            continue
        here = [shadow.gpu] if shadow.gpu == gpu.id else [gpu.id, shadow.gpu, shadow.gpu]
        if shadow.policy is ShadowPolicy.SHARED:
            here *= 2
        for n, where in enumerate(here, 2):
            twin = replace(partition, id=f"{partition.id}#{n}", percent=shadow.percent, shadow=None)
            added.setdefault(index[where], []).append((twin, partition))
    gpus, places = [], []
    for i, gpu in enumerate(plan.gpus):
        own = [(p, p) for p in gpu.partitions] + added.get(i, [])
        gpus.append(replace(gpu, partitions=tuple(place for place, _ in own)))
        places += [(i, place, partition) for place, partition in own]
    return gpus, places

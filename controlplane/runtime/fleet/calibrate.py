"""Predicted against observed times, live or from the record, and the calibration of the next plan.

Triton's counters give exact means per batch size. A neighbour that is busy half of the time slows a partition
about half as much as one that is always busy, so the prediction lies between solo and all busy.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from controlplane.control.guard.effects import Learn
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Server, ServerState
from controlplane.domain.observation import BatchStatistics, ModelStatistics
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, ServedModel
from controlplane.files.fleets import FleetFiles
from controlplane.files.measurements.profiles import read_calibration, write_calibration
from controlplane.latency import calibration, registry
from controlplane.latency.calibration import Observation, Seen
from controlplane.latency.protocol import LatencyModel, Slots
from controlplane.planning.protocol import Device
from controlplane.planning.replan.differences import changed_times
from controlplane.report.tables.observed_table import Kept, Unseen
from controlplane.runtime.devices import known_device, known_profiles
from controlplane.runtime.fleet.fleet import Fleet
from controlplane.runtime.fleet.history import History, Minute
from controlplane.triton import statistics
from controlplane.triton.client import TritonClient

_READ_EVERY_S = 1.0

FEWEST_ANSWERS = 100
"""The answers that a minute's P99 needs: of fewer, it would be the slowest one."""

Batches = Mapping[int, BatchStatistics]
"""Executions by batch size."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """The executions of one model of a partition in successive windows, with its share and the duration."""

    gpu: PlannedGpu
    partition: Partition
    served: ServedModel
    windows: tuple[Batches, ...]
    seconds: float

    @property
    def key(self) -> tuple[str, str]:
        """The partition and the model."""
        return self.partition.id, self.served.model

    @property
    def busy(self) -> float:
        """The part of the time with an execution."""
        spent_ms = sum(statistics.execution_ms(b) * b.executions for w in self.windows for b in w.values())
        return min(1.0, spent_ms / self.seconds / 1000.0)

    @property
    def largest_request(self) -> int:
        """The most inferences in a request of the model."""
        return max(placement.client_batch for placement in self.partition.queues()[self.served.model])


def observe(fleet: Fleet, profiles: Path, seconds: float) -> tuple[list[Seen], list[Unseen]]:
    """Watch the active servers for `seconds`. Partitions without an execution come second, with the reason.

    Raises InputError for a fleet without a plan or without requests, EngineError where a server is restarted
    meanwhile.
    """
    plan = fleet.files.plan()
    if plan is None:
        raise InputError(f"fleet {fleet.name!r} has no plan", field="--fleet")
    routed = {m.server for route in fleet.gateway.routes().values() for m in route.members}
    servers = [s for s in fleet.launcher.servers(fleet.name) if s.name in routed]
    watched, now_s = _watch(plan, servers, seconds), fleet.clock.wall()
    seen = [row for one in watched for row in _rows(one, watched, plan, profiles, now_s)]
    if not seen:
        raise InputError(f"no batch was executed within {seconds:g} s; is there traffic?", field="--fleet")
    answering = {one.partition.id for one in watched}
    silent = f"no batch was executed within {seconds:g} s"
    return seen, _unseen(plan, seen, answering, silent, "no server answers for it now")


def recall(fleet: Fleet, profiles: Path) -> tuple[list[Seen], list[Unseen], list[Kept]]:
    """Return the executions and P99s that the controller recorded since the present plan was applied.

    Partitions without an execution come second, with the reason. Raises InputError for an empty record.
    """
    plan, since_s = fleet.files.plan(), fleet.files.planned_s()
    minutes = History(fleet.files.history).minutes(since_s or 0.0)
    if plan is None or not any(minute.requests for minute in minutes):
        raise InputError(
            "has no record since its plan was applied: let its controller run under traffic for some "
            "minutes, or watch it now with --seconds",
            field="--fleet",
        )
    watched, now_s = _recorded(plan, minutes), fleet.clock.wall()
    kept = [_kept(partition, placement, minutes) for _, partition, placement in plan.placements()]
    seen = [row for one in watched for row in _rows(one, watched, plan, profiles, now_s)]
    counted_of = {one.partition.id for one in watched}
    uncounted = "no server of it answered through two minutes: only then executions are counted"
    return seen, _unseen(plan, seen, counted_of, "no batch was executed", uncounted), kept


def learn_recorded(files: FleetFiles, at_s: float) -> Path | None:
    """Update the calibration of the fleet's kept profiles by what was recorded since; None without any.

    A factor counts each minute once: those that it knows, and those before the present plan, are left out.
    Minutes in which a model executed too little stay for later, whatever is learned of its neighbours.
    """
    plan, profiles, planned_s = files.plan(), files.following.profiles, files.planned_s() or 0.0
    minutes = History(files.history).minutes(planned_s)
    if plan is None or not minutes:
        return None
    known_s = {f.key: f.at_s for f in read_calibration(profiles) if f.at_s > planned_s}
    rows: list[Seen] = []
    done: set[tuple[str, str]] = set()
    for since_s in sorted({planned_s, *known_s.values()}):
        watched = _recorded(plan, [m for m in minutes if m.at_s > since_s])
        new = [
            w for w in watched if w.key not in done and known_s.get(_factor_key(w, watched), 0.0) <= since_s
        ]
        done |= {w.key for w in new}
        rows += [row for one in new for row in _rows(one, watched, plan, profiles, at_s)]
    return learn(profiles, rows)


def learn_errors(
    profiles: Path, plan: Plan, devices: Mapping[str, Device], errors: Sequence[Learn], at_s: float
) -> None:
    """Update the calibration by errors that the guard found, as far as `devices` do not know them yet."""
    factors = read_calibration(profiles)
    for error in errors:
        known = changed_times(plan, devices, error.model, error.gpu_type)
        if error.factor > known:
            factors = calibration.scaled(factors, error.model, error.gpu_type, error.factor / known, at_s)
    write_calibration(profiles, factors)


def learn(profiles: Path, seen: Sequence[Seen]) -> Path | None:
    """Update the calibration file beside the profiles; None without a usable observation."""
    usable = [row.observation for row in seen if row.refused is None]
    if not usable:
        return None
    return write_calibration(profiles, calibration.update(read_calibration(profiles), usable))


def _recorded(plan: Plan, minutes: Sequence[Minute]) -> list[_Watched]:
    """The executions of each model at each share that its partition had."""
    watched, of_partition = [], defaultdict[str, list[Minute]](list)
    for minute in minutes:
        of_partition[minute.partition].append(minute)
    for gpu, partition, served in _served(plan):
        endpoints = {w.endpoint for w in partition.queues()[served.model]}
        mine = [m for m in of_partition[partition.id] if m.endpoint in endpoints]
        for percent in sorted({m.percent for m in mine}):
            counted = [(m.seconds, m.batches) for m in mine if m.percent == percent and m.batches is not None]
            if counted:
                present = replace(partition, percent=percent)
                windows = tuple(batches for _, batches in counted)
                watched.append(_Watched(gpu, present, served, windows, sum(s for s, _ in counted)))
    return watched


def _served(plan: Plan) -> list[tuple[PlannedGpu, Partition, ServedModel]]:
    return [(gpu, partition, served) for gpu, partition in plan.partitions() for served in partition.models]


def _unseen(plan: Plan, seen: Sequence[Seen], counted: Set[str], silent: str, uncounted: str) -> list[Unseen]:
    """Models without an observed execution: `silent` in a `counted` partition, else `uncounted`."""
    known = {(row.partition, row.observation.model) for row in seen}
    found = []
    for _, partition, served in _served(plan):
        if (partition.id, served.model) not in known:
            why = silent if partition.id in counted else uncounted
            found.append(Unseen(partition.id, f"{served.model}: {why}" if partition.turns else why))
    return list(dict.fromkeys(found))


def _watch(plan: Plan, servers: Sequence[Server], seconds: float) -> list[_Watched]:
    active = {s.spec.labels.partition: s for s in servers if s.state is ServerState.RUNNING}
    placed = [(g, p, m) for g, p, m in _served(plan) if p.id in active]
    rounds = max(2, round(seconds / _READ_EVERY_S))
    with ExitStack() as stack:
        clients = [stack.enter_context(TritonClient(active[p.id])) for _, p, _ in placed]
        readings: list[list[ModelStatistics]] = [[] for _ in placed]
        pause = threading.Event()
        for turn in range(rounds + 1):
            if turn:
                pause.wait(_READ_EVERY_S)
            for (_, partition, served), client, kept in zip(placed, clients, readings, strict=True):
                kept.append(client.statistics(counting_model(partition, served)))
    return [
        _Watched(
            gpu,
            replace(partition, percent=active[partition.id].spec.percent),
            served,
            tuple(statistics.difference(a, b).batches for a, b in pairwise(kept)),
            rounds * _READ_EVERY_S,
        )
        for (gpu, partition, served), kept in zip(placed, readings, strict=True)
    ]


def counting_model(partition: Partition, served: ServedModel) -> str:
    """Return the name of a partition's model in the server: the endpoint that counts every execution."""
    return partition.queues()[served.model][0].endpoint


def _kept(partition: Partition, placement: Placement, minutes: Sequence[Minute]) -> Kept:
    mine = [m for m in minutes if (m.partition, m.endpoint) == (partition.id, placement.endpoint)]
    full = [m for m in mine if m.requests - m.failed >= FEWEST_ANSWERS]
    p99s = [m.p99_ms for m in full if m.p99_ms is not None]
    if any(m.requests for m in mine):
        most = max(m.requests - m.failed for m in mine)
        why = f"at most {most} answers a minute, {FEWEST_ANSWERS} are needed"
    else:
        why = "no request was recorded" if mine else "no minute was recorded yet"
    inferences, seconds = placement.client_batch * sum(m.requests for m in mine), sum(m.seconds for m in mine)
    return Kept(
        workload=placement.name,
        partition=partition.id,
        minutes=round(seconds / 60.0),
        unmeasured=None if p99s else why,
        planned_rps=placement.rate_rps,
        rate_rps=inferences / seconds if mine else None,
        failed=sum(m.failed for m in mine),
        predicted_p99_ms=placement.predicted.p99_ms,
        p99_ms=float(np.median(p99s)) if p99s else None,
        worst_p99_ms=max(p99s, default=None),
        slo_ms=placement.slo_ms,
    )


def _rows(one: _Watched, every: Sequence[_Watched], plan: Plan, profiles: Path, at_s: float) -> list[Seen]:
    others = _neighbours(one, every)
    model, device, names = _factor_key(one, every)
    known = known_profiles(device, profiles)
    latency = registry.build(plan.latency_model, known_device(device, profiles), known)
    # Models of one partition have their share together.
    busy = min(sum(w.busy for w in every if w.partition.id == one.partition.id), 1.0)
    rows = []
    for batch in sorted({size for window in one.windows for size in window}):
        executions = sum(w[batch].executions for w in one.windows if batch in w)
        means = [(statistics.execution_ms(w[batch]), w[batch].executions) for w in one.windows if batch in w]
        observation = Observation(
            model=model,
            device=device,
            neighbours=names,
            predicted_ms=_predicted_ms(latency, one, others, batch),
            observed_ms=sum(mean * n for mean, n in means) / executions,
            batches=executions,
            variation=variation_of(means),
            at_s=at_s,
        )
        # Without a queue delay, a batch of more than one request forms only while another executes.
        queued = batch > one.largest_request and one.served.max_queue_delay_us == 0
        quota = device == CPU_DEVICE
        rows.append(Seen.of(one.partition.id, batch, busy, observation, quota=quota, queued=queued))
    return rows


def _factor_key(one: _Watched, every: Sequence[_Watched]) -> tuple[str, str, tuple[str, ...]]:
    """The key of the factor that a model's executions change."""
    names = tuple(sorted(other.served.model for other, _ in _neighbours(one, every)))
    return one.served.model, one.gpu.type, names


def _neighbours(one: _Watched, every: Sequence[_Watched]) -> list[tuple[_Watched, float]]:
    """The busiest model of each other partition of its GPU, and how busy that partition is."""
    partitions: dict[str, list[_Watched]] = {}
    for other in every:
        if other.gpu.id == one.gpu.id and other.partition.id != one.partition.id and other.busy > 0:
            partitions.setdefault(other.partition.id, []).append(other)
    return [
        (max(own, key=lambda w: w.busy), min(sum(w.busy for w in own), 1.0)) for own in partitions.values()
    ]


def _predicted_ms(
    latency: LatencyModel, one: _Watched, neighbours: Sequence[tuple[_Watched, float]], batch: int
) -> float:
    others = [other for other, _ in neighbours]
    names = [one.served.model, *(w.served.model for w in others)]
    for name in names:
        if name not in latency.models:
            raise InputError(
                f"no profile on {one.gpu.type} to predict it from; `ctl profile {name}` makes one", field=name
            )
    models = [latency.models.index(name) for name in names]
    batches = [float(batch), *(float(w.served.batch) for w in others)]
    percents = [one.partition.percent, *(w.partition.percent for w in others)]
    requests = np.array([[batch / one.largest_request, *batches[1:]]])
    own = Slots.alone(models[:1], batches[:1], percents[:1])
    alone = latency.estimate(replace(own, requests=requests[:, :1])).execution_ms[0, 0]
    beside = Slots.of([models], [batches], [percents])
    together = latency.estimate(replace(beside, requests=requests)).execution_ms[0, 0]
    busy = float(np.mean([part for _, part in neighbours])) if neighbours else 0.0
    return float(alone + busy * (together - alone))


def variation_of(windows: Sequence[tuple[float, int]]) -> float:
    """Coefficient of variation of windows' means, given as (mean, batches).

    Not of single batches: a host drifts by some percent from minute to minute, which the mean of hundreds of
    batches shows and a single batch's spread hides; a host that stalled shows in both.
    """
    if len(windows) < 2:
        return 0.0
    means, weights = (np.array(column, dtype=float) for column in zip(*windows, strict=True))
    mean = float(np.average(means, weights=weights))
    variance = float(np.average((means - mean) ** 2, weights=weights)) * len(windows) / (len(windows) - 1)
    return math.sqrt(variance) / mean

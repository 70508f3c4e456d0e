"""Predicted against observed on a running fleet, and what the next plan learns from it.

Triton's counters give exact means per batch size. A neighbour that is busy half the time costs about half of
what one that is always busy does, so the prediction lies between alone and all busy, by how busy they were.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Role, Server, ServerState
from controlplane.domain.observation import ModelStatistics
from controlplane.domain.plan import Partition, Plan, PlannedGpu
from controlplane.files.calibration import read_calibration, write_calibration
from controlplane.latency import calibration, registry
from controlplane.latency.calibration import Observation, Seen
from controlplane.latency.protocol import LatencyModel, Slots
from controlplane.monitor import triton
from controlplane.runtime.devices import known_device, known_profiles
from controlplane.runtime.fleet import Fleet

_READ_EVERY_S = 1.0
_SATURATED = 0.7
"""A quota binds only a partition that uses it up: below this, a core's share says little of its speed."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """One partition's readings, a second apart, and how busy it was."""

    gpu: PlannedGpu
    partition: Partition
    readings: tuple[ModelStatistics, ...]
    busy: float


def observe(fleet: Fleet, profiles: Path, seconds: float) -> list[Seen]:
    """Watch the fleet's active servers for a while.

    Raises InputError for a fleet without a plan or without requests, EngineError where a server is restarted
    meanwhile.
    """
    plan = fleet.files.plan()
    if plan is None:
        raise InputError(f"fleet {fleet.name!r} has no plan", field="--fleet")
    watched = _watch(plan, fleet.launcher.servers(fleet.name), seconds)
    seen = [row for one in watched for row in _rows(one, watched, plan, profiles, fleet.clock.wall())]
    if not seen:
        raise InputError(f"no batch was executed within {seconds:g} s; is there traffic?", field="--fleet")
    return seen


def learn(profiles: Path, seen: Sequence[Seen]) -> Path | None:
    """Update the calibration file beside the profiles; None where nothing taught anything."""
    usable = [row.observation for row in seen if row.refused is None]
    if not usable:
        return None
    return write_calibration(profiles, calibration.update(read_calibration(profiles), usable))


def _watch(plan: Plan, servers: Sequence[Server], seconds: float) -> list[_Watched]:
    active = {
        s.spec.labels.partition: s
        for s in servers
        if s.spec.labels.role is Role.ACTIVE and s.state is ServerState.RUNNING
    }
    placed = [(g, p) for g, p in plan.partitions() if p.id in active]
    rounds = max(2, round(seconds / _READ_EVERY_S))
    with ExitStack() as stack:
        clients = [stack.enter_context(triton.StatisticsClient(active[p.id])) for _, p in placed]
        readings: list[list[ModelStatistics]] = [[] for _ in placed]
        pause = threading.Event()
        for turn in range(rounds + 1):
            if turn:
                pause.wait(_READ_EVERY_S)
            for (_, partition), client, kept in zip(placed, clients, readings, strict=True):
                kept.append(client.read(partition.workloads[0].endpoint))
    spent_ms = rounds * _READ_EVERY_S * 1000.0
    return [
        _Watched(gpu, partition, tuple(kept), min(1.0, _executing_ms(kept) / spent_ms))
        for (gpu, partition), kept in zip(placed, readings, strict=True)
    ]


def _executing_ms(readings: Sequence[ModelStatistics]) -> float:
    window = triton.difference(readings[0], readings[-1])
    return sum(triton.execution_ms(b) * b.executions for b in window.batches.values())


def _rows(one: _Watched, every: Sequence[_Watched], plan: Plan, profiles: Path, at_s: float) -> list[Seen]:
    others = [w for w in every if w.gpu.id == one.gpu.id and w is not one and w.busy > 0]
    known = known_profiles(one.gpu.type, profiles)
    latency = registry.build(plan.latency_model, known_device(one.gpu.type), known)
    window = triton.difference(one.readings[0], one.readings[-1])
    rows = []
    for batch, counters in sorted(window.batches.items()):
        observation = Observation(
            model=one.partition.models[0].model,
            device=one.gpu.type,
            neighbours=tuple(sorted(w.partition.models[0].model for w in others)),
            predicted_ms=_predicted_ms(latency, one, others, batch),
            observed_ms=triton.execution_ms(counters),
            batches=counters.executions,
            variation=_variation(one.readings, batch),
            at_s=at_s,
        )
        refused = calibration.refusal(observation)
        if refused is None and one.gpu.type == CPU_DEVICE and one.busy < _SATURATED:
            refused = f"busy {one.busy:.0%} of the time: its quota did not bind"
        rows.append(Seen(one.partition.id, batch, one.busy, observation, refused))
    return rows


def _predicted_ms(latency: LatencyModel, one: _Watched, others: Sequence[_Watched], batch: int) -> float:
    names = [one.partition.models[0].model, *(w.partition.models[0].model for w in others)]
    for name in names:
        if name not in latency.models:
            raise InputError(
                f"no profile on {one.gpu.type} to predict it from; `ctl profile {name}` makes one", field=name
            )
    models = [latency.models.index(name) for name in names]
    batches = [float(batch), *(float(w.partition.models[0].batch) for w in others)]
    percents = [one.partition.percent, *(w.partition.percent for w in others)]
    alone = latency.estimate(Slots.alone(models[:1], batches[:1], percents[:1])).execution_ms[0, 0]
    together = latency.estimate(Slots.of([models], [batches], [percents])).execution_ms[0, 0]
    busy = float(np.mean([w.busy for w in others])) if others else 0.0
    return float(alone + busy * (together - alone))


def _variation(readings: Sequence[ModelStatistics], batch: int) -> float:
    """Coefficient of variation of single batches, from the means of successive seconds: n var(mean) = var."""
    windows = [triton.difference(a, b).batches.get(batch) for a, b in pairwise(readings)]
    counted = [w for w in windows if w is not None]
    if len(counted) < 2:
        return 0.0
    means = np.array([triton.execution_ms(w) for w in counted])
    weights = np.array([float(w.executions) for w in counted])
    mean = float(np.average(means, weights=weights))
    variance = float(np.sum(weights * (means - mean) ** 2)) / (len(counted) - 1)
    return math.sqrt(variance) / mean

"""The frame of a paper's strategy: each GPU type by itself, with the paper's own latency model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from controlplane.domain import device as domain
from controlplane.domain.plan import Infeasible, Partition, Plan, Rule
from controlplane.domain.profile import Profile
from controlplane.domain.workload import Workload
from controlplane.planning.judge.finalise import Draft, finalise
from controlplane.planning.judge.placements import memory_of, partition_of
from controlplane.planning.protocol import Device, PlanRequest

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class PerGpuType:
    """A strategy that drafts a plan on each GPU type alone: the one that refuses fewest, then costs least."""

    name: str
    latency_model: str
    draft_on: Callable[[Device, PlanRequest], Draft]
    rule: Rule = Rule.HALF_SLO

    def plan(self, request: PlanRequest) -> Plan:
        """See `Strategy.plan`; the plan is judged by the latency model and rule of the request."""
        started_s = request.clock.monotonic()
        drafts = [self.draft_on(device, request) for device in request.devices.values()]
        best = min(drafts, key=lambda d: (len(d.infeasible), sum(g.price_per_hour for g in d.gpus)))
        return finalise(self.name, request, best, started_s)


def own_model(device: Device, kind: type[M], fit: Callable[[Mapping[str, Profile], domain.Device], M]) -> M:
    """Return the device's latency model where it is of the paper's kind, else one fitted on its profiles."""
    return device.latency if isinstance(device.latency, kind) else fit(device.profiles, device.pool.device)


def split(
    workloads: Sequence[Workload], why: Callable[[Workload], str | None]
) -> tuple[list[Workload], list[Infeasible]]:
    """Return the workloads that may be served, where `why` is None, and the others with the reason."""
    reasons = {w.name: reason for w in workloads if (reason := why(w)) is not None}
    refused = [Infeasible(name, reason) for name, reason in reasons.items()]
    return [w for w in workloads if w.name not in reasons], refused


def alone(workload: Workload, percent: float, batch: int, device: Device) -> Partition:
    """Return a partition that serves one workload."""
    return partition_of(workload.name, [workload], percent, batch, memory_of(workload, device, batch))

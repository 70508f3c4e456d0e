"""One question, as all searches and proofs for its plan share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.domain.plan import PlannedGpu
from controlplane.domain.workload import Workload
from controlplane.planning.capacity.gpu_types import GpuType, gpu_types
from controlplane.planning.capacity.items import by_slo
from controlplane.planning.judge.placements import largest_batch_in_memory
from controlplane.planning.judge.queues import QueueCache
from controlplane.planning.protocol import PlanRequest


@dataclass(slots=True)
class Context:
    """One question.

    `workloads` are in an order that does not depend on the spec's. `started`: when planning began, by the
    request's clock. `stopped_by` becomes "budget" once the time is over. `queues` are those solved so far.
    """

    request: PlanRequest
    gpu_types: Mapping[str, GpuType]
    workloads: list[Workload]
    started: float
    stopped_by: str = "converged"
    queues: QueueCache = field(default_factory=QueueCache)

    @staticmethod
    def of(request: PlanRequest, started: float) -> Context:
        """For all workloads of a request."""
        # Each model has batches for which an empty GPU has the memory.
        devices = {}
        for name, device in request.devices.items():
            profiles = dict(device.profiles)
            for w in request.workloads:
                if (own := profiles.get(w.model)) is not None:
                    most = largest_batch_in_memory(w, device)
                    if most < own.largest_batch:
                        profiles[w.model] = replace(own, max_batch=int(most))
            devices[name] = replace(device, profiles=profiles)
        workloads = sorted(request.workloads, key=lambda w: (w.model, *by_slo(w)))
        return Context(request, gpu_types(devices, request.rule, request.quantile), workloads, started)

    def stop(self) -> bool:
        """Whether the limit in seconds is reached."""
        budget = self.request.budget_s
        if budget is None or self.request.clock.monotonic() - self.started < budget:
            return False
        self.stopped_by = "budget"
        return True

    def cost(self, gpus: Sequence[PlannedGpu]) -> float:
        """Of these GPUs; their number where all are free."""
        return sum(self.gpu_types[g.type].price for g in gpus)

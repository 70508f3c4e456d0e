"""Client batches: a planning problem counted in requests instead of inferences, and its answer counted back.

Triton never splits a request. Where clients send k inferences in each one and the largest batch is a multiple
of k, the queue is an ordinary one of requests: rate / k arrive per second, up to batch / k are executed
together, and j of them take t(j k). So `joint` plans in requests, where k has disappeared: `InRequests.of`
replaces every workload's rate by that of its requests, and its model by one whose batch of j is j requests.
What leaves a strategy counts inferences again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.plan import Infeasible, Partition
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import Estimate, IntArray, LatencyModel, Slots
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import largest_batch, refusal, with_partitions
from controlplane.planning.protocol import Device, PlanRequest

Kind = tuple[str, int]
"""A model and the client batch of its requests."""
LONGEST_STEM = 100
"""Characters of a model's name that the name of its requests begins with."""


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """A latency model that speaks of requests too: j of them are a batch of `client_batch` j inferences.

    `models` are those of `base`, then one for each kind of request. `real` (models,) indexes `base.models`.
    """

    base: LatencyModel
    models: tuple[str, ...]
    real: IntArray
    client_batch: IntArray

    @property
    def name(self) -> str:
        """The base's name: plans are judged by that model."""
        return self.base.name

    def estimate(self, slots: Slots, quantile: float = 0.95) -> Estimate:
        """See `LatencyModel.estimate`; batches count requests."""
        inferences = slots.batch * self.client_batch[slots.model]
        return self.base.estimate(
            Slots(self.real[slots.model], inferences, slots.percent, slots.mask, slots.batch), quantile
        )


@dataclass(frozen=True, slots=True)
class InRequests:
    """A plan request counted in requests, and what it takes to count its answer in inferences again.

    `workloads` are those of the original by name. `refused` are those that `request` leaves out, because no
    profile speaks of a batch as large as one of their requests.
    """

    request: PlanRequest
    workloads: Mapping[str, Workload]
    refused: tuple[Infeasible, ...]

    @staticmethod
    def of(asked: PlanRequest) -> InRequests:
        """The same question about requests; the same object where every request is one inference."""
        refused = {w.name: why for w in asked.workloads if (why := _too_large(w, asked.devices.values()))}
        left = [w for w in asked.workloads if w.name not in refused]
        served, devices = in_requests(left, asked.devices)
        same = served == asked.workloads
        return InRequests(
            asked if same else replace(asked, workloads=served, devices=devices),
            {w.name: w for w in asked.workloads},
            tuple(Infeasible(name, why) for name, why in refused.items()),
        )

    def counted_back(self, draft: Draft) -> Draft:
        """A draft for `request`, with batches and rates in inferences and the models' own names."""
        if all(w.client_batch == 1 for w in self.workloads.values()):
            return draft
        refused = []
        for i in draft.infeasible:
            k, rate = self.workloads[i.workload].client_batch, i.nearest_rate_rps
            refused.append(i if rate is None else replace(i, nearest_rate_rps=rate * k))
        gpus = with_partitions(draft.gpus, self._partition)
        return replace(draft, gpus=gpus, infeasible=(*refused, *self.refused))

    def _partition(self, partition: Partition) -> Partition:
        own = {w.model: self.workloads[w.name] for w in partition.workloads}
        models = tuple(
            replace(m, model=own[m.model].model, batch=m.batch * own[m.model].client_batch)
            for m in partition.models
        )
        workloads = []
        for w in partition.workloads:
            asked = self.workloads[w.name]
            k = asked.client_batch
            workloads.append(replace(w, model=asked.model, rate_rps=w.rate_rps * k, client_batch=k))
        return replace(partition, models=models, workloads=tuple(workloads))


def in_requests(
    workloads: Sequence[Workload], devices: Mapping[str, Device]
) -> tuple[tuple[Workload, ...], Mapping[str, Device]]:
    """Workloads of requests that are one inference each, and devices that know their models."""
    kinds = sorted({(w.model, w.client_batch) for w in workloads if w.client_batch > 1})
    if not kinds:
        return tuple(workloads), devices
    names = _names(kinds, {m for d in devices.values() for m in d.latency.models})
    served = []
    for w in workloads:
        k = w.client_batch
        of_one = w if k == 1 else replace(w, model=names[w.model, k], rate_rps=w.rate_rps / k, client_batch=1)
        served.append(of_one)
    return tuple(served), {name: _device(device, names) for name, device in devices.items()}


def _too_large(workload: Workload, devices: Iterable[Device]) -> str | None:
    """Why no GPU type serves a request of this size; None where one does or none knows the model."""
    known = [d for d in devices if workload.model in d.profiles]
    reasons = [why for d in known if (why := refusal(workload, d)) is not None]
    return "; ".join(reasons) if known and len(reasons) == len(known) else None


def _names(kinds: Iterable[Kind], taken: set[str]) -> dict[Kind, str]:
    """A name for the requests of each kind, none of which is a model's."""
    names: dict[Kind, str] = {}
    for model, client_batch in kinds:
        name = f"{model[:LONGEST_STEM]}-x{client_batch}"
        while name in taken:
            name += "x"
        taken.add(name)
        names[model, client_batch] = name
    return names


def _device(device: Device, names: Mapping[Kind, str]) -> Device:
    """The device with a model and a profile for each kind of request that it can execute."""
    own = device.latency.models
    kinds = {
        kind: name
        for kind, name in names.items()
        if kind[0] in device.profiles and largest_batch(device, *kind) > 0
    }
    latency = RequestLatency(
        device.latency,
        (*own, *kinds.values()),
        np.array([*range(len(own)), *(own.index(model) for model, _ in kinds)], dtype=np.int64),
        np.array([*(1 for _ in own), *(k for _, k in kinds)], dtype=np.int64),
    )
    profiles = dict(device.profiles)
    for (model, k), name in kinds.items():
        profile = device.profiles[model]
        law = profile.memory_law
        # The latency model speaks for the points.
        profiles[name] = replace(
            profile,
            model=name,
            points=(max(profile.points, key=lambda p: p.batch),),
            colocation=(),
            fits={},
            max_batch=largest_batch(device, model, k) // k,
            memory_by_batch={} if law is None else {n: law[0] + law[1] * k * n for n in (1, 2)},
        )
    return replace(device, latency=latency, profiles=profiles)

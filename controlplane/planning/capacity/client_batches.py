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

from controlplane.domain.plan import Infeasible, Partition, Placement
from controlplane.domain.profile import Profile
from controlplane.domain.workload import Workload
from controlplane.latency.protocol import Estimate, IntArray, LatencyModel, Slots
from controlplane.planning.judge.finalise import Draft
from controlplane.planning.judge.placements import largest_batch, refusal
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
        return replace(
            draft,
            gpus=tuple(
                replace(gpu, partitions=tuple(self._partition(p) for p in gpu.partitions))
                for gpu in draft.gpus
            ),
            infeasible=(*(self._infeasible(i) for i in draft.infeasible), *self.refused),
        )

    def _partition(self, partition: Partition) -> Partition:
        original = {p.model: self.workloads[p.name] for p in partition.workloads}
        models = tuple(
            replace(m, model=original[m.model].model, batch=m.batch * original[m.model].client_batch)
            for m in partition.models
        )
        placements = tuple(self._placement(p) for p in partition.workloads)
        return replace(partition, models=models, workloads=placements)

    def _placement(self, placement: Placement) -> Placement:
        own = self.workloads[placement.name]
        k = own.client_batch
        return replace(placement, model=own.model, rate_rps=placement.rate_rps * k, client_batch=k)

    def _infeasible(self, refused: Infeasible) -> Infeasible:
        rate = refused.nearest_rate_rps
        if rate is None:
            return refused
        return replace(refused, nearest_rate_rps=rate * self.workloads[refused.workload].client_batch)


def in_requests(
    workloads: Sequence[Workload], devices: Mapping[str, Device]
) -> tuple[tuple[Workload, ...], Mapping[str, Device]]:
    """Workloads of requests that are one inference each, and devices that know their models."""
    kinds = sorted({(w.model, w.client_batch) for w in workloads if w.client_batch > 1})
    if not kinds:
        return tuple(workloads), devices
    names = _names(kinds, {m for d in devices.values() for m in d.latency.models})
    return (
        tuple(_in_requests(w, names) for w in workloads),
        {name: _device(device, names) for name, device in devices.items()},
    )


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


def _in_requests(workload: Workload, names: Mapping[Kind, str]) -> Workload:
    k = workload.client_batch
    if k == 1:
        return workload
    return replace(workload, model=names[workload.model, k], rate_rps=workload.rate_rps / k, client_batch=1)


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
    profiles = {
        name: _profile(device.profiles[model], name, k, largest_batch(device, model, k) // k)
        for (model, k), name in kinds.items()
    }
    return replace(device, latency=latency, profiles={**device.profiles, **profiles})


def _profile(profile: Profile, name: str, client_batch: int, most_requests: int) -> Profile:
    """What holds for requests of a profile's model: the latency model speaks for the points."""
    largest, law = max(profile.points, key=lambda p: p.batch), profile.memory_law
    memory_mb = {} if law is None else {n: law[0] + law[1] * client_batch * n for n in (1, 2)}
    return replace(
        profile,
        model=name,
        points=(largest,),
        colocation=(),
        fits={},
        max_batch=most_requests,
        memory_by_batch=memory_mb,
    )

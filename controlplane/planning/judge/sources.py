"""Where the execution times of a plan come from: measured, predicted, or learned from running fleets."""

from __future__ import annotations

from controlplane.domain.plan import Partition, PlannedGpu, ServedModel, Source
from controlplane.domain.profile import Factor
from controlplane.latency.calibration import Calibrated
from controlplane.planning.protocol import Device

_Neighbours = tuple[tuple[str, float, int], ...]
"""Model, share and batch of each, sorted."""
Measured = frozenset[tuple[str, float, int, _Neighbours]]
"""Model, share, batch and neighbours of all points of a GPU type's profiles."""


def measured_on(device: Device) -> Measured:
    """What the profiles of a GPU type measured, alone and beside neighbours."""
    profiles = device.profiles.items()
    alone = {(name, p.percent, p.batch, ()) for name, profile in profiles for p in profile.points}
    beside = {
        (name, p.percent, p.batch, tuple(sorted((n.model, n.percent, n.batch) for n in p.neighbours)))
        for name, profile in profiles
        for p in profile.colocation
    }
    return frozenset(alone | beside)


def source_of(
    gpu: PlannedGpu, partition: Partition, served: ServedModel, device: Device, measured: Measured
) -> Source:
    """The source of a model's execution time in its partition."""
    beside = _neighbours(gpu, partition)
    if _factor(served, beside, device) is not None:
        return Source.LEARNED
    if (served.model, partition.percent, served.batch, beside) in measured:
        return Source.MEASURED
    return Source.PREDICTED


def sentence(gpu: PlannedGpu, partition: Partition, served: ServedModel, device: Device) -> str:
    """The same in words, with the evidence."""
    beside = _neighbours(gpu, partition)
    match source_of(gpu, partition, served, device, measured_on(device)):
        case Source.MEASURED:
            where = "beside these neighbours" if beside else "alone"
            return f"execution time: measured at this share and batch, {where}"
        case Source.PREDICTED:
            return f"execution time: predicted by the latency model {device.latency.name!r} from the profile"
        case Source.LEARNED:
            factor = _factor(served, beside, device)
            assert factor is not None
            seen = ", ".join(factor.neighbours) or "no neighbour"
            return (
                f"execution time: learned from {factor.batches} batches of running fleets beside {seen}: "
                f"{factor.factor:.2f} times what the latency model {device.latency.name!r} predicts"
            )


def _neighbours(gpu: PlannedGpu, partition: Partition) -> _Neighbours:
    others = (p for p in gpu.partitions if p.id != partition.id)
    return tuple(sorted((m.model, p.percent, m.batch) for p in others for m in p.models))


def _factor(served: ServedModel, beside: _Neighbours, device: Device) -> Factor | None:
    if not isinstance(device.latency, Calibrated):
        return None
    return device.latency.factor(served.model, (model for model, _, _ in beside))

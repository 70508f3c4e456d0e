"""Where a plan's execution times come from: measured, predicted, or learned from running fleets."""

from __future__ import annotations

from controlplane.domain.plan import Partition, PlannedGpu, ServedModel, Source
from controlplane.domain.profile import Factor, Profile
from controlplane.latency.calibration import Calibrated
from controlplane.planning.protocol import Device

_Neighbours = list[tuple[str, float, int]]
"""Model, share and batch of each, sorted."""


def source_of(gpu: PlannedGpu, partition: Partition, served: ServedModel, device: Device) -> Source:
    """The source of a model's execution time in its partition."""
    beside = _neighbours(gpu, partition)
    if _factor(served, beside, device) is not None:
        return Source.LEARNED
    if _is_measured(device.profiles[served.model], partition.percent, served.batch, beside):
        return Source.MEASURED
    return Source.PREDICTED


def sentence(gpu: PlannedGpu, partition: Partition, served: ServedModel, device: Device) -> str:
    """The same in words, with the evidence."""
    beside = _neighbours(gpu, partition)
    match source_of(gpu, partition, served, device):
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
    return sorted((m.model, p.percent, m.batch) for p in others for m in p.models)


def _factor(served: ServedModel, beside: _Neighbours, device: Device) -> Factor | None:
    if not isinstance(device.latency, Calibrated):
        return None
    return device.latency.factor(served.model, (model for model, _, _ in beside))


def _is_measured(profile: Profile, percent: float, batch: int, beside: _Neighbours) -> bool:
    if not beside:
        return any((p.percent, p.batch) == (percent, batch) for p in profile.points)
    return any(
        (p.percent, p.batch) == (percent, batch)
        and sorted((n.model, n.percent, n.batch) for n in p.neighbours) == beside
        for p in profile.colocation
    )

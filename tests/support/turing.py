"""The planning question of gpulet's paper: its models on the surrogate of an RTX 2080 Ti."""

from collections.abc import Mapping
from functools import cache
from itertools import product

from planning import StoppedClock

from controlplane.domain.device import GpuPool
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.workload import ShadowPolicy, ShadowWish, Workload
from controlplane.files import catalogue
from controlplane.latency import registry as latency_registry
from controlplane.planning import registry
from controlplane.planning.protocol import Device, PlanRequest

SLO_MS: Mapping[str, float] = {
    "lenet1": 5,
    "googlenet": 66,
    "resnet50": 108,
    "ssd-mobilenetv1": 202,
    "vgg16": 142,
    "mnasnet1_0": 62,
    "mobilenet_v2": 64,
    "densenet161": 202,
    "bert": 22,
}
"""Table 3 of the paper."""
SIX = {
    "googlenet": 100.0,
    "resnet50": 200.0,
    "ssd-mobilenetv1": 100.0,
    "vgg16": 100.0,
    "mnasnet1_0": 200.0,
    "mobilenet_v2": 200.0,
}
"""Rates of models of 1.7 to 4.2 GB, which two GPUs of 9.9 GB hold without shadows."""


def scenarios() -> list[dict[str, float]]:
    """All 19,682: a rate of 0, 100 or 200 for each model of Table 3, without the one that has no rate."""
    rates = product((0.0, 100.0, 200.0), repeat=len(SLO_MS))
    return [
        {model: rate for model, rate in zip(SLO_MS, chosen, strict=True) if rate}
        for chosen in rates
        if any(chosen)
    ]


def asked(rates: Mapping[str, float], slo_ms: Mapping[str, float] = SLO_MS) -> tuple[Workload, ...]:
    """Workloads by their models' names, without shadows."""
    none = ShadowWish(ShadowPolicy.NONE)
    return tuple(
        Workload(model, model, slo_ms[model], rate, endpoint=model, shadow=none)
        for model, rate in rates.items()
    )


@cache
def device(count: int | None = 4, latency: str = "gpulet") -> Device:
    kind, profiles = catalogue.device("rtx2080ti"), catalogue.profiles("rtx2080ti")
    assert kind is not None
    return Device(GpuPool(kind, count, 0.0), latency_registry.build(latency, kind, profiles), profiles)


def question(
    workloads: tuple[Workload, ...],
    count: int | None = 4,
    rule: Rule = Rule.HALF_SLO,
    latency: str = "gpulet",
) -> PlanRequest:
    return PlanRequest(workloads, {"rtx2080ti": device(count, latency)}, rule, StoppedClock())


def planned(strategy: str, rates: Mapping[str, float], *, as_coded: bool = False, **more: int) -> Plan:
    chosen = registry.strategy(strategy, as_coded=as_coded or None)
    return chosen.plan(question(asked(rates), **more))  # type: ignore[arg-type]

"""The paper's cluster for tests and benches: two RTX 2060 Super, two RTX 2060, and its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from inss_instances import MODELS

from controlplane.domain.device import GpuPool
from controlplane.domain.workload import Workload
from controlplane.files import catalogue
from controlplane.latency import registry as latency_registry
from controlplane.papers.inss.problem import Tables, tabulate
from controlplane.planning.protocol import Device

FOUR = (("rtx2060s", 2), ("rtx2060", 2))


@cache
def devices(latency: str = "inss", counts: Sequence[tuple[str, int]] = FOUR) -> Mapping[str, Device]:
    found = {}
    for name, count in counts:
        kind, profiles = catalogue.device(name), catalogue.profiles(name)
        assert kind is not None
        found[name] = Device(
            GpuPool(kind, count, 1.0), latency_registry.build(latency, kind, profiles), profiles
        )
    return found


@cache
def tables() -> Tables:
    return tabulate(devices(), [(model, 1) for model in MODELS])


def workloads(rates_rps: Mapping[str, float]) -> tuple[Workload, ...]:
    """The paper's models at these rates, with its SLOs."""
    return tuple(Workload(m, m, MODELS[m].slo_ms, rate, endpoint=m) for m, rate in rates_rps.items())

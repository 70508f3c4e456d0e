"""Planning questions for tests and benches: the published workloads on the V100 catalogue."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from controlplane.domain.device import GpuPool, ShareGrid
from controlplane.domain.plan import Plan, Rule, Totals
from controlplane.domain.workload import WITHIN_S, ShadowPolicy, ShadowWish, Workload
from controlplane.files import catalogue
from controlplane.latency import registry as latency_registry
from controlplane.planning import registry
from controlplane.planning.capacity.gpu_types import GpuType, gpu_types
from controlplane.planning.judge.placements import PROCESS
from controlplane.planning.protocol import Device, PlanRequest

DATA = Path(__file__).parent.parent / "data"
MIXED_SLO_MS = {"alexnet": 36.0, "resnet50": 96.0, "vgg19": 144.0, "ssd": 120.0}
MODELS = ("alexnet", "resnet50", "vgg19", "ssd")
SHADOWS = {p.value: ShadowWish(p) for p in (ShadowPolicy.NONE, ShadowPolicy.HOT, ShadowPolicy.AUTO)}
SHADOWS |= {"within 1 s": ShadowWish(within_s=WITHIN_S)}
TABLE_1 = (("A", "alexnet", 15.0, 500.0), ("R", "resnet50", 40.0, 400.0), ("V", "vgg19", 60.0, 200.0))


@dataclass(frozen=True)
class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@dataclass(frozen=True)
class StoppedClock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0


def workload(name: str, model: str, slo_ms: float, rate_rps: float) -> Workload:
    return Workload(name, model, slo_ms, rate_rps, endpoint=name)


def published(count: int) -> tuple[Workload, ...]:
    """12 (Table 3 of iGniter), 50, 200 or 1000 workloads."""
    listed = json.loads((DATA / f"workloads_{count}.json").read_text())["workloads"]
    return tuple(workload(w["id"], w["model"], w["slo_ms"], w["rate"]) for w in listed)


@cache
def v100(latency: str = "igniter", count: int | None = None, price: float = 3.06) -> Device:
    kind, profiles = catalogue.device("v100"), catalogue.profiles("v100")
    assert kind is not None
    return Device(GpuPool(kind, count, price), latency_registry.build(latency, kind, profiles), profiles)


@cache
def v100_with_memory(latency: str = "ours") -> Device:
    """The same with the memory that public numbers say its models take."""
    said, device = json.loads((DATA / "memory_v100.json").read_text()), v100(latency)
    context_mb, kind = said["context_mb"], device.pool.device
    profiles = {
        model: replace(
            device.profiles[model],
            memory_by_batch={b: context_mb + own["weights_mb"] + b * own["activations_mb"] for b in (1, 32)},
        )
        for model, own in said["models"].items()
    }
    kind = replace(kind, hardware={**kind.hardware, PROCESS: context_mb})
    return replace(device, pool=replace(device.pool, device=kind), profiles=profiles)


def on_grid(device: Device, grid: ShareGrid) -> Device:
    """The device with other shares to choose from."""
    return replace(device, pool=replace(device.pool, device=replace(device.pool.device, grid=grid)))


@cache
def cores(copies: int, count: int | None = None) -> Device:
    """GPUs cut into five like a core, with so many copies of every model: `alexnet-0` and so on."""
    kind, profiles = catalogue.device("v100"), catalogue.profiles("v100")
    assert kind is not None
    names = {f"{model}-{n}": model for model in profiles for n in range(copies)}
    copied = {name: replace(profiles[model], model=name) for name, model in names.items()}
    device = Device(GpuPool(kind, count, 3.06), latency_registry.build("ours", kind, copied), copied)
    return on_grid(device, ShareGrid(20.0, 20.0))


def mixed(count: int, copies: int, seed: int) -> tuple[Workload, ...]:
    """So many workloads, each of another of the models of `cores(copies)`: random rates and SLOs, no shadows.

    Models of 2 to 20 ms: under these SLOs the short ones cannot wait behind several long ones.
    """
    random = np.random.default_rng(seed)
    models = random.permutation([f"{m}-{n}" for m in MIXED_SLO_MS for n in range(copies)])[:count].tolist()
    none = ShadowWish(ShadowPolicy.NONE)
    return tuple(
        replace(
            workload(
                f"w{n}",
                model,
                round(MIXED_SLO_MS[model.rsplit("-", 1)[0]] * random.uniform(0.5, 2.0), 1),
                round(random.uniform(6.0, 34.0), 1),
            ),
            shadow=none,
        )
        for n, model in enumerate(models)
    )


def request(
    workloads: Sequence[Workload],
    *,
    latency: str = "igniter",
    rule: Rule = Rule.HALF_SLO,
    device: Device | None = None,
    **more: object,
) -> PlanRequest:
    """A question to planners about any number of V100s, or about this `device`."""
    devices = {"v100": device or v100(latency)}
    return PlanRequest(tuple(workloads), devices, rule, **{"clock": StoppedClock(), **more})  # type: ignore[arg-type]


def p99_request(workloads: Sequence[Workload], **more: object) -> PlanRequest:
    """The same under P99, by our own latency model."""
    return request(workloads, latency="ours", rule=Rule.P99, **more)  # type: ignore[arg-type]


def planned(
    strategy: str, workloads: Sequence[Workload], *, iterations: int | None = None, **more: object
) -> Plan:
    chosen = registry.strategy(strategy, iterations=iterations)
    return chosen.plan(request(workloads, **more))  # type: ignore[arg-type]


def joint_p99(workloads: Sequence[Workload], **more: object) -> Plan:
    """The plan of `joint` under P99, by our own latency model; `more`: see `request`."""
    return registry.strategy("joint").plan(p99_request(workloads, **more))


def totals(plan: Plan) -> Totals:
    """Those that every strategy's plan has."""
    assert plan.totals is not None
    return plan.totals


def gpu_type(latency: str) -> GpuType:
    """The V100 as planners see it, under the rule that fits the latency model: P99 with `ours`."""
    rule = Rule.P99 if latency == "ours" else Rule.HALF_SLO
    return gpu_types({"v100": v100(latency)}, rule, 0.95)["v100"]


def types_of(asked: PlanRequest) -> dict[str, GpuType]:
    return gpu_types(asked.devices, asked.rule, asked.quantile)


def layout(plan: Plan) -> list[dict[str, tuple[float, int]]]:
    """Of each GPU: partition -> (percent, batch)."""
    return [{p.id: (p.percent, p.models[0].batch) for p in g.partitions} for g in plan.gpus]

"""Servers, plans and a gateway's settings as values, for tests of what reads them."""

from dataclasses import dataclass
from typing import Any

from controlplane.domain.fleet import Labels, Role, Server, ServerSpec, ServerState
from controlplane.domain.plan import Partition, Placement, Plan, PlannedGpu, Rule, ServedModel
from controlplane.files.gateway import GatewaySettings

SPEC = """schema_version: 1
gpus: [{type: v100}]
workloads: [{name: search, model: resnet50, slo_ms: 40, rate_rps: 100}]
"""


@dataclass
class Clock:
    """A clock that is set by hand: on a busy host any two steps of a test may be far apart."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + 1e9


def spec(
    partition: str = "p",
    *,
    device: str = "cpu-0",
    percent: float = 50.0,
    models: tuple[str, ...] = ("m",),
    role: Role = Role.ACTIVE,
    revision: str = "r",
    fleet: str = "f",
    plan: str = "h",
    **more: Any,
) -> ServerSpec:
    labels = Labels(fleet, plan, partition, role, revision)
    return ServerSpec(labels, "/m", models, device, percent, **more)


def server(
    of: ServerSpec, id: str = "1", state: ServerState = ServerState.RUNNING, port: int = 1, **more: Any
) -> Server:
    return Server(id, of, state, "127.0.0.1", port, 2, 3, **more)


def partition(
    name: str,
    percent: float = 50.0,
    *workloads: str,
    model: str = "m",
    batch: int = 1,
    rate_rps: float = 10.0,
    slo_ms: float = 50.0,
    **more: Any,
) -> Partition:
    """One queue of these workloads, or of one with the partition's name."""
    placed = tuple(Placement(w, w, model, rate_rps, slo_ms) for w in workloads or (name,))
    return Partition(name, percent, (ServedModel(model, batch),), placed, **more)


def plan(*partitions: Partition, gpu: str = "v100-0", **more: Any) -> Plan:
    """A plan of one GPU."""
    planned = PlannedGpu(gpu, gpu.rpartition("-")[0], partitions)
    return Plan("by-hand", Rule.P99, "ours", (planned,), **more)


def gateway_settings(**more: Any) -> GatewaySettings:
    ports = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}
    usual = {"host": "127.0.0.1", **ports, "slots": 4, "members": 2, "haproxy": "haproxy"}
    return GatewaySettings(**{**usual, **more})

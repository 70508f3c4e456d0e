"""What is to run and what runs: servers, their labels, and the routes to them.

The labels on a running server are the truth about the fleet; everything else is derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Why a server runs."""

    ACTIVE = "active"
    SHADOW = "shadow"
    PROFILE = "profile"
    """Only measured; never routed to."""


class ServerState(StrEnum):
    """What a launcher knows about a server without asking it."""

    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Labels:
    """What every server carries, on its process, container or pod.

    `revision` is a hash of all that cannot change in a running server (share, device, models, rendered
    files): two servers with equal partition, role and revision are interchangeable.
    """

    fleet: str
    plan_hash: str
    partition: str
    role: Role
    revision: str


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One Triton to start.

    `repository` is the absolute path of the rendered model repository; `endpoints` are the models in it,
    by the names clients call. `device` is `cpu-0` or a GPU's UUID. `percent` is its share of that device.
    `name` is unique among everything that runs: also the server id that GET /v2 answers with.
    """

    labels: Labels
    repository: str
    endpoints: tuple[str, ...]
    device: str
    percent: float
    memory_mb: float | None = None
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        labels = self.labels
        # Made once: every look of a controller asks for every server's.
        name = f"{labels.fleet}.{labels.partition}.{labels.role}.{labels.revision}"
        object.__setattr__(self, "name", name)

    @property
    def fixed(self) -> Mapping[str, object]:
        """What a revision covers besides the repository's content, as exactly as it does."""
        return {
            "device": self.device,
            "percent": f"{self.percent:g}",
            "memory_mb": self.memory_mb,
            "endpoints": tuple(sorted(self.endpoints)),
        }


@dataclass(frozen=True, slots=True)
class Server:
    """A Triton that was started. `id` is the launcher's handle (a pid, a container id).

    `enforced_by` names the mechanism that holds its share, None where nothing does.
    """

    id: str
    spec: ServerSpec
    state: ServerState
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    enforced_by: str | None = None
    log_path: str | None = None

    @property
    def name(self) -> str:
        """The spec's unique name."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class ShareUsage:
    """Counters of a share since the server started; None where the mechanism does not count.

    `throttled_periods` of `periods` hit the quota; `cpu_seconds` were used. `memory_mb` is occupied now.
    """

    periods: int | None
    throttled_periods: int | None
    cpu_seconds: float | None
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the gateway listens, and what it does for clients.

    `compress_answers`: over HTTP, for clients that accept it. `fleet_wide_calls`: clients may share memory
    with servers and change trace and log settings.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    compress_answers: bool = False
    fleet_wide_calls: bool = False


@dataclass(frozen=True, slots=True)
class Backend:
    """Where a route leads: one server's ports, and its unique name.

    `metrics_port` is None where the server's own metrics are not to be shown.
    """

    server: str
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers for an endpoint: one server or a pool (least outstanding requests), and who backs it up."""

    members: tuple[Backend, ...]
    backup: Backend | None = None


Routes = Mapping[str, Route]
"""Endpoint -> route."""

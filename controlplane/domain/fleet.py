"""Servers, planned and running, their labels, and the routes to them.

The labels on running servers are the truth about a fleet; everything else is derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controlplane.domain.server_options import NO_OPTIONS, ServerOptions

_LEAST_READY_S = 0.005
"""The shortest ready time of a thread from which parts of it are computed."""
_FREE_CORE_S = 50e-6
"""The mean wait of a thread for a core that is free, for it has to wake: measured are 8 to 40 us, and the
gateway then runs for no longer. Where other work has the core, the mean wait is 100 to 700 us."""


def waited_for_others_s(waited_s: float, runs: int) -> float:
    """Return for how much of its waits a thread that ran so many times had its core taken by other work."""
    return max(0.0, waited_s - _FREE_CORE_S * runs)


class Role(StrEnum):
    """The purpose of a server."""

    ACTIVE = "active"
    SHADOW = "shadow"
    SHARED = "shared"
    """Stands by for several partitions."""
    PROFILE = "profile"
    """Only measured; never routed to."""


class ServerState(StrEnum):
    """The state of a server's process or container."""

    RUNNING = "running"
    PAUSED = "paused"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a server, on its process or container.

    `revision` is a hash of all that cannot change in a running server (share, device, models, rendered
    files): two servers with equal partition, role and revision are interchangeable.
    """

    fleet: str
    plan_hash: str
    partition: str
    role: Role
    revision: str


Batches = tuple[tuple[str, int], ...]
"""Models of a server, sorted, each with its largest dynamic batch."""
BATCH_LIBRARY = "batchstrategy.so"
"""The name under which Triton looks for a batch library, in the folders of a model and of its versions."""
LIVE_BATCHES = "TRISECT_LIVE_BATCHES"
"""Set to `off`, batches are fixed in the configurations, and a plan with others starts other servers."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One Triton to start.

    `repository` is the absolute path of the rendered model repository; `endpoints` are the models in it, by
    the names that clients call. `device` is `cpu-0` or a GPU's UUID. `percent` is the share of that device.
    `name` is unique among all servers, and is the server id in the answer of GET /v2. `memory_mb` is what it
    takes as far as known, `memory_limit_mb` what it may take: no limit unless the user set one.

    `reloads`: its models are unloaded and loaded while it runs, as a warm shadow's are. `fleet_wide_calls`:
    its clients may share memory with it and change its trace and log settings. A server refuses the calls of
    both kinds to every process of its host unless these say otherwise. `turns`: one of its models executes at
    a time. `completes`: it loads no model by itself, and completes the configuration of each one that it is
    made to load; it `reloads`, and serves no client. `options` are the user's own. `batches` are the largest
    dynamic batches by model, of those that take another one while they serve: the start's, and of a server
    that is listed, the present ones.
    """

    labels: Labels
    repository: str
    endpoints: tuple[str, ...]
    device: str
    percent: float
    memory_mb: float | None = None
    memory_limit_mb: float | None = None
    reloads: bool = False
    fleet_wide_calls: bool = False
    turns: bool = False
    completes: bool = False
    options: ServerOptions = NO_OPTIONS
    batches: Batches = ()
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        labels = self.labels
        # Computed once, since every tick of a controller reads the name of every server.
        name = f"{labels.fleet}.{labels.partition}.{labels.role}.{labels.revision}"
        object.__setattr__(self, "name", name)

    @property
    def fixed(self) -> Mapping[str, object]:
        """The part of a revision besides the repository's content, with the same precision."""
        return {
            "device": self.device,
            "percent": f"{self.percent:g}",
            "memory_limit_mb": self.memory_limit_mb,
            "endpoints": tuple(sorted(self.endpoints)),
            "reloads": self.reloads,
            "fleet_wide_calls": self.fleet_wide_calls,
            "options": self.options,
        }


RELOAD_HEADER = "trisect-reload"
"""The header of load and unload calls to a server whose spec `reloads`."""


UNIX = "unix:"
"""Begins the host of a server that listens on Unix sockets."""
OWN_FOLDER = "/t"
"""Ends the host of one whose sockets are in a folder of their own."""


def socket_path(host: str, port: int) -> str | None:
    """Return the path of a port's Unix socket; None where it is a port of TCP.

    Such a host is `unix:PATH`, and the socket of a port is at PATH:PORT. So `host:port` is a target for gRPC
    in both cases, and what a Triton makes of its options for gRPC.
    """
    return f"{host.removeprefix(UNIX)}:{port}" if host.startswith(UNIX) else None


def instance(name: str, host: str, http_port: int) -> str:
    """Return the name of one start of a server: `NAME:` and where it listens."""
    on_sockets = host.startswith(UNIX)
    place = host.removesuffix(OWN_FOLDER).rpartition("/")[2] if on_sockets else f"{host}:{http_port}"
    return f"{name}:{place}"


def name_of(instance: str) -> str:
    """Return the name of the server; no name has a colon."""
    return instance.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Server:
    """A started Triton. `id` is the launcher's handle (a pid, a container id).

    `host` is an address, or the beginning of its sockets' paths (`socket_path`).

    `enforced_by` is the mechanism that enforces its share, None where nothing does. `reload_key` is the value
    of RELOAD_HEADER that its load and unload calls expect; None where its models stay loaded. `end` is why it
    ended, or is about to, where its engine says so.
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
    reload_key: str | None = field(default=None, repr=False)
    end: str | None = None

    @property
    def name(self) -> str:
        """The spec's unique name."""
        return self.spec.name

    @property
    def instance(self) -> str:
        """Its name in HAProxy and in the log of requests."""
        return instance(self.name, self.host, self.http_port)


@dataclass(frozen=True, slots=True)
class ShareUsage:
    """Counters of a share since the server started; None where the mechanism does not count.

    `throttled_periods` of `periods` hit the quota; `cpu_seconds` were used. `memory_mb` is the present use,
    on a GPU read as `memory_by` says: from the driver's list of processes, or by the growth of the GPU's used
    memory since before the start, which neighbours that load falsify.
    """

    periods: int | None
    throttled_periods: int | None
    cpu_seconds: float | None
    memory_mb: float | None = None
    memory_by: str | None = None


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Counters of a server under a quota, in seconds since it started.

    Its busiest `thread` ran `runs` times, for `ran_s`, and was ready to run without a core for `waited_s`:
    for `throttled_s` because its quota was used up, otherwise because other work had the core, or to wake.
    """

    thread: int
    ran_s: float
    waited_s: float
    throttled_s: float
    runs: int = 0

    def since(self, before: QuotaUse) -> Delays | None:
        """Return what delayed the thread since `before`; None where it was another one, or hardly ready."""
        ready_s = self.ran_s + self.waited_s - before.ran_s - before.waited_s
        if self.thread != before.thread or ready_s < _LEAST_READY_S:
            return None
        waited_s = self.waited_s - before.waited_s
        throttled_s = min(self.throttled_s - before.throttled_s, waited_s)
        starved_s = waited_for_others_s(waited_s - throttled_s, self.runs - before.runs)
        return Delays(starved_s / ready_s, throttled_s / ready_s)


@dataclass(frozen=True, slots=True)
class Delays:
    """What delays a server, as parts of the time in which it is ready to run.

    `starved` is the part in which other work has its core, `throttled` the part withheld by its quota.
    """

    starved: float
    throttled: float


@dataclass(frozen=True, slots=True)
class InFlight:
    """The requests that a server has not answered.

    `requests` wait for one answer each. `streaming` are open on decoupled models and in sequences, where a
    pause shows nothing: tokens may be far apart, and a sequence may wait for a free place. `sequences` live
    on the server between two requests: they owe no answer, but end with it.
    """

    requests: int = 0
    streaming: int = 0
    sequences: int = 0

    @property
    def unanswered(self) -> int:
        """Return the number of requests and streams that are open."""
        return self.requests + self.streaming

    @property
    def total(self) -> int:
        """Return what a server must still do before it has drained."""
        return self.unanswered + self.sequences

    def plus(self, other: InFlight) -> InFlight:
        """Return both together."""
        return InFlight(
            self.requests + other.requests,
            self.streaming + other.streaming,
            self.sequences + other.sequences,
        )


NOTHING_IN_FLIGHT = InFlight()


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """The gateway's protection on a network. Paths are absolute.

    `certificate` and `key` are PEM files; with them all ports speak TLS. `client_ca` signs clients'
    certificates. With `tokens`, a client needs a token or such a certificate. `plain_text` allows addresses
    beyond loopback without TLS. `audit` writes a line for every request. One source address may hold
    `max_connections` connections: half of all where it is None.
    """

    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    tokens: bool = False
    plain_text: bool = False
    audit: bool = False
    max_connections: int | None = None


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway's addresses, and its options for clients.

    `compress_answers`: over HTTP, for clients that accept it. `fleet_wide_calls`: clients may share memory
    with servers and change trace and log settings. `late_binding`: requests of a partition with several
    models wait at the gateway, where a shorter one passes longer ones, by `overtake_ms` at most.
    `trace_endpoint`: URL of an OTLP collector that gets a span of each sampled request; none where empty.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    compress_answers: bool = False
    fleet_wide_calls: bool = False
    protection: AccessConfig = AccessConfig()
    late_binding: bool = False
    overtake_ms: int = 1000
    trace_endpoint: str = ""


LOAD_TIMEOUT_S = 90.0
"""How long a start may be without progress (log, memory, processor time), unless the section says else."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The place of a fleet on Kubernetes; None: the kubeconfig's current context, the context's namespace.

    `installed`: gateway and controllers run there too, and the fleet's plan is its Fleet object's.
    """

    context: str | None = None
    namespace: str | None = None
    installed: bool = False


@dataclass(frozen=True, slots=True)
class Backend:
    """A server as the target of a route: its unique name and where it listens.

    `metrics_port` is None where the server's own metrics are not exported.
    """

    server: str
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int | None = None

    @property
    def instance(self) -> str:
        """Its name in HAProxy and in the log of requests."""
        return instance(self.server, self.host, self.http_port)


@dataclass(frozen=True, slots=True)
class Route:
    """The servers of an endpoint: one, or a pool (fewest requests in flight first), and the backup."""

    members: tuple[Backend, ...]
    backup: Backend | None = None

    @property
    def servers(self) -> tuple[Backend, ...]:
        """The members and the backup."""
        return self.members if self.backup is None else (*self.members, self.backup)


Routes = Mapping[str, Route]
"""Endpoint -> route."""

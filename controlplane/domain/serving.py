"""The section `serve` of a spec: how a fleet is served, and the order of requests at its gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from itertools import combinations
from typing import Annotated, Any
from urllib.parse import urlsplit

from annotated_types import Ge, Le

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import LOAD_TIMEOUT_S, AccessConfig, Cluster, GatewayConfig
from controlplane.domain.units import Checked, Count

PROMISE_WINDOW_S = 2
"""Seconds over which the gateway compares an endpoint's requests with its planned rate."""

LONGEST_MS = 500_000
"""The largest `after_ms`: HAProxy's priority offsets go up to 524,287 ms."""

OVERTAKES_MS = 60_000
"""How long a request of a planned rank lets those of the rank before it pass: longer than any may wait."""

MOST_RANKS = LONGEST_MS // OVERTAKES_MS + 1
_RANK_FACTOR = 2.0

LARGEST_DEFICIT_MS = 20_000
"""What a client may fall behind by: HAProxy's offsets end that far beyond LONGEST_MS."""


class LauncherName(StrEnum):
    """What runs the Tritons."""

    PROCESS = "process"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"


Port = Annotated[int, Ge(1), Le(65535)]


@dataclass(frozen=True, slots=True)
class Listen(Checked):
    """The gateway's address and its ports, which differ."""

    host: str = "127.0.0.1"
    """The address; beyond loopback it needs `tls`, or `access.plain_text`."""
    http: Port = 8000
    """The HTTP port."""
    grpc: Port = 8001
    """The gRPC port."""
    metrics: Port = 8002
    """The port of the page of metrics."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        ports = {"http": self.http, "grpc": self.grpc, "metrics": self.metrics}
        for (one, port), (other, its) in combinations(ports.items(), 2):
            if port == its:
                raise InputError(f"{port} is the port of {one} already; each needs its own", field=other)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files."""

    cert: str
    """The certificate with its chain."""
    key: str
    """Its key, without a password."""
    client_ca: str | None = None
    """The authority that signs clients' certificates."""


@dataclass(frozen=True, slots=True)
class Access(Checked):
    """What a client needs to connect."""

    tokens: bool = False
    """Only clients with a token or certificate of `ctl token`."""
    audit: bool = False
    """A line for each request in audit.jsonl."""
    plain_text: bool = False
    """Other hosts without TLS."""
    max_connections: Count | None = None
    """Of one source address; without it half of all that the gateway takes."""


@dataclass(frozen=True, slots=True)
class LateBinding(Checked):
    """Requests wait at the gateway, where a shorter one passes longer ones."""

    overtake_ms: Annotated[int, Ge(0), Le(LONGEST_MS)] = 1000
    """By how long at most; 0: first come, first served. With tokens also between clients."""


@dataclass(frozen=True, slots=True)
class FollowLoad(Checked):
    """The plan follows the rates that arrive."""

    stabilisation_s: Annotated[float, Ge(1)] = 300.0
    """How long a cheaper plan must have been enough."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How a fleet is served; what is left out has its default. Paths may be relative to where apply runs."""

    launcher: LauncherName | None = None
    """Without it `TRISECT_LAUNCHER`, else docker where GPUs and an engine are, else process."""
    context: str | None = None
    """On Kubernetes: the kubeconfig's context; without it the current one."""
    namespace: str | None = None
    """On Kubernetes; without it the context's."""
    listen: Listen = Listen()
    """The gateway's address and ports."""
    tls: Tls | None = None
    """All three ports speak TLS, with these PEM files."""
    access: Access = Access()
    """What a client needs; without it every client of this host may call."""
    compress: bool = False
    """Compress HTTP answers for clients that accept it."""
    fleet_wide_calls: bool = False
    """Allow calls that affect every client: shared memory, trace and log settings."""
    traces: str = ""
    """The URL of an OTLP collector for a span of each request that its client samples (extra `otel`)."""
    late_binding: LateBinding | None = None
    """In partitions of several models requests wait at the gateway, shorter ones first. Not on Kubernetes."""
    follow_load: FollowLoad | None = None
    """The controller changes the plan with the rates that arrive."""
    load_timeout_s: Annotated[float, Ge(1)] = LOAD_TIMEOUT_S
    """A start has failed after so long without progress (log, memory, processor time)."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.traces)
        if self.traces and (parts.scheme not in ("http", "https") or not parts.netloc):
            problem = f"{self.traces!r} is no URL of a collector, such as http://127.0.0.1:4318/v1/traces"
            raise InputError(problem, field="traces")

    @property
    def gateway(self) -> GatewayConfig:
        """The gateway's options."""
        tls = self.tls
        return GatewayConfig(
            host=self.listen.host,
            http_port=self.listen.http,
            grpc_port=self.listen.grpc,
            metrics_port=self.listen.metrics,
            compress_answers=self.compress,
            fleet_wide_calls=self.fleet_wide_calls,
            protection=AccessConfig(
                certificate=None if tls is None else tls.cert,
                key=None if tls is None else tls.key,
                client_ca=None if tls is None else tls.client_ca,
                tokens=self.access.tokens,
                plain_text=self.access.plain_text,
                audit=self.access.audit,
                max_connections=self.access.max_connections,
            ),
            late_binding=self.late_binding is not None,
            overtake_ms=(self.late_binding or LateBinding()).overtake_ms,
            trace_endpoint=self.traces,
        )

    @classmethod
    def of(
        cls,
        launcher: LauncherName | None,
        gateway: GatewayConfig,
        cluster: Cluster,
        dwell_s: float | None,
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> Serving:
        """Return the section of a running fleet; `dwell_s` is None where it does not follow its load."""
        guarded = gateway.protection
        with_tls = guarded.certificate is not None and guarded.key is not None
        return cls(
            launcher=launcher,
            context=cluster.context,
            namespace=cluster.namespace,
            listen=Listen(gateway.host, gateway.http_port, gateway.grpc_port, gateway.metrics_port),
            tls=Tls(guarded.certificate or "", guarded.key or "", guarded.client_ca) if with_tls else None,
            access=Access(guarded.tokens, guarded.audit, guarded.plain_text, guarded.max_connections),
            compress=gateway.compress_answers,
            fleet_wide_calls=gateway.fleet_wide_calls,
            traces=gateway.trace_endpoint,
            late_binding=LateBinding(gateway.overtake_ms) if gateway.late_binding else None,
            follow_load=None if dwell_s is None else FollowLoad(dwell_s),
            load_timeout_s=load_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that two records of one kind do not share, as `access.tokens`."""

    path: str
    before: str | float | bool | None
    after: str | float | bool | None


def differences(before: Any, after: Any, within: str = "") -> tuple[Difference, ...]:
    """Return the fields that differ, those of inner records by their paths; None has none of them."""
    found: list[Difference] = []
    for one in fields(after if before is None else before):
        old, new = getattr(before, one.name, None), getattr(after, one.name, None)
        if is_dataclass(old) or is_dataclass(new):
            found += differences(old, new, f"{within}{one.name}.")
        elif old != new:
            found.append(Difference(f"{within}{one.name}", old, new))
    return tuple(found)


def ranks_of(times_ms: Mapping[str, float]) -> Mapping[str, int]:
    """Return the ranks by name, the shortest time first; times within a factor of two are one rank."""
    ranks: dict[str, int] = {}
    rank, first_ms = -1, 0.0
    for name, ms in sorted(times_ms.items(), key=lambda item: item[1]):
        if rank < 0 or ms >= _RANK_FACTOR * first_ms:
            rank, first_ms = rank + 1, ms
        ranks[name] = rank
    return ranks


@dataclass(frozen=True, slots=True)
class Precedence:
    """How an endpoint's requests wait for their partition, and when they are refused.

    Endpoints of one `partition` share a queue. A request goes before one that came earlier if its time plus
    its `after_ms` is smaller. At most `inside` requests of the partition are in its server. Those
    beyond `promised` in PROMISE_WINDOW_S wait behind all others, and are refused while `overloaded_at` wait.
    Each request that a client got through in that window lets later ones of other clients pass that come up
    to `served_ms` after its own, `deficit_ms` in all at most.
    """

    partition: str
    after_ms: int
    inside: int
    overloaded_at: int
    promised: int
    served_ms: int = 0
    deficit_ms: int = 0


Order = Mapping[str, Precedence]
"""Endpoint -> precedence; an endpoint without one does not wait at the gateway."""

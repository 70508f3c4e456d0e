"""Rendering of HAProxy's configuration.

The file has the present servers of every slot, so that a restarted HAProxy serves the same routes. While
HAProxy runs, slots change through its runtime socket, without a reload.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from controlplane.domain.order import LONGEST_MS, PROMISE_WINDOW_S
from controlplane.files.limits import REFUSED, REMEMBERED_S

if TYPE_CHECKING:
    from jinja2 import Environment

_OVERLOADED = "the partition is overloaded, and this endpoint is above its planned rate"
LARGEST_BODY_BYTES = 2**30
"""Of a request that goes on without being held in memory: a server holds it."""


@dataclass(frozen=True, slots=True)
class ServerLine:
    """One pre-allocated server of a slot. The address of a disabled one is a placeholder."""

    name: str
    host: str = "127.0.0.1"
    http_port: int = 1
    grpc_port: int = 1
    backup: bool = False
    enabled: bool = False


@dataclass(frozen=True, slots=True)
class SlotLines:
    """The servers of the backends `h_<index>` (HTTP) and `g_<index>` (gRPC).

    The gate `q_<index>`, if there are gates, has so many requests `inside`.
    """

    index: int
    lines: tuple[ServerLine, ...]
    inside: int = 1


@dataclass(frozen=True, slots=True)
class HaproxyFrame:
    """The values in the file that do not change while the gateway runs. Paths are absolute.

    `http_fd` and `grpc_fd` are listening sockets that HAProxy inherits. `certificate` is set for TLS,
    `clients_map` and its two companions where clients need tokens, `gates_map` where requests wait for their
    partition. With `traced`, a line has the context of a request that its client
    samples. `process` identifies one run of HAProxy in the log, whose line numbers
    begin anew with each run; `fingerprint` the settings it runs with.
    """

    http_fd: int
    grpc_fd: int
    runtime_socket: str
    exporter_socket: str
    gate_socket: str
    facade_http_port: int
    facade_grpc_port: int
    models_map: str
    checks_map: str
    endpoint_limits_map: str
    refusals_map: str
    log_address: str
    log_secret: str
    process: str
    maxconn: int
    connections_a_source: int
    threads: int
    compress_answers: bool
    certificate: str | None = None
    client_ca: str | None = None
    clients_map: str | None = None
    grants_map: str | None = None
    client_limits_map: str | None = None
    facade_secret: str = ""
    audit: bool = False
    traced: bool = False
    gates_map: str | None = None
    fingerprint: str = ""


def render_haproxy(frame: HaproxyFrame, slots: Sequence[SlotLines]) -> str:
    """Return the text of haproxy.cfg."""
    return (
        _environment()
        .get_template("haproxy.cfg.j2")
        .render(
            **asdict(frame),
            slots=slots,
            largest_body_bytes=LARGEST_BODY_BYTES,
            overloaded=_OVERLOADED,
            refusal=REFUSED,
            remembered_s=REMEMBERED_S,
            promise_window_s=PROMISE_WINDOW_S,
            longest_ms=LONGEST_MS,
            bounded_by=("client", "endpoint") if frame.clients_map else ("endpoint",),
        )
    )


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("controlplane.render", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the text is not HTML
    )

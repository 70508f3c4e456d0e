"""Rendering of HAProxy's configuration.

The file has the present servers of every slot, so that a restarted HAProxy serves the same routes. While
HAProxy runs, slots change through its runtime socket, without a reload.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.domain.fleet import Backend, socket_path
from controlplane.domain.serving import LONGEST_MS, PROMISE_WINDOW_S
from controlplane.files.gateway import GatewaySettings
from controlplane.files.gateway.access import LONGEST_S, REFUSED, REMEMBERED_S
from controlplane.files.gateway_paths import GatewayPaths

if TYPE_CHECKING:
    from jinja2 import Environment

_OVERLOADED = "the partition is overloaded, and this endpoint is above its planned rate"
LARGEST_BODY_BYTES = 2**30
"""Of a request that goes on without being held in memory: a server holds it."""
DEEPEST_JSON = 64
"""Levels of JSON that a server gets to parse."""
LONGEST_FIELD_BYTES = 8190
"""Of one header; Triton 2.51 takes 8191 bytes of a value, the facade's HTTP library 8190."""
MOST_HEADERS = 1024
"""Of a request over HTTP. A Triton counts none; HAProxy's and the facade's libraries do."""
_LONGEST_TARGET_BYTES = 8180
"""Of a request; Triton 2.51 takes 8190."""
_LARGEST_METADATA_BYTES = 8192
"""Of a gRPC call, by gRPC's own measure, whose soft limit in a server this is."""
_PSEUDO_HEADERS_BYTES = 180
"""Method, scheme and path of a call, by the same measure."""
_REFUSED_A_SOURCE = 1000
"""Refused requests of one source whose bodies are read and thrown away at once."""
_NAMES = (
    *("Content-Type", "Content-Length", "Content-Encoding", "Accept-Encoding"),
    *("Inference-Header-Content-Length", "Retry-After", "Transfer-Encoding", "Connection"),
)
"""Of the headers of answers, as a Triton writes them; HAProxy reads all names in lower case."""
_REFUSALS_SCRIPT = Path(__file__).with_name("refusals.lua")
"""HAProxy's part that is no configuration."""


_BACKUP = ":backup"
_CHECKED = "check inter 1s fastinter 200ms downinter 200ms fall 3 rise 1"
_OBSERVED = "observe layer4 error-limit 1 on-error mark-down"
_POOLED = "pool-max-conn -1 pool-purge-delay 5s"
"""HAProxy's defaults for a server's idle connections, which one that is added at runtime does not get: it
would close each connection behind its request."""


def backup_line(backend: Backend) -> str:
    """Return the name of the line that gets requests while all others are down."""
    return f"{backend.instance}{_BACKUP}"


def instance_of(line: str) -> str:
    """Return the instance of the server of a line."""
    return line.removesuffix(_BACKUP)


def is_backup(line: str) -> bool:
    """Return whether this is the line for a slot's backup."""
    return line.endswith(_BACKUP)


def server_line(protocol: str, name: str, backend: Backend) -> str:
    """Return what follows a line's name, in the configuration and in `add server`.

    One failed connection marks a member down until its next good check. Only failed checks mark a backup
    down: where all others are taken for dead, by mistake too, a request goes on trying.
    """
    kind = "backup" if is_backup(name) else _OBSERVED
    http = _address(backend.host, backend.http_port)
    if protocol == "h":
        return f"{http} {_POOLED} {_CHECKED} {kind}"
    checked = f"addr {http}" if http.startswith("unix@") else f"port {backend.http_port}"
    grpc = _address(backend.host, backend.grpc_port)
    return f"{grpc} proto h2 check-proto h1 {checked} {_POOLED} {_CHECKED} {kind}"


def _address(host: str, port: int) -> str:
    path = socket_path(host, port)
    return f"{host}:{port}" if path is None else f"unix@{path}"


@dataclass(frozen=True, slots=True)
class SlotLines:
    """The servers of the backends `h_<index>` (HTTP) and `g_<index>` (gRPC), by the names of their lines.

    The gate `q_<index>`, if there are gates, has so many requests `inside`.
    """

    index: int
    servers: Mapping[str, Backend]
    inside: int = 1


@dataclass(frozen=True, slots=True)
class HaproxyStart:
    """What differs between two starts of HAProxy with the same settings.

    `http_fd` and `grpc_fd` are listening sockets and `log_fd` is a pipe that HAProxy inherits. `process`
    identifies one run of HAProxy in the log, whose line numbers begin anew with each run; `fingerprint` the
    settings it runs with.
    """

    connections_a_source: int
    http_fd: int = -1
    grpc_fd: int = -1
    log_fd: int = -1
    process: str = ""
    maxconn: int = 0
    checks: int = 0
    threads: int = 0
    fingerprint: str = ""
    refusals_script: Path = _REFUSALS_SCRIPT


def render_haproxy(
    settings: GatewaySettings, paths: GatewayPaths, start: HaproxyStart, slots: Sequence[SlotLines]
) -> str:
    """Return the text of haproxy.cfg."""
    return (
        _environment()
        .get_template("haproxy.cfg.j2")
        .render(
            settings=settings,
            protection=settings.protection,
            paths=paths,
            start=start,
            slots=slots,
            server_line=server_line,
            largest_body_bytes=LARGEST_BODY_BYTES,
            overloaded=_OVERLOADED,
            refusal=REFUSED,
            remembered_s=REMEMBERED_S,
            longest_s=LONGEST_S,
            promise_window_s=PROMISE_WINDOW_S,
            longest_ms=LONGEST_MS,
            bounded_by=("client", "endpoint") if settings.protection.tokens else ("endpoint",),
            shallow_json=_shallow_json(DEEPEST_JSON),
            longest_field_bytes=LONGEST_FIELD_BYTES,
            most_headers=MOST_HEADERS,
            names=_NAMES,
            longest_target_bytes=_LONGEST_TARGET_BYTES,
            largest_metadata_bytes=_LARGEST_METADATA_BYTES,
            pseudo_headers_bytes=_PSEUDO_HEADERS_BYTES,
            refused_a_source=_REFUSED_A_SOURCE,
        )
    )


def _shallow_json(levels: int) -> str:
    """Return the regular expression of a body whose first JSON value closes, and is no deeper than this.

    It never goes back over what it has read: `++` and `*+` keep what they took.
    """
    text = r'(?<text>[^][{}"]++|"(?:[^"\\]++|\\.)*+")'
    return f'(?s)(?(DEFINE){text})^[^][{{}}"]*+' + "[[{](?:(?&text)|" * levels + "(?!)" + ")*+[]}]" * levels


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

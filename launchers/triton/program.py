"""Triton itself: where it is installed, and the command line of one server."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain import triton_releases
from controlplane.domain.errors import MissingTool
from controlplane.domain.fleet import RELOAD_HEADER, Server, ServerSpec, socket_path
from launchers.triton.labels import memory_prefix

HOME_VARIABLE = "TRISECT_TRITON_HOME"
IMAGE_HOME = Path("/opt/tritonserver")
"""The place in NVIDIA's images."""
VENDOR_IMAGE = f"nvcr.io/nvidia/tritonserver:{triton_releases.NEWEST.image}-py3"
"""NVIDIA's image of the newest release that a security bulletin names."""

LONGEST_DRAIN_S = 3600
"""Triton's own exit timeout. Above every drain asked for: whoever stops a server also keeps the clock."""

SHELL_BREAK = " \\\n  "
"""Between the words of a command line that a person reads: each on a line of its own."""


@dataclass(frozen=True, slots=True)
class TritonHome:
    """An installed Triton, laid out as in NVIDIA's images: bin/tritonserver, lib, backends."""

    path: Path

    @property
    def binary(self) -> Path:
        """The server's executable."""
        return self.path / "bin" / "tritonserver"

    @property
    def libraries(self) -> Path:
        """The folder LD_LIBRARY_PATH must name."""
        return self.path / "lib"

    @property
    def backends(self) -> Path:
        """The folder of backends."""
        return self.path / "backends"


PORTS = 8000, 8001, 8002
"""Triton's own, for HTTP, gRPC and metrics. No two servers share an address, or a folder of sockets."""


def find_home() -> TritonHome:
    """$TRISECT_TRITON_HOME, else .tools/triton here or beside this .venv, else /opt/tritonserver.

    Raises MissingTool.
    """
    told = os.environ.get(HOME_VARIABLE)
    # `make setup` installs both into the clone: .venv with ctl, .tools with Triton.
    clone = Path(sys.prefix).parent
    places = [Path(told)] if told else [Path(".tools/triton").absolute(), clone / ".tools/triton", IMAGE_HOME]
    for place in places:
        home = TritonHome(place)
        if os.access(home.binary, os.X_OK) and home.backends.is_dir():
            return home
    looked = " and ".join(str(TritonHome(p).binary) for p in places)
    raise MissingTool(
        f"no tritonserver (looked for {looked}): run `make setup`, or set {HOME_VARIABLE} to a folder with "
        "bin/tritonserver, lib and backends"
    )


def command_line(server: Server, home: TritonHome, *, gpu: bool) -> list[str]:
    """Return the argument vector of a Triton that serves its spec's repository.

    Rendered configs are complete, so Triton need not start every model once to complete them.
    """
    spec = server.spec
    arguments = {
        "id": spec.name,
        "model-repository": spec.repository,
        "backend-directory": home.backends,
        "http-address": _http_address(server, server.http_port),
        "http-port": server.http_port,
        "grpc-address": server.host,
        "grpc-port": server.grpc_port,
        "metrics-address": _http_address(server, server.metrics_port),
        "metrics-port": server.metrics_port,
        "metrics-config": "summary_latencies=true",
        "exit-timeout-secs": LONGEST_DRAIN_S,
        "backend-config": f"python,shm-region-prefix-name={memory_prefix(spec)}",
        # NVML is read once for the host, not by every server: each reading wakes the GPU's driver.
        "allow-gpu-metrics": "false",
    }
    line = [str(home.binary), *(f"--{name}={value}" for name, value in arguments.items())]
    line += _locks(spec, server.reload_key)
    if not spec.completes:
        line.append("--disable-auto-complete-config")
    if spec.turns:
        line.append("--rate-limit=execution_count")
    if not gpu:
        line.append("--pinned-memory-pool-byte-size=0")
    # Last, so that the user's value of an option that is not ours to keep wins.
    return [*line, *spec.options.triton_args]


def _http_address(server: Server, port: int) -> str:
    """Return where HTTP listens: of a socket the whole path, to which Triton adds a port for gRPC only."""
    return server.host if socket_path(server.host, port) is None else f"{server.host}:{port}"


_LOCKED = "trisect:locked=for-ever"
"""A header that no request can carry: a colon ends a name in HTTP/1, and gRPC refuses one within a name."""


def _locks(spec: ServerSpec, reload_key: str | None) -> list[str]:
    """Options by which a server refuses what would change it, to every process that can reach it.

    Triton takes a key only as an argument, which other users of a host can read; so calls that nothing here
    needs get a lock without a key. Only a server that `reloads` has one, for loading and unloading over HTTP.
    """
    closed = [] if spec.fleet_wide_calls else ["shared-memory", "trace", "logging"]
    every = ",".join(["model-repository", *closed])
    locked_grpc = f"--grpc-restricted-protocol={every}:{_LOCKED}"
    if not spec.reloads:
        return ["--model-control-mode=none", f"--http-restricted-api={every}:{_LOCKED}", locked_grpc]
    key = f"--http-restricted-api=model-repository:{RELOAD_HEADER}={reload_key}"
    locked_http = [f"--http-restricted-api={','.join(closed)}:{_LOCKED}"] if closed else []
    loaded = [] if spec.completes else ["--load-model=*"]
    return ["--model-control-mode=explicit", *loaded, key, *locked_http, locked_grpc]


UMASK = 0o077
"""What a server writes is its user's only, wherever that lies."""


_REACH_MPS = (
    'at="${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control"; [ -w "$at" ] || { echo "error: user $(id -u) '
    'reaches no MPS daemon at $at: it is of another user, or its folder is not mounted" >&2; exit 1; }; '
)


def in_container(
    command: list[str], *, gpu: bool, sockets: Path | None = None, umask: int = UMASK
) -> tuple[str, ...]:
    """Return the arguments of an image's entry point: a shell sets the umask, which no engine does.

    On a GPU it ends where a client would miss its MPS daemon and run on without it. Triton does not start
    where an earlier start of the container left its sockets, so what is in their folder goes.
    """
    before = _REACH_MPS if gpu else ""
    if sockets is not None:
        before += f"rm -f {shlex.quote(str(sockets))}/*; "
    return ("sh", "-c", f'{before}umask {umask:03o}; exec "$@"', "sh", *command)


KEY_PLACEHOLDER = "RANDOM"
"""Stands for the key in a command line that is shown."""


def new_reload_key(spec: ServerSpec) -> str | None:
    """A random key for one start of a server that `reloads`."""
    return secrets.token_urlsafe(24) if spec.reloads else None


MODEL_THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""A share of a core is one thread's: more threads burn the quota early in its period and then stall."""

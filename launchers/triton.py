"""Triton itself: where it is installed, and the command line of one server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import MissingTool
from controlplane.domain.fleet import ServerSpec
from launchers.labels import memory_prefix

HOME_VARIABLE = "TRISECT_TRITON_HOME"
IMAGE_HOME = Path("/opt/tritonserver")
"""Where NVIDIA's images have it."""

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


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """The three ports of one server and the address they are bound to."""

    http: int
    grpc: int
    metrics: int
    address: str = "127.0.0.1"


def find_home() -> TritonHome:
    """$TRISECT_TRITON_HOME, else .tools/triton of the working directory, else /opt/tritonserver.

    Raises MissingTool.
    """
    told = os.environ.get(HOME_VARIABLE)
    places = [Path(told)] if told else [Path(".tools/triton").absolute(), IMAGE_HOME]
    for place in places:
        home = TritonHome(place)
        if os.access(home.binary, os.X_OK) and home.backends.is_dir():
            return home
    looked = " and ".join(str(TritonHome(p).binary) for p in places)
    raise MissingTool(
        f"no tritonserver (looked for {looked}): run `make setup`, or set {HOME_VARIABLE} to a folder with "
        "bin/tritonserver, lib and backends"
    )


def command_line(
    spec: ServerSpec, home: TritonHome, ports: ServerPorts, *, repository: str, gpu: bool
) -> list[str]:
    """The argument vector of the Triton that serves `spec` from `repository`.

    Explicit model control lets the runtime unload a waiting server's models and change a batch without a
    restart; the gateway passes no such call of a client on. The rendered configs are complete, so Triton
    need not start every model once to complete them.
    """
    arguments = {
        "id": spec.name,
        "model-repository": repository,
        "backend-directory": home.backends,
        "model-control-mode": "explicit",
        "load-model": "*",
        "http-address": ports.address,
        "http-port": ports.http,
        "grpc-address": ports.address,
        "grpc-port": ports.grpc,
        "metrics-address": ports.address,
        "metrics-port": ports.metrics,
        "metrics-config": "summary_latencies=true",
        "exit-timeout-secs": LONGEST_DRAIN_S,
        "backend-config": f"python,shm-region-prefix-name={memory_prefix(spec)}",
        # NVML is read once for the host, not by every server: each reading wakes the GPU's driver.
        "allow-gpu-metrics": "false",
    }
    line = [str(home.binary), *(f"--{name}={value}" for name, value in arguments.items())]
    line.append("--disable-auto-complete-config")
    if not gpu:
        line.append("--pinned-memory-pool-byte-size=0")
    return line


MODEL_THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""A share of a core is one thread's: more threads burn the quota early in its period and then stall."""

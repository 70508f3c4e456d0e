"""A real tritonserver on a model repository, without a launcher: unlimited, gone when the block ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from host_ports import free_ports

ROOT = Path(__file__).parents[2]
TRITON = ROOT / ".tools" / "triton"
HOST = "127.0.0.1"


@dataclass(frozen=True)
class BareTriton:
    """Where it listens."""

    http_port: int
    grpc_port: int

    @property
    def http(self) -> str:
        return f"{HOST}:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"{HOST}:{self.grpc_port}"


@contextlib.contextmanager
def bare_triton(
    repository: Path, log: Path, *more: str, deadline_s: float = 60.0, complete: bool = False
) -> Iterator[BareTriton]:
    """Every model of `repository`, ready; `more` are further options of the server.

    `complete`: it completes configurations, as it does by default.
    """
    http_port, grpc_port = free_ports(2)
    regions = f"bare-{os.getpid()}-{http_port}-"
    command = [
        str(TRITON / "bin/tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={TRITON / 'backends'}",
        f"--http-address={HOST}",
        f"--grpc-address={HOST}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        "--allow-metrics=false",
        "--exit-timeout-secs=5",
        *(() if complete else ("--disable-auto-complete-config",)),
        f"--backend-config=python,shm-region-prefix-name={regions}",
        *more,
    ]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(TRITON / "lib"),
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        _await_ready(process, http_port, log, deadline_s)
        yield BareTriton(http_port, grpc_port)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        # A model process that was killed, by a test or here, leaves its region.
        for region in Path("/dev/shm").glob(f"{regions}*"):
            region.unlink(missing_ok=True)


def _await_ready(process: subprocess.Popen[bytes], port: int, log: Path, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"http://{HOST}:{port}/v2/health/ready", timeout=1),
        ):
            return
        time.sleep(0.05)
    raise AssertionError(f"Triton is not ready:\n{log.read_text(errors='replace')[-3000:]}")

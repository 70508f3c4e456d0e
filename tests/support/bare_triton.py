"""A real tritonserver on a model repository, without a launcher: unlimited, gone when the block ends."""

import contextlib
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired

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


def start(
    repository: Path, log: Path, regions: str, *options: str, prefix: Sequence[str] = (), **environment: str
) -> Popen[bytes]:
    """Start a tritonserver in a process group of its own; its shared memory has names that begin so.

    `options` are further ones, `environment` further variables; `prefix` comes before the command line.
    """
    command = [
        *prefix,
        str(TRITON / "bin/tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={TRITON / 'backends'}",
        "--exit-timeout-secs=5",
        f"--backend-config=python,shm-region-prefix-name={regions}",
        *options,
    ]
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": str(TRITON / "lib"),
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **environment,
    }
    with log.open("ab") as out:
        return Popen(command, stdout=out, stderr=out, env=variables, start_new_session=True)


def end(process: Popen[bytes], regions: str) -> None:
    """End a server and the processes of its models at once, with the shared memory that they leave."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    for region in Path("/dev/shm").glob(f"{regions}*"):
        region.unlink(missing_ok=True)


@contextlib.contextmanager
def bare_triton(
    repository: Path, log: Path, *more: str, deadline_s: float = 60.0, complete: bool = False
) -> Iterator[BareTriton]:
    """Every model of `repository`, ready; `more` are further options of the server.

    `complete`: it completes configurations, as it does by default.
    """
    http_port, grpc_port = free_ports(2)
    regions = f"bare-{os.getpid()}-{http_port}-"
    where = (f"--http-address={HOST}", f"--grpc-address={HOST}")
    ports = (f"--http-port={http_port}", f"--grpc-port={grpc_port}", "--allow-metrics=false")
    completing = () if complete else ("--disable-auto-complete-config",)
    process = start(repository, log, regions, *where, *ports, *completing, *more)
    try:
        _await_ready(process, http_port, log, deadline_s)
        yield BareTriton(http_port, grpc_port)
    finally:
        process.terminate()
        with contextlib.suppress(TimeoutExpired):
            process.wait(10)
        end(process, regions)


def _await_ready(process: Popen[bytes], port: int, log: Path, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"http://{HOST}:{port}/v2/health/ready", timeout=1),
        ):
            return
        time.sleep(0.05)
    raise AssertionError(f"Triton is not ready:\n{log.read_text(errors='replace')[-3000:]}")

"""A fleet that a test runs by `ctl`, in a process of its own, with a state directory and ports of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import tritonclient.http as triton_http
from guard_rig import cgroups_of
from host_ports import free_ports

ROOT = Path(__file__).parents[2]
CTL = Path(sys.executable).parent / "ctl"
MODELS = ROOT / "tests" / "data" / "models"


def partition(name: str, percent: float, *, model: str = "echo", shadow: bool = True) -> dict[str, Any]:
    """With an SLO that the guard has no cause to act on: here only commands do."""
    return {
        "id": name,
        "percent": percent,
        "shadow": {"policy": "hot", "gpu": "cpu-0", "extra_percent": 10, "percent": percent + 10}
        if shadow
        else None,
        "models": [{"model": model, "batch": 4}],
        "workloads": [{"name": name, "endpoint": name, "model": model, "rate_rps": 100, "slo_ms": 2000}],
    }


def plan(*partitions: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "strategy": "igniter",
        "rule": "half-slo",
        "latency_model": "igniter",
        "gpus": [{"id": "cpu-0", "type": "cpu", "partitions": list(partitions)}],
    }


class Host:
    """`ctl` with a state directory, ports and a fleet name of its own."""

    def __init__(self, directory: Path, fleet: str) -> None:
        self.directory = directory
        self.fleet = fleet
        self.http, self.grpc, self.metrics = free_ports(3)
        self.shared = ["--overcommit"]
        """Other tests' fleets may run on the same core."""
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(directory / "state"),
            "TRISECT_TRITON_HOME": str(ROOT / ".tools" / "triton"),
        }
        self.repository = directory / "models"
        shutil.copytree(MODELS, self.repository)

    def command(self, *arguments: str) -> list[str]:
        return [str(CTL), *arguments, "--fleet", self.fleet]

    @property
    def files(self) -> Path:
        """The fleet's state."""
        return self.directory / "state" / "trisect" / self.fleet

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command on the fleet."""
        return self._run(self.command(*arguments))

    def bare(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command that knows no fleet."""
        return self._run([str(CTL), *arguments])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def apply_command(self, document: dict[str, Any], *more: str, ports: bool = True) -> list[str]:
        path = self.directory / "plan.json"
        path.write_text(json.dumps(document, indent=1))
        told = ["--http-port", str(self.http), "--grpc-port", str(self.grpc)]
        told += ["--metrics-port", str(self.metrics)]
        where = ["--repository", str(self.repository), "--output", str(self.directory / "rendered")]
        accepted = ["--allow-violations", *self.shared, "--yes"]
        return ["apply", str(path), *accepted, *(told if ports else ()), *where, *more]

    def apply(
        self, document: dict[str, Any], *more: str, ports: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return self.ctl(*self.apply_command(document, *more, ports=ports))

    def servers(self) -> list[dict[str, Any]]:
        told = self.ctl("status", "--json")
        assert told.returncode == 0, told.stderr
        return list(json.loads(told.stdout)["servers"])

    def kill(self, partition: str, role: str) -> None:
        """End a server as the kernel does that is out of memory."""
        for process in psutil.process_iter(["name", "environ"]):
            name = (process.info["environ"] or {}).get("TRISECT_NAME", "")
            if (
                name.startswith(f"{self.fleet}.{partition}.{role}.")
                and process.info["name"] == "tritonserver"
            ):
                process.kill()

    def kill_controller(self) -> None:
        """The controller too, and wait until it is gone; the gateway does not start it again."""
        (self.files / "controller.kept").unlink(missing_ok=True)
        pid = json.loads(self.ctl("status", "--json").stdout)["controller"]
        if pid is not None:
            controller = psutil.Process(pid)
            controller.kill()
            controller.wait(30)

    def leftovers(self) -> list[str]:
        """Processes, ports, cgroups and shared memory that carry this fleet's name or listen on its ports."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            environ = process.info["environ"] or {}
            if environ.get("TRISECT_FLEET") == self.fleet or str(self.directory) in " ".join(
                process.info["cmdline"] or []
            ):
                found.append(f"process {process.pid} {process.info['cmdline']}")
        for port in (self.http, self.grpc, self.metrics):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    found.append(f"port {port}")
        found += [str(p) for p in Path("/dev/shm").iterdir() if self.fleet in p.name]
        return found + cgroups_of(self.fleet)


X = np.arange(4, dtype=np.float32)[None, :]


def infer_http(client: triton_http.InferenceServerClient, endpoint: str) -> None:
    x = triton_http.InferInput("X", [1, 4], "FP32")
    x.set_data_from_numpy(X)
    np.testing.assert_array_equal(client.infer(endpoint, [x]).as_numpy("Y"), X)


AnyHost = TypeVar("AnyHost", bound=Host)


@contextlib.contextmanager
def ended(host: AnyHost) -> Iterator[AnyHost]:
    """The host; its fleet is ended afterwards, and nothing of it may be left."""
    try:
        yield host
    finally:
        destroyed = host.ctl("destroy", "--yes")
        left = host.leftovers()
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get("TRISECT_FLEET") == host.fleet:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        assert left == [], f"{left}\n{destroyed.stderr}"

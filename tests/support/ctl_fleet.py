"""A fleet that a test runs by `ctl`, in processes, a state directory and ports of its own; and its plans."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from host_ports import free_ports
from private_engine import PrivateEngine

from controlplane.domain.observation import Event
from controlplane.runtime.fleet.history import History
from launchers.host import server_sockets

ROOT = Path(__file__).parents[2]
CTL = Path(sys.executable).parent / "ctl"
MODELS = ROOT / "tests" / "data" / "models"
CGROUPS = Path("/sys/fs/cgroup")
X = np.arange(4, dtype=np.float32)[None, :]


def partition(
    name: str,
    percent: float,
    *,
    model: str = "echo",
    shadow: bool = True,
    device: str = "cpu-0",
    extra: float = 10,
    batch: int = 4,
    rate_rps: float = 100,
    slo_ms: float = 2000,
) -> dict[str, Any]:
    """A partition of one workload; by default with an SLO that gives the guard no cause to act."""
    backup = {"policy": "hot", "gpu": device, "extra_percent": extra, "percent": percent + extra}
    return {
        "id": name,
        "percent": percent,
        "shadow": backup if shadow else None,
        "models": [{"model": model, "batch": batch}],
        "workloads": [
            {"name": name, "endpoint": name, "model": model, "rate_rps": rate_rps, "slo_ms": slo_ms}
        ],
    }


def plan(*partitions: dict[str, Any], device: str = "cpu-0") -> dict[str, Any]:
    return {
        "schema_version": 1,
        "strategy": "igniter",
        "rule": "half-slo",
        "latency_model": "igniter",
        "gpus": [{"id": device, "type": "cpu", "partitions": list(partitions)}],
    }


class Ctl:
    """`ctl` and one fleet, which is destroyed at the end of the context; nothing of it may be left."""

    def __init__(self, directory: Path, name: str = "fleet", models: Path = MODELS) -> None:
        self.directory = directory
        self.fleet = f"{name}{os.getpid()}x{time.monotonic_ns() % 10**6}"
        self.http, self.grpc, self.metrics = free_ports(3)
        self.listen = {"http": self.http, "grpc": self.grpc, "metrics": self.metrics}
        self.listening = [f"--set=serve.listen.{name}={port}" for name, port in self.listen.items()]
        self.allowed = ["--allow", "violations,overcommit"]
        """Plans of tests promise little, and other tests' fleets may run on the same core."""
        self.launcher_options: list[str] = []
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(directory / "state"),
            "TRISECT_TRITON_HOME": str(ROOT / ".tools" / "triton"),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.repository = directory / "models"
        shutil.copytree(models, self.repository, dirs_exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(FileNotFoundError, psutil.Error, ValueError):
            self.controller().send_signal(signal.SIGCONT)
        existed = (self.files / "fleet.json").exists()
        destroyed = self.ctl("destroy", "--yes", exit_code=None)
        left = self.leftovers()
        for process in self.processes(TRISECT_FLEET=self.fleet):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert left == [], f"{left}\n{destroyed.stderr}"
        assert not existed or destroyed.returncode == 0, destroyed.stderr

    @property
    def files(self) -> Path:
        """The fleet's state."""
        return self.directory / "state" / "trisect" / self.fleet

    def in_containers(self, engine: PrivateEngine, image: str) -> None:
        """Let the servers be containers of this image."""
        self.environment |= {"DOCKER_HOST": engine.address, "TRISECT_IMAGE": image, "TRISECT_PULL": "never"}
        self.launcher_options = ["--set", "serve.launcher=docker"]

    def command(self, *arguments: str, program: Sequence[str] = (str(CTL),)) -> list[str]:
        return [*program, *arguments, "--fleet", self.fleet]

    def ctl(
        self, *arguments: str, exit_code: int | None = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A command on the fleet, which must end with this code."""
        return self._run(self.command(*arguments), exit_code, environment)

    def bare(self, *arguments: str, exit_code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """A command that knows no fleet."""
        return self._run([str(CTL), *arguments], exit_code, {})

    def _run(
        self, command: list[str], exit_code: int | None, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        told = subprocess.run(
            command,
            cwd=self.directory,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert exit_code in (None, told.returncode), f"{command} ended with {told.returncode}: {told.stderr}"
        return told

    def document(self, verb: str, *more: str) -> dict[str, Any]:
        """What a command on the fleet prints with `--json`."""
        return dict(json.loads(self.ctl(verb, *more, "--json").stdout))

    @contextlib.contextmanager
    def running(
        self, *arguments: str, program: Sequence[str] = (str(CTL),)
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A command on the fleet that goes on meanwhile, and is ended afterwards."""
        process = subprocess.Popen(
            self.command(*arguments, program=program),
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def apply_command(self, document: dict[str, Any], *more: str, ports: bool = True) -> list[str]:
        path = self.directory / "plan.json"
        path.write_text(json.dumps(document, indent=1))
        where = ["--repository", str(self.repository), "--output", str(self.directory / "rendered")]
        accepted = [*self.allowed, "--yes", *self.launcher_options]
        return ["apply", str(path), *accepted, *(self.listening if ports else ()), *where, *more]

    def apply(
        self, document: dict[str, Any], *more: str, ports: bool = True, exit_code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        return self.ctl(*self.apply_command(document, *more, ports=ports), exit_code=exit_code)

    def diff(self, document: dict[str, Any], *, exit_code: int) -> subprocess.CompletedProcess[str]:
        path = self.directory / "other.json"
        path.write_text(json.dumps(document))
        where = ["--repository", str(self.repository), "--output", str(self.directory / "rendered")]
        return self.ctl("diff", str(path), *where, exit_code=exit_code)

    def cut_short(self, document: dict[str, Any], after_s: float, *more: str, ports: bool = True) -> None:
        """An apply that is killed after so long."""
        with self.running(*self.apply_command(document, *more, ports=ports)) as apply:
            try:
                apply.wait(timeout=after_s)
            except subprocess.TimeoutExpired:
                apply.kill()

    def infer(self, endpoint: str) -> None:
        """A request that must be answered by the model `echo`."""
        with triton_http.InferenceServerClient(f"127.0.0.1:{self.http}") as client:
            infer_http(client, endpoint)

    def answers(self, endpoint: str) -> bool:
        """Whether such a request is answered."""
        try:
            self.infer(endpoint)
        except Exception:
            return False
        return True

    def servers(self) -> list[dict[str, Any]]:
        return list(self.document("status")["servers"])

    def guarded(self) -> bool:
        """Whether its one partition is served, and its shadow stands by."""
        rows = self.document("status")["guard"]
        return [(row["phase"], row["shadow_ready"]) for row in rows] == [("guarded", True)]

    def events(self, kind: str = "", since_s: float = 0.0) -> list[Event]:
        """What the fleet's history says."""
        listed = History(self.files / "history.sqlite").events(since_s=since_s)
        return [event for event in listed if kind in ("", event.kind)]

    def await_event(
        self, kind: str, *, since_s: float = 0.0, deadline_s: float = 60.0, says: str = ""
    ) -> Event:
        """The first event of this kind that says this."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            for event in self.events(kind, since_s):
                if says in event.reason:
                    return event
            time.sleep(0.1)
        raise AssertionError(f"no {kind} {says!r} in {deadline_s:g} s: {self.events()}\n{self.log()}")

    def log(self) -> str:
        """The end of the controller's."""
        log = self.files / "controller.log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""

    def slots(self) -> list[dict[str, Any]]:
        """The gateway's slots that are not drained."""
        listed = json.loads((self.files / "gateway" / "slots.json").read_text())["slots"]
        return [slot for slot in listed if not slot["draining"]]

    def processes(self, **environment: str) -> list[psutil.Process]:
        """The processes that carry these variables."""
        found = []
        for process in psutil.process_iter(["environ", "name"]):
            carried = process.info["environ"] or {}
            if all(carried.get(key) == value for key, value in environment.items()):
                found.append(process)
        return found

    def all_processes(self) -> list[psutil.Process]:
        """Controller, gateway, HAProxy, Tritons, models and commands."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            carried, line = process.info["environ"] or {}, " ".join(process.info["cmdline"] or [])
            mine = carried.get("TRISECT_FLEET") == self.fleet or self.fleet in line
            if (mine or str(self.directory) in line) and process.pid != os.getpid():
                found.append(process)
        return found

    def controller(self) -> psutil.Process:
        return psutil.Process(int((self.files / "controller.pid").read_text()))

    def kill(self, partition: str) -> None:
        """End the server that serves a partition, as the kernel does that is out of memory."""
        serving = {member["server"] for slot in self.slots() for member in slot["members"]}
        for process in self.processes(TRISECT_FLEET=self.fleet):
            name = process.info["environ"].get("TRISECT_NAME", "")
            mine = name in serving and name.startswith(f"{self.fleet}.{partition}.")
            if mine and process.info["name"] == "tritonserver":
                process.kill()

    def kill_controller(self) -> None:
        """The controller too, and wait until it is gone; the gateway does not start it again."""
        (self.files / "controller.kept").unlink(missing_ok=True)
        pid = self.document("status")["controller"]
        if pid is not None:
            controller = psutil.Process(pid)
            controller.kill()
            controller.wait(30)

    def leftovers(self) -> list[str]:
        """Processes, ports, cgroups and shared memory that carry this fleet's name or listen on its ports."""
        found = [f"process {p.pid} {p.info['cmdline']}" for p in self.all_processes()]
        for port in (self.http, self.grpc, self.metrics):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    found.append(f"port {port}")
        found += [str(p) for p in Path("/dev/shm").iterdir() if self.fleet in p.name]
        found += map(str, server_sockets.folder_of_fleet(self.files.parent, self.fleet).glob("*"))
        # Of any hierarchy, while other programs' groups come and go.
        return found + [folder for folder, _, _ in os.walk(CGROUPS) if self.fleet in os.path.basename(folder)]


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """Make the folder, on a disk of its own where this user may mount one; whether it is."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m,mode=700"]
    mounted = subprocess.run(["mount", *options, "none", str(folder)], capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _infer(module: Any, client: Any, endpoint: str) -> None:
    """A request that must be answered by the model `echo`."""
    x = module.InferInput("X", [1, 4], "FP32")
    x.set_data_from_numpy(X)
    np.testing.assert_array_equal(client.infer(endpoint, [x]).as_numpy("Y"), X)


infer_http, infer_grpc = partial(_infer, triton_http), partial(_infer, triton_grpc)

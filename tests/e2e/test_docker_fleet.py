"""A fleet of containers as a user has it: `ctl` on a private engine, under load, through failures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import docker
import numpy as np
import private_engine
import pytest
import triton_image
import tritonclient.http as triton_http
from host_ports import free_ports
from private_engine import PrivateEngine

from launchers.docker.containers import FLEET_LABEL

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
CTL = Path(sys.executable).parent / "ctl"
CGROUPS = Path("/sys/fs/cgroup")
X = np.arange(4, dtype=np.float32)[None, :]
THREADS = 4
"""Clients of a load, each with one request under way."""


@pytest.fixture(scope="module")
def private() -> Iterator[tuple[PrivateEngine, str]]:
    why_not = private_engine.obstacle()
    if why_not is not None:
        pytest.skip(f"DOCKER TESTS NOT RUN: {why_not}")
    try:
        with pytest.MonkeyPatch.context() as patch, private_engine.private_engine() as made:
            patch.setenv("TRISECT_TRITON_HOME", str(ROOT / ".tools" / "triton"))
            yield made, triton_image.build(made.address)
    except private_engine.CannotRun as error:
        pytest.skip(f"DOCKER TESTS NOT RUN: {error}")


def plan(percent: float, slo_ms: float) -> dict[str, Any]:
    workload = {"name": "a", "endpoint": "a", "model": "echo", "rate_rps": 100, "slo_ms": slo_ms}
    shadow = {"policy": "hot", "gpu": "cpu-0", "extra_percent": 10, "percent": percent + 10}
    one = {"id": "a", "percent": percent, "shadow": shadow, "models": [{"model": "echo", "batch": 4}]}
    return {
        "schema_version": 1,
        "strategy": "igniter",
        "rule": "half-slo",
        "latency_model": "igniter",
        "gpus": [{"id": "cpu-0", "type": "cpu", "partitions": [{**one, "workloads": [workload]}]}],
    }


@dataclass
class Host:
    directory: Path
    fleet: str
    engine: PrivateEngine
    image: str

    def __post_init__(self) -> None:
        self.http, self.grpc, self.metrics = free_ports(3)
        shutil.copytree(ROOT / "tests" / "data" / "models", self.directory / "models")

    def ctl(self, *arguments: str) -> str:
        environment = {
            **os.environ,
            "XDG_STATE_HOME": str(self.directory / "state"),
            "DOCKER_HOST": self.engine.address,
            "TRISECT_IMAGE": self.image,
            "TRISECT_PULL": "never",
        }
        told = subprocess.run(
            [str(CTL), *arguments, "--fleet", self.fleet],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        return told.stdout

    def apply(self, percent: float, *more: str, slo_ms: float = 200.0) -> str:
        path = self.directory / "plan.json"
        path.write_text(json.dumps(plan(percent, slo_ms)))
        ports = ["--http-port", str(self.http), "--grpc-port", str(self.grpc)]
        ports += ["--metrics-port", str(self.metrics), "--repository", str(self.directory / "models")]
        where = ["--output", str(self.directory / "rendered"), "--launcher", "docker"]
        return self.ctl(
            "apply", str(path), "--allow-violations", "--overcommit", "--yes", *ports, *where, *more
        )

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        with contextlib.closing(docker.DockerClient(base_url=self.engine.address)) as made:
            yield made

    def containers(self, client: docker.DockerClient, role: str = "") -> list[Any]:
        ours = {"label": f"{FLEET_LABEL}={self.fleet}"}
        found = client.containers.list(all=True, filters=ours, ignore_removed=True)
        return [c for c in found if role in c.name]

    def await_two(self) -> None:
        """Until one server serves and one stands by, both ready."""
        self.await_status(
            lambda told: [(g["phase"], g["shadow_ready"]) for g in told["guard"]] == [("guarded", True)]
        )

    def await_status(self, condition: Callable[[dict[str, Any]], object]) -> None:
        """Until `ctl status` says so."""
        deadline = time.monotonic() + 60
        while not condition(told := json.loads(self.ctl("status", "--json"))):
            assert time.monotonic() < deadline, told
            time.sleep(0.2)

    def routed(self) -> list[str]:
        """The servers that requests go to, by the gateway's own table."""
        table = self.directory / "state" / "trisect" / self.fleet / "gateway" / "slots.json"
        slots = json.loads(table.read_text())["slots"]
        return [m["server"] for s in slots if not s["draining"] for m in s["members"]]


@pytest.fixture
def host(private: tuple[PrivateEngine, str], tmp_path: Path) -> Iterator[Host]:
    here = Host(tmp_path, f"dock{os.getpid()}x{time.monotonic_ns() % 10**6}", *private)
    try:
        yield here
    finally:
        with contextlib.suppress(AssertionError):
            here.ctl("destroy", "--yes")
        with here.client() as client:
            left = here.containers(client)
            for one in left:
                one.remove(force=True)
        assert left == []


class Load:
    """About 200 requests a second through the gateway, until told to stop; fewer with longer pauses."""

    def __init__(self, host: Host, pause_s: float = 0.02) -> None:
        self._pause_s = pause_s
        self.answers: Counter[str] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(host,)) for _ in range(THREADS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def _run(self, host: Host) -> None:
        client = triton_http.InferenceServerClient(f"127.0.0.1:{host.http}")
        x = triton_http.InferInput("X", [1, 4], "FP32")
        x.set_data_from_numpy(X)
        try:
            while not self._stop.wait(self._pause_s):
                try:
                    client.infer("a", [x])
                    self.answers["answered"] += 1
                except Exception as error:
                    self.answers[str(error)[:60]] += 1
        finally:
            client.close()


def test_a_share_changes_in_containers_without_a_lost_request(host: Host) -> None:
    # The guard is given no cause to act: a busy host makes a short SLO break.
    apply = partial(host.apply, slo_ms=5000.0)
    told = apply(30, "--dry-run")
    assert "docker run --detach" in told
    assert "--cpu-quota=3000" in told
    with host.client() as client:
        assert host.containers(client) == []
        apply(30)
        with Load(host) as load:
            apply(40)
        assert set(load.answers) == {"answered"}, load.answers
        assert load.answers["answered"] > 50
        quotas = {c.attrs["HostConfig"]["CpuQuota"] for c in host.containers(client, ".active.")}
        assert quotas == {4000}
        assert apply(40).strip() == "nothing to do"
        host.ctl("destroy", "--yes")
        assert host.containers(client) == []


@pytest.mark.soak
def test_containers_killed_paused_stopped_and_an_engine_restarted_under_load(host: Host) -> None:
    host.apply(30)

    def kill() -> None:
        with host.client() as client:
            os.kill(host.containers(client, ".active.")[0].attrs["State"]["Pid"], 9)

    def pause() -> None:
        with host.client() as client:
            host.containers(client, ".active.")[0].pause()

    def stop() -> None:
        with host.client() as client:
            host.containers(client, ".active.")[0].stop()

    def restart(*options: str) -> None:
        host.engine.stop()
        host.engine.start(*options)

    faults: dict[str, Callable[[], None]] = {
        "killed": kill,
        "paused": pause,
        "stopped": stop,
        "engine restarted": partial(restart, "--live-restore"),
        "engine with live-restore restarted": partial(restart, "--live-restore"),
    }
    for name, fault in faults.items():
        # The guard left the active server of the fault before for its shadow.
        host.apply(30, "--as-planned")
        host.await_two()
        with Load(host) as load:
            time.sleep(1)
            began_s = time.monotonic()
            fault()
            deadline = time.monotonic() + 60
            while True:
                before = load.answers.copy()
                time.sleep(1)
                fresh = load.answers - before
                if set(fresh) == {"answered"}:
                    break
                assert time.monotonic() < deadline, fresh
            took_s = time.monotonic() - began_s
        lost = load.answers.total() - load.answers["answered"]
        assert lost == 0 or name not in ("paused", "stopped"), load.answers
        print(f"{name}: {load.answers['answered']} answered, {lost} lost, whole again after {took_s:.0f} s")


@pytest.mark.soak
@pytest.mark.parametrize("away", ["frozen", "killed"])
@pytest.mark.parametrize("fault", ["slow", "killed"])
def test_a_redirect_needs_no_engine(host: Host, away: str, fault: str) -> None:
    if away == "killed":
        host.engine.stop()
        host.engine.start("--live-restore")
    host.apply(30)
    host.await_two()
    with host.client() as client:
        (active,) = host.containers(client, ".active.")
        (standby,) = host.containers(client, ".shadow.")
        pid = active.attrs["State"]["Pid"]
    with Load(host, pause_s=0.05) as load:
        time.sleep(1)
        host.engine.freeze() if away == "frozen" else host.engine.kill()
        try:
            if fault == "slow":
                throttle(pid)
            else:
                os.kill(pid, signal.SIGKILL)
            hit_s = time.time()
            host.await_status(lambda told: told["guard"][0]["redirect"] and told["trouble"])
            assert host.routed() == [standby.name]
            assert not json.loads(host.ctl("status", "--json"))["guard"][0]["breaker_open"]
        finally:
            host.engine.thaw() if away == "frozen" else host.engine.start("--live-restore")
        host.await_two()
        assert json.loads(host.ctl("status", "--json"))["trouble"] is None
    lost = load.answers.total() - load.answers["answered"]
    events = json.loads(host.ctl("events", "--json"))["events"]
    moved_s = min(e["at_s"] for e in events if e["kind"] == "redirect") - hit_s
    print(f"engine {away}, server {fault}: redirected after {moved_s:.1f} s, {lost} requests lost")
    assert lost <= (0 if fault == "slow" else THREADS), load.answers
    with host.client() as client:
        deadline = time.monotonic() + 90
        while active.name in (names := {c.name for c in host.containers(client)}):
            assert time.monotonic() < deadline, "the old server is left standing"
            time.sleep(0.5)
    assert standby.name in names
    assert len(names) == 2


def throttle(pid: int) -> None:
    """Leave a container a hundredth of a core, in pieces 0.4 s apart, behind its engine's back."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            group = CGROUPS / "cpu" / path.lstrip("/")
            (group / "cpu.cfs_period_us").write_text("400000")
            (group / "cpu.cfs_quota_us").write_text("4000")
            return
        if not controllers and (CGROUPS / path.lstrip("/") / "cpu.max").exists():
            (CGROUPS / path.lstrip("/") / "cpu.max").write_text("4000 400000")
            return
    raise AssertionError(f"no cgroup holds process {pid}")

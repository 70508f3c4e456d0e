"""A fleet of containers as a user has it: `ctl` on a private engine, under load, through failures."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import docker
import pytest
import triton_image
from background import until
from ctl_fleet import Ctl, partition, plan
from private_engine import PrivateEngine
from steady_clients import CLIENTS, Traffic

from launchers.docker.containers import FLEET_LABEL

pytestmark = pytest.mark.docker

CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(scope="module")
def private() -> Iterator[tuple[PrivateEngine, str]]:
    with triton_image.docker_engine() as made:
        yield made


class Docker(Ctl):
    """A fleet of one partition on an engine of its own."""

    def __init__(self, directory: Path, engine: PrivateEngine, image: str) -> None:
        super().__init__(directory, "dock")
        self.engine = engine
        self.in_containers(engine, image)

    def serve(self, percent: float, *more: str, slo_ms: float = 200.0) -> str:
        """Apply, and what that says."""
        return self.apply(plan(partition("a", percent, slo_ms=slo_ms)), *more).stdout

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        with contextlib.closing(docker.DockerClient(base_url=self.engine.address)) as made:
            yield made

    def containers(self, client: docker.DockerClient, role: str = "") -> list[Any]:
        ours = {"label": f"{FLEET_LABEL}={self.fleet}"}
        found = client.containers.list(all=True, filters=ours, ignore_removed=True)
        return [c for c in found if role in c.name]

    def routed(self) -> list[str]:
        """The servers that requests go to, by the gateway's own table."""
        return [member["server"] for slot in self.slots() for member in slot["members"]]


@pytest.fixture
def host(private: tuple[PrivateEngine, str], tmp_path: Path) -> Iterator[Docker]:
    with Docker(tmp_path, *private) as here:
        yield here
    with here.client() as client:
        left = here.containers(client)
        for one in left:
            one.remove(force=True)
    assert left == []


def test_a_share_changes_in_containers_without_a_lost_request(host: Docker) -> None:
    # The guard is given no cause to act: a busy host makes a short SLO break.
    apply = partial(host.serve, slo_ms=5000.0)
    told = apply(30, "--dry-run", "-v")
    assert "docker run --detach" in told
    assert "--cpu-quota=3000" in told
    with host.client() as client:
        assert host.containers(client) == []
        apply(30)
        with Traffic(host, pause_s=0.02) as load:
            apply(40)
        assert load.failed == []
        assert load.done > 50
        quotas = {c.attrs["HostConfig"]["CpuQuota"] for c in host.containers(client, ".active.")}
        assert quotas == {4000}
        assert apply(40).strip() == "nothing to do"
        host.ctl("destroy", "--yes")
        assert host.containers(client) == []


@pytest.mark.soak
def test_containers_killed_paused_stopped_and_an_engine_restarted_under_load(host: Docker) -> None:
    host.serve(30)

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
        host.serve(30, "--as-planned")
        until(host.guarded)
        with Traffic(host, pause_s=0.02) as load:
            time.sleep(1)
            began_s = time.monotonic()
            fault()
            until(lambda: answers_all(load))
            took_s = time.monotonic() - began_s
        lost = len(load.failed)
        assert lost == 0 or name not in ("paused", "stopped"), load.failed
        print(f"{name}: {load.done} answered, {lost} lost, whole again after {took_s:.0f} s")


def answers_all(load: Traffic) -> bool:
    """Whether every request of a second was answered."""
    done, failed = load.done, len(load.failed)
    time.sleep(1)
    return load.done > done and len(load.failed) == failed


@pytest.mark.soak
@pytest.mark.parametrize("away", ["frozen", "killed"])
@pytest.mark.parametrize("fault", ["slow", "killed"])
def test_a_redirect_needs_no_engine(host: Docker, away: str, fault: str) -> None:
    if away == "killed":
        host.engine.stop()
        host.engine.start("--live-restore")
    host.serve(30)
    until(host.guarded)
    with host.client() as client:
        (active,) = host.containers(client, ".active.")
        (standby,) = host.containers(client, ".shadow.")
        pid = active.attrs["State"]["Pid"]
    with Traffic(host) as load:
        time.sleep(1)
        host.engine.freeze() if away == "frozen" else host.engine.kill()
        try:
            if fault == "slow":
                throttle(pid)
            else:
                os.kill(pid, signal.SIGKILL)
            hit_s = time.time()
            until(lambda: (s := host.document("status"))["guard"][0]["redirect"] and s["trouble"])
            assert host.routed() == [standby.name]
            assert not host.document("status")["guard"][0]["breaker_open"]
        finally:
            host.engine.thaw() if away == "frozen" else host.engine.start("--live-restore")
        until(host.guarded)
        assert host.document("status")["trouble"] is None
    lost = len(load.failed)
    events = host.document("events")["events"]
    moved_s = min(e["at_s"] for e in events if e["kind"] == "redirect") - hit_s
    print(f"engine {away}, server {fault}: redirected after {moved_s:.1f} s, {lost} requests lost")
    assert lost <= (0 if fault == "slow" else CLIENTS), load.failed
    with host.client() as client:
        until(lambda: active.name not in names(host, client), 90.0, "the old server is gone")
        assert standby.name in names(host, client)
        assert len(names(host, client)) == 2


def names(host: Docker, client: docker.DockerClient) -> set[str]:
    return {container.name for container in host.containers(client)}


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

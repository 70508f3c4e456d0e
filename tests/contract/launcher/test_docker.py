"""What only containers can meet, on a private engine."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from direct import call, get
from fake_nvml import FakeGpu, FakeNvml
from launcher_rig import MODEL, DockerEngine, Fleet, infer
from private_engine import PrivateEngine

from controlplane.domain.errors import EngineError, MissingTool
from controlplane.domain.fleet import OWN_FOLDER, Server, ServerState
from controlplane.domain.observation import Health, News
from launchers.docker import containers
from launchers.docker.containers import ContainerOptions, Pull
from launchers.docker.launcher import DockerLauncher
from launchers.host import server_sockets
from launchers.host_lifecycle import HostPlace
from launchers.triton.readiness import unread

pytestmark = pytest.mark.docker

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture
def engine(docker_engine: tuple[PrivateEngine, str], tmp_path: Path) -> DockerEngine:
    made, image = docker_engine
    return DockerEngine(tmp_path / "state", made.address, image)


@pytest.fixture
def client(engine: DockerEngine) -> Iterator[docker.DockerClient]:
    with contextlib.closing(docker.DockerClient(base_url=engine.address)) as made:
        yield made


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException, docker.errors.APIError):
            if condition():
                return
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_container_is_confined(fleet: Fleet, client: docker.DockerClient) -> None:
    server = fleet.start(replace(fleet.spec(percent=30), memory_limit_mb=700.0))
    told = client.containers.get(server.id).attrs
    host = told["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["CpuPeriod"], host["CpuQuota"], host["CpusetCpus"]) == (10000, 3000, "0")
    if client.info()["SwapLimit"]:
        assert (host["Memory"], host["MemorySwap"]) == (700 * 2**20, 700 * 2**20)
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert told["Config"]["User"] not in ("", "0", "0:0", "root")
    written = [mount["Source"] for mount in told["Mounts"] if mount["RW"]]
    assert written == [str(server_sockets.folder_of(server))]
    one = client.containers.get(server.id)
    code, said = one.exec_run(["bash", "-c", f"echo x > {server.spec.repository}/spin/config.pbtxt"])
    assert code != 0
    assert b"Read-only" in said


def test_models_linked_from_elsewhere_are_served(fleet: Fleet, tmp_path: Path) -> None:
    spec = fleet.spec()
    version = Path(spec.repository) / "spin" / "1"
    version.rename(tmp_path / "the version")
    version.symlink_to(tmp_path / "the version")
    assert infer(fleet.start(spec)) == [0.0, 0.0]


def test_a_killed_container_comes_back_by_itself_on_its_sockets(fleet: Fleet) -> None:
    server = fleet.start(fleet.spec())
    fleet.engine.kill(server)
    until(lambda: get(server, "/v2")["name"] == server.name, "it answers again")
    until(lambda: infer(server) == [0.0, 0.0], "it serves again")
    until(lambda: fleet.launcher.servers(fleet.name) == (server,), "it is the same server")


def test_an_engine_that_has_not_noticed_an_end_fails_no_start(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = requests.Response()
    answer.status_code = 500

    def update(*_: object, **changed: object) -> None:
        raise docker.errors.APIError("", answer, "runc did not terminate successfully: container not running")

    monkeypatch.setattr(docker.models.containers.Container, "update", update)
    assert infer(fleet.start(fleet.spec())) == [0.0, 0.0]


def test_a_paused_container_is_replaced(fleet: Fleet, client: docker.DockerClient) -> None:
    server = fleet.start(fleet.spec())
    client.containers.get(server.id).pause()
    (seen,) = fleet.launcher.servers(fleet.name)
    assert seen.state is ServerState.PAUSED
    again = fleet.start(server.spec)
    assert again.id != server.id
    client.containers.get(again.id).pause()
    fleet.launcher.stop(again, drain_s=5)
    assert fleet.leftovers() == []


def test_a_paused_container_answers_what_it_holds_before_it_ends(
    fleet: Fleet, client: docker.DockerClient
) -> None:
    server = fleet.start(fleet.spec())
    container = client.containers.get(server.id)
    container.pause()
    padding = b" " * 2**18  # more than the kernel takes in for a server that reads nothing

    def answer() -> int:
        body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[0.0,0.0]}]}' + padding
        return call(server, "POST", "/v2/models/spin/infer", body)[0]

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(answer) for _ in range(4)]
        until(lambda: (unread(server) or 0) >= 4, "it holds parts of all")
        fleet.launcher.stop(server, drain_s=10)
        assert [one.result() for one in answers] == [200] * 4
    assert fleet.leftovers() == []


def test_a_killed_container_is_heard_while_its_engine_is_silent(
    fleet: Fleet, client: docker.DockerClient, docker_engine: tuple[PrivateEngine, str]
) -> None:
    server = fleet.start(fleet.spec())
    private, _ = docker_engine
    pid = client.containers.get(server.id).attrs["State"]["Pid"]
    with contextlib.closing(fleet.launcher.watch(fleet.name)) as watch:
        fleet.launcher.servers(fleet.name)
        assert watch.news((server,)) == ()
        private.freeze()
        try:
            os.kill(pid, signal.SIGKILL)
            told: list[News] = []
            until(lambda: told.extend(watch.news((server,))) or told, "its end is heard")
        finally:
            private.thaw()
        assert [(n.health, n.certain) for n in told] == [(Health.GONE, True)]


def test_containers_come_back_with_their_engine(
    fleet: Fleet, docker_engine: tuple[PrivateEngine, str]
) -> None:
    server = fleet.start(fleet.spec())
    private, _ = docker_engine
    with contextlib.closing(fleet.launcher.watch(fleet.name)) as watch:
        private.stop()
        with pytest.raises(MissingTool, match="no Docker engine answers"):
            fleet.launcher.servers(fleet.name)
        private.start()
        until(lambda: infer(server) == [0.0, 0.0], "it serves again")
        assert fleet.launcher.servers(fleet.name) == (server,)
        assert watch.news(()) == ()
        fleet.engine.kill(server)
        until(lambda: watch.news((server,)), "the new engine is listened to")


def test_no_engine(tmp_path: Path, fleet: Fleet) -> None:
    away = DockerLauncher(tmp_path, address=f"unix://{tmp_path}/no.sock")
    with pytest.raises(MissingTool, match=r"apt-get install docker\.io"):
        away.start(fleet.spec(), deadline_s=5)
    assert away.enforcement() is None
    (told,) = away.capabilities()
    assert not told.available


def test_a_missing_image(fleet: Fleet, engine: DockerEngine, tmp_path: Path) -> None:
    options = ContainerOptions(image="trisect/absent:1", pull=Pull.NEVER)
    with pytest.raises(EngineError, match="docker pull trisect/absent:1"):
        DockerLauncher(tmp_path, options, address=engine.address).start(fleet.spec(), deadline_s=5)
    assert fleet.leftovers() == []


def test_a_name_that_is_taken(fleet: Fleet, client: docker.DockerClient, engine: DockerEngine) -> None:
    spec = fleet.spec()
    squatter = client.containers.create(engine.image, ["bash"], name=spec.name)
    try:
        with pytest.raises(EngineError, match="none of ours"):
            fleet.start(spec)
        squatter.reload()
    finally:
        squatter.remove(force=True)


def test_a_gpu_without_the_toolkit(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is real and has no toolkit; GPU and MPS are fakes, the daemon's folder one for all users."""
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu(uuid)))
    monkeypatch.setenv("PATH", f"{SUPPORT / 'fake_nvidia'}:{os.environ['PATH']}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        launcher = fleet.engine.launcher()
        try:
            with pytest.raises(EngineError, match="install the NVIDIA container toolkit"):
                launcher.start(fleet.spec(device=uuid), deadline_s=20)
            assert fleet.leftovers() == []
        finally:
            assert launcher.sweep(fleet.name) == (f"MPS daemon of {uuid}",)


def test_a_socket_that_is_not_for_us(fleet: Fleet, engine: DockerEngine, tmp_path: Path) -> None:
    """As another user, who may reach the socket and not use it."""
    socket = Path(engine.address.removeprefix("unix://"))
    socket.parent.chmod(0o711)
    spec = fleet.spec()
    os.seteuid(65534)
    try:
        with pytest.raises(EngineError, match="may not be used by this user: join the group docker"):
            fleet.launcher.start(spec, deadline_s=5)
        (told,) = fleet.engine.launcher().capabilities()
    finally:
        os.seteuid(0)
        socket.parent.chmod(0o700)
    assert not told.available
    assert fleet.leftovers() == []


def test_a_full_disk(fleet: Fleet, docker_engine: tuple[PrivateEngine, str]) -> None:
    """Where the engine keeps its containers, a file system without room for one."""
    place = docker_engine[0].folder / "data" / "containers"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "full", place], check=True)
    try:
        with pytest.raises(EngineError, match=r"no space left on device.*docker system df"):
            fleet.start(fleet.spec())
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
    assert fleet.leftovers() == []


def test_what_a_killed_start_left_is_removed(
    fleet: Fleet, client: docker.DockerClient, engine: DockerEngine
) -> None:
    """A program that ends between creating a container and starting it."""
    for partition in ("swept", "started"):
        options, spec = ContainerOptions(image=engine.image), fleet.spec(partition)
        host = f"{server_sockets.new_host(engine.state, spec)}{OWN_FOLDER}"
        server = Server("", spec, ServerState.RUNNING, host, 1, 2, 3)
        server_sockets.make(server_sockets.folder_of(server), 0, 0)
        client.containers.create(**containers.arguments(server, options, HostPlace(core=0)))
    assert [s.state for s in fleet.launcher.servers(fleet.name)] == [ServerState.EXITED] * 2
    assert infer(fleet.start(fleet.spec("started"))) == [0.0, 0.0]
    (removed,) = fleet.launcher.sweep(fleet.name)
    assert ".swept." in removed
    assert len(fleet.launcher.servers(fleet.name)) == 1


def test_pauses_and_memory_kills_are_heard(fleet: Fleet, client: docker.DockerClient) -> None:
    if not client.info()["MemoryLimit"]:
        pytest.skip("CAPABILITY MISSING: this host's engine can limit no memory")
    greedy = MODEL.replace("time.sleep(float(x[0, 0]))", "self.kept = b'x' * int(x[0, 0] * 2**20)")
    paused = fleet.start(fleet.spec("paused"))
    killed = fleet.start(replace(fleet.spec("killed", source=greedy), memory_limit_mb=600.0))
    with contextlib.closing(fleet.launcher.watch(fleet.name)) as watch:
        client.containers.get(paused.id).pause()
        with contextlib.suppress(OSError, http.client.HTTPException):
            infer(killed, sleep_s=1400)  # as much may go to where the host swaps
        told: dict[str, News] = {}

        def all_heard() -> bool:
            told.update({name: n for n in watch.news((paused, killed)) for name in n.servers})
            return len(told) == 2

        until(all_heard, "both are heard")
    assert "was paused" in told[paused.name].reason
    assert "memory limit of 600 MB" in told[killed.name].reason
    assert (told[paused.name].health, told[killed.name].health) == (Health.PAUSED, Health.IMPAIRED)


def test_a_refused_start_leaves_no_created_container(fleet: Fleet) -> None:
    spec = fleet.spec()
    Path(spec.repository).rename(Path(spec.repository).with_name("away"))
    with pytest.raises(EngineError, match="bind source path does not exist"):
        fleet.start(spec)
    assert not Path(spec.repository).exists()
    assert fleet.leftovers() == []

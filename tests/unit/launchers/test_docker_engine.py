"""The engine's errors in our words. Its texts are those of Docker 20.10 and 28."""

import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import build
import docker.errors
import pytest
import requests.exceptions
from background import until
from no_descriptors import without_descriptors

from controlplane.domain.errors import EngineError, InputError, MissingTool, NotNow
from controlplane.domain.observation import Health, News, out_of_memory
from launchers.docker import engine
from launchers.docker.containers import ContainerOptions, Network, Pull
from launchers.docker.engine import ContainerWatcher
from launchers.docker.launcher import DockerLauncher
from launchers.triton.program import VENDOR_IMAGE


def api_error(said: str) -> docker.errors.APIError:
    return docker.errors.APIError("500 Server Error", explanation=said)


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (
            api_error('could not select device driver "" with capabilities: [[gpu]]'),
            EngineError,
            "NVIDIA container toolkit",
        ),
        (api_error("write /var/lib/docker/x: no space left on device"), NotNow, "docker system df"),
        (
            api_error('Conflict. The container name "/a" is already in use by container "b"'),
            EngineError,
            "docker rm",
        ),
        (api_error("Requested CPUs are not available - requested 9"), EngineError, "core does not exist"),
        (api_error("something else"), EngineError, "Docker: something else"),
        (docker.errors.ImageNotFound("404", explanation="No such image: x"), EngineError, "pull it"),
        (requests.exceptions.ReadTimeout("slow"), NotNow, "does not answer"),
        (requests.exceptions.ConnectionError("gone"), MissingTool, r"apt-get install docker\.io"),
        (
            docker.errors.DockerException("PermissionError(13, 'Permission denied')"),
            EngineError,
            "usermod -aG",
        ),
    ],
)
def test_errors_say_what_to_do(raised: Exception, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says), engine.translate_errors("unix:///run/docker.sock"):
        raise raised


@pytest.fixture
def door() -> Iterator[str]:
    """A socket's path may have 107 characters, which pytest's folders can exceed."""
    with tempfile.TemporaryDirectory(prefix="tsd", dir="/tmp") as folder:
        yield f"{folder}/d.sock"


def test_a_socket_nobody_listens_on(door: str) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(door)
    with pytest.raises(MissingTool, match="refused"), engine.engine(f"unix://{door}"):
        pass


def test_an_engine_that_listens_and_says_nothing(door: str) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(door)
        silent.listen()
        with pytest.raises(NotNow, match="does not answer"), engine.engine(f"unix://{door}", 0.1):
            pass


def test_only_engines_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert engine.address() == engine.DEFAULT_ADDRESS
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/podman/podman.sock")
    assert engine.address() == "unix:///run/user/1000/podman/podman.sock"
    monkeypatch.setenv("DOCKER_HOST", "ssh://else")
    with pytest.raises(EngineError, match="not on this host"):
        engine.address()
    assert not engine.reachable()


class Registry:
    """An engine whose only image is to be fetched."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.lines = lines
        self.images = SimpleNamespace(get=self._get)
        self.api = SimpleNamespace(pull=self._pull)

    def _get(self, image: str) -> None:
        raise docker.errors.ImageNotFound("404", explanation=f"No such image: {image}")

    def _pull(self, image: str, stream: bool, decode: bool) -> Iterator[dict[str, Any]]:
        yield from self.lines


def downloading(layer: str, current: int, total: int) -> dict[str, Any]:
    return {"status": "Downloading", "id": layer, "progressDetail": {"current": current, "total": total}}


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> DockerLauncher:
    """On an engine that says this of itself, by Docker's API; no engine here has a GPU."""
    fake = SimpleNamespace(
        info=lambda: {"CpuCfsQuota": True, **told},
        version=lambda: {"Version": "28"},
        images=SimpleNamespace(get=lambda _: None),
    )
    made = DockerLauncher(tmp_path)
    monkeypatch.setattr(made, "_connected", lambda: contextlib.nullcontext(fake))
    return made


@pytest.mark.parametrize("told", [{"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}])
def test_a_rootless_engine_is_refused_before_a_start(launcher: DockerLauncher) -> None:
    with pytest.raises(EngineError, match="rootless"):
        launcher.command(build.spec())
    (line,) = launcher.capabilities()
    assert (line.name, line.available) == ("docker", False)


@pytest.mark.parametrize(
    ("told", "available"),
    [
        ({}, False),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "vendor.com/net=0"}]}, False),
    ],
)
def test_gpus_need_a_runtime_of_nvidia_or_a_cdi_device(launcher: DockerLauncher, available: bool) -> None:
    (found,) = (one for one in launcher.capabilities() if one.name == "docker gpus")
    assert found.available is available


def test_a_pull_tells_how_far_it_is() -> None:
    lines = [
        {"status": "Pulling from library/x", "id": "latest"},
        downloading("a", 25_000_000, 100_000_000),
        downloading("a", 26_000_000, 100_000_000),
        downloading("b", 50_000_000, 100_000_000),
        {"status": "Download complete", "id": "a"},
        {"status": "Download complete", "id": "b"},
    ]
    said: list[str] = []
    engine.have_image(Registry(lines), ContainerOptions(image="x"), said.append)
    assert said == [
        "pulling x: 25 % of 100 MB",
        "pulling x: 38 % of 200 MB",
        "pulling x: 75 % of 200 MB",
        "pulling x: 100 % of 200 MB",
    ]


def test_a_pull_that_fails_or_may_not_be() -> None:
    broken = Registry([{"error": "no space left on device"}])
    with pytest.raises(EngineError, match="cannot be pulled: no space left"):
        engine.have_image(broken, ContainerOptions(image="x"), print)
    with pytest.raises(EngineError, match="may not be pulled: docker pull x"):
        engine.have_image(broken, ContainerOptions(image="x", pull=Pull.NEVER), print)


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TRISECT_IMAGE", "TRISECT_PULL", "TRISECT_NETWORK"):
        monkeypatch.delenv(variable, raising=False)
    assert ContainerOptions.from_environment() == ContainerOptions(VENDOR_IMAGE, Pull.MISSING, Network.HOST)
    monkeypatch.setenv("TRISECT_IMAGE", "mine@sha256:00")
    monkeypatch.setenv("TRISECT_PULL", "never")
    monkeypatch.setenv("TRISECT_NETWORK", "bridge")
    assert ContainerOptions.from_environment() == ContainerOptions(
        "mine@sha256:00", Pull.NEVER, Network.BRIDGE
    )
    monkeypatch.setenv("TRISECT_PULL", "maybe")
    with pytest.raises(InputError, match="none of missing, always, never"):
        ContainerOptions.from_environment()


@contextlib.contextmanager
def an_engine_that_says(door: str, *events: tuple[str, str, dict[str, str]]) -> Iterator[None]:
    """Each event is a container's id, what happened to it and the attributes."""
    lines = [
        json.dumps({"timeNano": number, "Action": what, "Actor": {"ID": one, "Attributes": about}})
        for number, (one, what, about) in enumerate(events)
    ]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(door)
        listening.listen()

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall("\n".join(["HTTP/1.0 200 OK", "", *lines, ""]).encode())

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()


def test_an_end_after_the_kernels_kill_says_that_memory_was_short(door: str) -> None:
    short, other = (build.server(build.spec(memory_limit_mb=34.0), i) for i in ("a", "b"))
    died = {"exitCode": "137"}
    told = (("a", "oom", {}), ("a", "kill", {"signal": "9"}), ("a", "die", died), ("b", "die", died))
    found: list[News] = []
    with (
        an_engine_that_says(door, *told),
        contextlib.closing(ContainerWatcher(f"unix://{door}", "f")) as watcher,
    ):
        until(lambda: found.extend(watcher.news((short, other))) or len(found) >= 3)
    impaired, dead, killed = found
    assert impaired == News((short.name,), out_of_memory(short), health=Health.IMPAIRED)
    assert dead == News((short.name,), out_of_memory(short))
    assert "34 MB" in dead.reason
    assert killed == News((other.name,), "its container ended with exit code 137")


def test_without_descriptors_the_engine_is_not_called_absent(door: str) -> None:
    with (
        without_descriptors(),
        pytest.raises(NotNow, match="Too many open files"),
        engine.engine(f"unix://{door}"),
    ):
        pass

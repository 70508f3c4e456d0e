"""The local Docker engine: its errors with the way out, its images, its events."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import docker
import docker.errors
import requests.exceptions

from controlplane.domain.errors import EngineError, MissingTool, NotNow, is_own_lack
from controlplane.domain.fleet import Server
from controlplane.domain.observation import OUT_OF_MEMORY, Health, News, out_of_memory
from launchers.docker.containers import FLEET_LABEL, STOP_SIGNAL, ContainerOptions, Pull

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
ANSWER_S = 60
_FULL = "no space left on device"
_AGAIN_S = 0.5
_END_S = 5.0
_KILLED = "its container ended with exit code 137"
_STOPS = frozenset({str(STOP_SIGNAL.value), str(signal.SIGTERM.value)})

Say = Callable[[str], None]


def address(given: str | None = None) -> str:
    """Return the given address, else $DOCKER_HOST, else the default socket.

    Raises EngineError for an engine on another host.
    """
    told = given or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS
    if not told.startswith("unix://"):
        raise EngineError(
            f"the Docker engine at {told} is not on this host: ports and model folders are local; "
            "unset DOCKER_HOST, or run there"
        )
    return told


@contextlib.contextmanager
def engine(where: str, answer_s: float = ANSWER_S) -> Iterator[docker.DockerClient]:
    """Connect to the engine, with a limit of `answer_s` for each answer.

    Raises MissingTool, EngineError or NotNow, as `translate_errors` does.
    """
    # The SDK would leak its socket where the engine does not listen.
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(where.removeprefix("unix://"))
    except OSError as error:
        raise _unreachable(where, error) from error
    with translate_errors(where):
        client = docker.DockerClient(base_url=where, timeout=answer_s)
        try:
            yield client
        finally:
            client.close()


def reachable() -> bool:
    """Return whether an engine of this host answers."""
    try:
        with engine(address()) as client:
            client.ping()
    except EngineError:
        return False
    return True


@contextlib.contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Turn errors of the engine into ours, each with the way out."""
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise EngineError(f"the engine has no such image: {_said(error)}; pull it, or allow that") from error
    except docker.errors.APIError as error:
        kind = NotNow if _FULL in _said(error).lower() else EngineError
        raise kind(_of_api(error)) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        # The SDK asks for the engine's version first, and wraps the error of that.
        if any(isinstance(e, requests.exceptions.Timeout) for e in (error, error.__cause__)):
            raise NotNow(f"the Docker engine at {where} does not answer; see its log") from error
        raise _unreachable(where, error) from error


def have_image(client: docker.DockerClient, options: ContainerOptions, say: Say) -> None:
    """Fetch the image as the options say, and report the progress.

    Raises EngineError where it is not to be had.
    """
    image = options.image
    if options.pull is not Pull.ALWAYS:
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.get(image)
            return
    if options.pull is Pull.NEVER:
        raise EngineError(f"the engine has no image {image}, and it may not be pulled: docker pull {image}")
    done: dict[str, tuple[int, int]] = {}
    shown = -1
    for line in client.api.pull(image, stream=True, decode=True):
        if "error" in line:
            raise EngineError(f"{image} cannot be pulled: {line['error']}")
        detail = line.get("progressDetail") or {}
        if line.get("status") == "Downloading" and detail.get("total"):
            done[line["id"]] = (detail["current"], detail["total"])
        elif line.get("status") == "Download complete" and line.get("id") in done:
            done[line["id"]] = (done[line["id"]][1], done[line["id"]][1])
        total = sum(size for _, size in done.values())
        percent = 100 * sum(part for part, _ in done.values()) // total if total else 0
        if percent >= shown + 5:
            shown = percent
            say(f"pulling {image}: {percent} % of {total / 1e6:.0f} MB")


def _said(error: docker.errors.APIError) -> str:
    return str(error.explanation or error)


def _of_api(error: docker.errors.APIError) -> str:
    said = _said(error)
    remedies = {
        "could not select device driver": "install the NVIDIA container toolkit, then restart the engine",
        _FULL: "free space where the engine keeps its data (docker system df)",
        "is already in use by container": "remove that container (docker rm), it is none of ours",
        "requested CPUs are not available": "that core does not exist, or the engine may not use it",
        "pull access denied": "log in to the registry, or name another image",
        "cfs": "the engine's kernel holds no CPU quota",
    }
    for sign, remedy in remedies.items():
        if sign.lower() in said.lower():
            return f"Docker: {said}: {remedy}"
    return f"Docker: {said}"


def _unreachable(where: str, error: Exception) -> EngineError:
    said = str(error)
    if is_own_lack(error):
        return NotNow(f"the Docker engine at {where} cannot be asked now: {said}")
    if "Permission" in said:
        return EngineError(
            f"the Docker engine at {where} may not be used by this user: join the group docker "
            "(usermod -aG docker $USER) and log in again"
        )
    return MissingTool(
        f"no Docker engine answers at {where}: apt-get install docker.io, systemctl start docker, "
        f"or set DOCKER_HOST ({said})"
    )


class ContainerWatcher:
    """Reads the stream in a thread, and opens it again where the engine was restarted."""

    def __init__(self, address: str, fleet: str) -> None:
        self._path = address.removeprefix("unix://")
        self._filters = {
            "type": ["container"],
            "label": [f"{FLEET_LABEL}={fleet}"],
            # Podman calls a death by the second name.
            "event": ["die", "died", "oom", "kill", "pause", "unpause"],
        }
        # By container id: a name may be used again, and an earlier end is not its.
        self._heard: queue.SimpleQueue[tuple[str, Health, str]] = queue.SimpleQueue()
        self._since_s = time.time()
        self._told: dict[str, Health] = {}
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="container-watcher", daemon=True)
        self._thread.start()

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the news of these servers."""
        if self._heard.empty():
            return ()
        asked = {s.id: s for s in servers}
        self._told = {one: health for one, health in self._told.items() if one in asked}
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                one, health, why = self._heard.get_nowait()
                before = self._told.get(one)
                # If Triton itself was killed for its memory, its container's end follows.
                if one not in asked or before in (Health.GONE, health):
                    continue
                self._told[one] = health
                oom = health is Health.IMPAIRED or (before is Health.IMPAIRED and why == _KILLED)
                reason = out_of_memory(asked[one]) if oom else why
                found.append(News((asked[one].name,), reason, health=health))
        return tuple(found)

    def close(self) -> None:
        """End the stream and the thread."""
        self._closing.set()
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_S)

    def _listen(self) -> None:
        while not self._closing.is_set():
            # Try again where the engine is away or ends.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                self._read()
            self._closing.wait(_AGAIN_S)

    def _read(self) -> None:
        with socket.socket(socket.AF_UNIX) as opened:
            with self._lock:
                if self._closing.is_set():
                    return
                self._socket = opened
            try:
                opened.connect(self._path)
                for line in self._stream(opened):
                    self._hear(json.loads(line))
            finally:
                with self._lock:
                    self._socket = None

    def _stream(self, opened: socket.socket) -> http.client.HTTPResponse:
        # The engine repeats the events between two streams.
        asked = {"since": f"{self._since_s:.6f}", "filters": json.dumps(self._filters)}
        connection = http.client.HTTPConnection("localhost")
        connection.sock = opened
        connection.request("GET", f"/events?{urllib.parse.urlencode(asked)}")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise http.client.HTTPException(answer.reason)
        return answer

    def _hear(self, told: Mapping[str, Any]) -> None:
        self._since_s = told["timeNano"] / 1e9 + 1e-6
        actor = told["Actor"]
        news = _meaning(told["Action"], actor["Attributes"])
        if news is not None:
            self._heard.put((actor["ID"], *news))


def _meaning(action: str, about: Mapping[str, str]) -> tuple[Health, str] | None:
    """Return the health that an event leaves a container with, and the reason; None for other signals."""
    match action:
        case "oom":
            return Health.IMPAIRED, OUT_OF_MEMORY
        case "pause":
            return Health.PAUSED, "its container was paused"
        case "unpause":
            return Health.READY, ""
        case "kill" if about.get("signal") in _STOPS:
            return Health.ENDING, "another program stops its container"
        case "kill":
            return None
        case _:
            return Health.GONE, f"its container ended with exit code {about.get('exitCode', 'unknown')}"

"""The local Docker engine; its errors get messages with the way out."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import docker
import docker.errors
import requests.exceptions

from controlplane.domain.errors import EngineError, MissingTool, NotNow, is_own_lack
from launchers.docker.containers import ContainerOptions, Pull

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
ANSWER_S = 60
_FULL = "no space left on device"

Say = Callable[[str], None]


def address() -> str:
    """Return $DOCKER_HOST, else the default socket. Raises EngineError for an engine on another host."""
    told = os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS
    return local(told)


def local(told: str) -> str:
    """Return `told` if it is a socket of this host. Raises EngineError."""
    if not told.startswith("unix://"):
        raise EngineError(
            f"the Docker engine at {told} is not on this host: ports and model folders are local; "
            "unset DOCKER_HOST, or run there"
        )
    return told


@contextlib.contextmanager
def engine(where: str, answer_s: float = ANSWER_S) -> Iterator[docker.DockerClient]:
    """Connect to the engine, with a limit of `answer_s` for each answer.

    Raises MissingTool, EngineError or NotNow, as `told` does.
    """
    _knock(where)
    with told(where):
        client = docker.DockerClient(base_url=where, timeout=answer_s)
        try:
            yield client
        finally:
            client.close()


def _knock(where: str) -> None:
    """Raise `engine`'s error where the engine does not listen; the SDK would leak its socket then."""
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(where.removeprefix("unix://"))
    except OSError as error:
        raise _unreachable(where, error) from error


def reachable() -> bool:
    """Return whether an engine of this host answers."""
    try:
        with engine(address()) as client:
            client.ping()
    except EngineError:
        return False
    return True


@contextlib.contextmanager
def told(where: str) -> Iterator[None]:
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
        _count(line, done)
        total = sum(size for _, size in done.values())
        percent = 100 * sum(part for part, _ in done.values()) // total if total else 0
        if percent >= shown + 5:
            shown = percent
            say(f"pulling {image}: {percent} % of {total / 1e6:.0f} MB")


def _count(line: dict[str, Any], done: dict[str, tuple[int, int]]) -> None:
    """Record the progress of each layer."""
    detail = line.get("progressDetail") or {}
    if line.get("status") == "Downloading" and detail.get("total"):
        done[line["id"]] = (detail["current"], detail["total"])
    elif line.get("status") == "Download complete" and line.get("id") in done:
        done[line["id"]] = (done[line["id"]][1], done[line["id"]][1])


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

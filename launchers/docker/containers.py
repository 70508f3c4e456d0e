"""A partition's container as a value, with the Docker SDK's arguments and the equivalent `docker run`."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from docker.types import Mount

from controlplane.domain import triton_releases
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Server
from launchers.cpu_quota.mechanism import bandwidth
from launchers.gpu.mps import MpsClient
from launchers.host.process_table import ports_of
from launchers.triton import labels, program

Choice = TypeVar("Choice", bound=StrEnum)

VENDOR_IMAGE = f"nvcr.io/nvidia/tritonserver:{triton_releases.NEWEST.image}-py3"
"""NVIDIA's image of the newest release that a security bulletin names."""

LINK_ROOTS = "TRISECT_LINK_ROOTS"
"""Folders outside a model repository, parted by colons, to which its links may lead."""

FLEET_LABEL = "trisect.fleet"
NAME_LABEL = "trisect.name"
SERVER_LABEL = "trisect.server"
STOP_SIGNAL = signal.SIGCONT
"""What `docker stop` sends before it kills. It changes nothing, and the engine reports it: there is time to
redirect. At SIGTERM Triton unloads its models at once, and refuses requests until it has ended."""
_CPU_SHARES = 32768
_UNPRIVILEGED = "1000:1000"
_INSIDE = program.ServerPorts(8000, 8001, 8002, "0.0.0.0")


class Pull(StrEnum):
    """When to fetch an image."""

    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


class Network(StrEnum):
    """How to reach a container: on the host's loopback, or by ports published there."""

    HOST = "host"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The settings of all containers of a launcher. `image` may have a digest (`name@sha256:...`)."""

    image: str = VENDOR_IMAGE
    pull: Pull = Pull.MISSING
    network: Network = Network.HOST
    link_roots: tuple[Path, ...] = ()
    pids: int = 2048
    log_size_mb: int = 10
    log_files: int = 3

    @classmethod
    def from_environment(cls) -> ContainerOptions:
        """Read $TRISECT_IMAGE, _PULL, _NETWORK and _LINK_ROOTS, where they are set. Raises InputError.

        From the environment, so that the controller which an apply leaves behind has the same options.
        """
        return cls(
            image=os.environ.get("TRISECT_IMAGE") or VENDOR_IMAGE,
            pull=_one_of(Pull, "TRISECT_PULL", Pull.MISSING),
            network=_one_of(Network, "TRISECT_NETWORK", Network.HOST),
            link_roots=_link_roots(),
        )


def _link_roots() -> tuple[Path, ...]:
    roots = tuple(Path(root) for root in os.environ.get(LINK_ROOTS, "").split(":") if root)
    for root in roots:
        if not root.is_absolute() or not root.is_dir():
            raise InputError(f"{str(root)!r} is no absolute path of a folder", field=f"${LINK_ROOTS}")
    return tuple(root.resolve() for root in roots)


def _one_of(kind: type[Choice], variable: str, default: Choice) -> Choice:
    told = os.environ.get(variable)
    if not told:
        return default
    try:
        return kind(told)
    except ValueError:
        problem = f"{told!r} is none of {', '.join(kind)}"
        raise InputError(problem, field=f"${variable}") from None


@dataclass(frozen=True, slots=True)
class Container:
    """All arguments of a `docker run`. `binds` are read-only, at their own paths."""

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    binds: tuple[str, ...]
    user: str
    network: Network
    published: Mapping[int, int] = field(default_factory=dict)
    pids: int = 2048
    log_size_mb: int = 10
    log_files: int = 3
    core: int | None = None
    percent: float | None = None
    cgroup_parent: str | None = None
    memory_mb: int | None = None
    gpu: str | None = None
    pipe_directory: str | None = None


def container(
    server: Server,
    options: ContainerOptions,
    *,
    core: int | None = None,
    gpu: MpsClient | None = None,
    cgroup_parent: str | None = None,
) -> Container:
    """Return a server's container: on a core with a quota, or on a GPU as a client of its MPS daemon."""
    spec = server.spec
    outside = program.ServerPorts(server.http_port, server.grpc_port, server.metrics_port, server.host)
    bridged = options.network is Network.BRIDGE
    home = program.TritonHome(program.IMAGE_HOME)
    command = program.command_line(
        spec,
        home,
        _INSIDE if bridged else outside,
        repository=spec.repository,
        gpu=gpu is not None,
        reload_key=server.reload_key,
    )
    pairs = ((_INSIDE.http, outside.http), (_INSIDE.grpc, outside.grpc), (_INSIDE.metrics, outside.metrics))
    limit = spec.memory_limit_mb if gpu is None else None
    return Container(
        name=spec.name,
        image=options.image,
        command=program.in_container(command),
        environment={
            **(gpu.environment if gpu else {**program.MODEL_THREADS, "NVIDIA_VISIBLE_DEVICES": "void"}),
            **dict(spec.options.env),
        },
        labels={
            FLEET_LABEL: spec.labels.fleet,
            NAME_LABEL: spec.name,
            SERVER_LABEL: labels.text_of(server),
        },
        binds=folders(Path(spec.repository), options.link_roots),
        user=f"{gpu.uid}:{gpu.gid}" if gpu else own_user(),
        network=options.network,
        published=dict(pairs) if bridged else {},
        pids=options.pids,
        log_size_mb=options.log_size_mb,
        log_files=options.log_files,
        core=core,
        percent=spec.percent if gpu is None else None,
        cgroup_parent=cgroup_parent if gpu is None else None,
        memory_mb=None if limit is None else round(limit),
        gpu=gpu.uuid if gpu else None,
        pipe_directory=gpu.pipe_directory if gpu else None,
    )


def listening(server: Server, options: ContainerOptions) -> set[int]:
    """Return the ports on which a server's Triton listens in its container."""
    bridged = options.network is Network.BRIDGE
    return {_INSIDE.http, _INSIDE.grpc, _INSIDE.metrics} if bridged else ports_of(server)


def folders(rendered: Path, link_roots: Sequence[Path] = ()) -> tuple[str, ...]:
    """Return the rendered repository and all that its links lead to, so that links work in the container.

    Each link of a rendered repository leads to REPOSITORY/MODEL/NAME. Raises InputError where that is a link
    itself and leads out of REPOSITORY, unless to one of `link_roots`: what it leads to would be mounted.
    """
    found = {str(rendered)}
    for place, folders_, files in os.walk(rendered):
        for name in (*folders_, *files):
            path = Path(place) / name
            if path.is_symlink():
                found.add(str(_target(Path(path.readlink()), link_roots)))
    return tuple(sorted(found))


def _target(source: Path, link_roots: Sequence[Path]) -> Path:
    repository, real = source.parent.parent.resolve(), source.resolve()
    if not any(real.is_relative_to(root) for root in (repository, *link_roots)):
        raise InputError(
            f"leads to {real}, outside its model repository {repository}, and would be mounted into a "
            f"container: copy it there, or name a folder above it in ${LINK_ROOTS}",
            file=str(source),
        )
    return real


def own_user() -> str:
    """Return the container's user: this one, but never root."""
    return f"{os.getuid()}:{os.getgid()}" if os.getuid() != 0 else _UNPRIVILEGED


def for_sdk(wanted: Container) -> dict[str, Any]:
    """Return the arguments of `DockerClient.containers.create`.

    The quota is given by its period: `nano_cpus` fixes one of 100 ms. No health check: it would run inside
    the quota and cost the model its time.
    """
    told: dict[str, Any] = {
        "name": wanted.name,
        "image": wanted.image,
        "command": list(wanted.command),
        "environment": dict(wanted.environment),
        "labels": dict(wanted.labels),
        # As mounts: for a volume, the engine would create a missing folder, empty and owned by root.
        "mounts": [Mount(path, path, type="bind", read_only=True) for path in wanted.binds],
        "user": wanted.user,
        "read_only": True,
        "tmpfs": {"/tmp": "rw,nosuid,nodev,size=1g"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": wanted.pids,
        "log_config": {
            "type": "json-file",
            "config": {"max-size": f"{wanted.log_size_mb}m", "max-file": str(wanted.log_files)},
        },
        "stop_signal": STOP_SIGNAL.name,
        "healthcheck": {"test": ["NONE"]},
        "detach": True,
    }
    if wanted.network is Network.HOST:
        told["network_mode"] = "host"
    else:
        told["ports"] = {f"{inside}/tcp": ("127.0.0.1", out) for inside, out in wanted.published.items()}
    if wanted.core is not None:
        told["cpuset_cpus"] = str(wanted.core)
        told["cpu_shares"] = _CPU_SHARES
    if wanted.cgroup_parent is not None:
        told["cgroup_parent"] = wanted.cgroup_parent
    if wanted.percent is not None:
        told["cpu_quota"], told["cpu_period"] = bandwidth(wanted.percent)
    if wanted.memory_mb is not None:
        told["mem_limit"] = f"{wanted.memory_mb}m"
    if wanted.gpu is not None:
        told["device_requests"] = [{"DeviceIDs": [wanted.gpu], "Capabilities": [["gpu"]]}]
        # The MPS daemon and its clients share memory.
        told["ipc_mode"] = "host"
        told["mounts"].append(Mount(wanted.pipe_directory, wanted.pipe_directory, type="bind"))
    else:
        # The container's own, removed with it.
        told["ipc_mode"] = "private"
        told["shm_size"] = "1g"
    return told


def _mount_option(mount: Mapping[str, Any]) -> str:
    writable = "" if not mount["ReadOnly"] else ",readonly"
    return f"--mount=type=bind,source={mount['Source']},target={mount['Target']}{writable}"


def run_line(wanted: Container) -> str:
    """Return the equivalent `docker run` for a shell, one option a line."""
    told = for_sdk(wanted)
    log = told["log_config"]
    options = [
        f"--name={wanted.name}",
        *(f"--label={key}={value}" for key, value in wanted.labels.items()),
        f"--user={wanted.user}",
        f"--network={wanted.network}",
        *(f"--publish=127.0.0.1:{out}:{inside}" for inside, out in wanted.published.items()),
        f"--ipc={told['ipc_mode']}",
        *([f"--shm-size={told['shm_size']}"] if "shm_size" in told else []),
        "--read-only",
        *(f"--tmpfs={path}:{how}" for path, how in told["tmpfs"].items()),
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--pids-limit={wanted.pids}",
        *([f"--memory={told['mem_limit']}"] if "mem_limit" in told else []),
        *([f"--gpus=device={wanted.gpu}"] if wanted.gpu is not None else []),
        *([f"--cpuset-cpus={wanted.core}"] if wanted.core is not None else []),
        *([f"--cpu-shares={told['cpu_shares']}"] if "cpu_shares" in told else []),
        *([f"--cgroup-parent={told['cgroup_parent']}"] if "cgroup_parent" in told else []),
        *([f"--cpu-period={told['cpu_period']}"] if "cpu_period" in told else []),
        *([f"--cpu-quota={told['cpu_quota']}"] if "cpu_quota" in told else []),
        *(f"--env={key}={value}" for key, value in wanted.environment.items()),
        *(_mount_option(mount) for mount in told["mounts"]),
        f"--log-driver={log['type']}",
        *(f"--log-opt={key}={value}" for key, value in log["config"].items()),
        f"--stop-signal={STOP_SIGNAL.name}",
        "--no-healthcheck",
        f"--restart={RESTART['Name']}",
    ]
    lines = ["docker run --detach", *map(shlex.quote, options), wanted.image]
    lines += [shlex.quote(argument) for argument in wanted.command]
    return program.SHELL_BREAK.join(lines)


RESTART = {"Name": "unless-stopped"}
"""Set once a server was ready: before that, a model that cannot load would be loaded for ever."""

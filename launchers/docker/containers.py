"""A server's container as a value: the arguments of the Docker SDK, and the equivalent `docker run`."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from docker.types import Mount

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Server
from launchers.cpu_quota.mechanism import Weight, bandwidth
from launchers.gpu.mps import MpsClient
from launchers.host.server_sockets import folder_of
from launchers.host_lifecycle import HostPlace
from launchers.triton import batches, labels, program

Choice = TypeVar("Choice", bound=StrEnum)

LINK_ROOTS = "TRISECT_LINK_ROOTS"
"""Folders outside a model repository, parted by colons, to which its links may lead."""

FLEET_LABEL = "trisect.fleet"
NAME_LABEL = "trisect.name"
SERVER_LABEL = "trisect.server"
STOP_SIGNAL = signal.SIGCONT
"""What `docker stop` sends before it kills. It changes nothing, and the engine reports it: there is time to
redirect. At SIGTERM Triton unloads its models at once, and refuses requests until it has ended."""
_UNPRIVILEGED = (1000, 1000)
_MAX_PIDS = 2048


class Pull(StrEnum):
    """When to fetch an image."""

    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


class Network(StrEnum):
    """The network of a container's models: the host's, or the engine's bridge."""

    HOST = "host"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The settings of all containers of a launcher. `image` may have a digest (`name@sha256:...`)."""

    image: str = program.VENDOR_IMAGE
    pull: Pull = Pull.MISSING
    network: Network = Network.HOST
    link_roots: tuple[Path, ...] = ()

    @classmethod
    def from_environment(cls) -> ContainerOptions:
        """Read $TRISECT_IMAGE, _PULL, _NETWORK and _LINK_ROOTS, where they are set. Raises InputError.

        From the environment, so that the controller which an apply leaves behind has the same options.
        """
        roots = [Path(root) for root in os.environ.get(LINK_ROOTS, "").split(":") if root]
        for root in roots:
            if not root.is_absolute() or not root.is_dir():
                raise InputError(f"{str(root)!r} is no absolute path of a folder", field=f"${LINK_ROOTS}")
        return cls(
            image=os.environ.get("TRISECT_IMAGE") or program.VENDOR_IMAGE,
            pull=_one_of(Pull, "TRISECT_PULL", Pull.MISSING),
            network=_one_of(Network, "TRISECT_NETWORK", Network.HOST),
            link_roots=tuple(root.resolve() for root in roots),
        )


def _one_of(kind: type[Choice], variable: str, default: Choice) -> Choice:
    told = os.environ.get(variable) or default
    try:
        return kind(told)
    except ValueError:
        problem = f"{told!r} is none of {', '.join(kind)}"
        raise InputError(problem, field=f"${variable}") from None


def arguments(
    server: Server, options: ContainerOptions, place: HostPlace, cgroup_parent: str | None = None
) -> dict[str, Any]:
    """Return the arguments of `DockerClient.containers.create` for a server's container.

    It is on a core with a quota, or on a GPU as a client of its MPS daemon. Its folders are read-only, at
    their own paths. No health check: it would run inside the quota and cost the model its time.
    """
    spec, gpu = server.spec, place.gpu
    command = program.command_line(server, program.TritonHome(program.IMAGE_HOME), gpu=gpu is not None)
    sockets = folder_of(server)
    uid, gid = user_of(place)
    # Another user's sockets must be open to this one; the folder above them keeps all others out.
    umask = program.UMASK if os.getuid() in (0, uid) else 0
    devices = gpu.environment if gpu else {**program.MODEL_THREADS, "NVIDIA_VISIBLE_DEVICES": "void"}
    limits = batches.environment(spec.batches, place.batches)
    told: dict[str, Any] = {
        "name": spec.name,
        "image": options.image,
        "command": list(program.in_container(command, gpu=gpu is not None, sockets=sockets, umask=umask)),
        "environment": {**devices, **limits, **dict(spec.options.env)},
        "labels": {
            FLEET_LABEL: spec.labels.fleet,
            NAME_LABEL: spec.name,
            SERVER_LABEL: labels.text_of(server),
        },
        # As mounts: for a volume, the engine would create a missing folder, empty and owned by root.
        "mounts": [
            *(
                Mount(path, path, type="bind", read_only=True)
                for path in folders(Path(spec.repository), options.link_roots)
            ),
            Mount(str(sockets), str(sockets), type="bind"),
        ],
        "user": f"{uid}:{gid}",
        "read_only": True,
        "tmpfs": {"/tmp": "rw,nosuid,nodev,size=1g"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": _MAX_PIDS,
        "log_config": {"type": "json-file", "config": {"max-size": "10m", "max-file": "3"}},
        "stop_signal": STOP_SIGNAL.name,
        "healthcheck": {"test": ["NONE"]},
        "detach": True,
        "network_mode": options.network.value,
        # Its user is one of the host, that of its sockets, where the engine would map users, too.
        "userns_mode": "host",
    }
    if place.batches is not None:
        both, seen = str(place.batches.folder), str(place.batches.seen)
        told["mounts"] += [
            Mount(both, both, type="bind", read_only=True),
            Mount(seen, seen, type="bind"),
        ]
    return told | (_on_core(server, place, cgroup_parent) if gpu is None else _on_gpu(gpu, told["mounts"]))


def _on_core(server: Server, place: HostPlace, cgroup_parent: str | None) -> dict[str, Any]:
    # By its period too: `nano_cpus` fixes one of 100 ms.
    quota, period = bandwidth(server.spec.percent)
    told: dict[str, Any] = {
        "cpuset_cpus": str(place.core),
        "cpu_shares": Weight.FULL.shares,
        "cpu_quota": quota,
        "cpu_period": period,
    }
    # The container's own memory is removed with it; the host's is where clients may share theirs.
    host = server.spec.fleet_wide_calls
    told |= {"ipc_mode": "host"} if host else {"ipc_mode": "private", "shm_size": "1g"}
    if cgroup_parent is not None:
        told["cgroup_parent"] = cgroup_parent
    if (limit_mb := server.spec.memory_limit_mb) is not None:
        # What is swapped counts too: else the engine allows as much again.
        told |= dict.fromkeys(("mem_limit", "memswap_limit"), f"{round(limit_mb)}m")
    return told


def _on_gpu(gpu: MpsClient, mounts: list[Mount]) -> dict[str, Any]:
    pipes = Mount(gpu.pipe_directory, gpu.pipe_directory, type="bind")
    return {
        "device_requests": [{"DeviceIDs": [gpu.uuid], "Capabilities": [["gpu"]]}],
        # The MPS daemon and its clients share memory.
        "ipc_mode": "host",
        "mounts": [*mounts, pipes],
    }


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


def user_of(place: HostPlace) -> tuple[int, int]:
    """Return a container's user and group: on a GPU its MPS daemon's, else this one, but never root."""
    if place.gpu is not None:
        return place.gpu.uid, place.gpu.gid
    return (os.getuid(), os.getgid()) if os.getuid() != 0 else _UNPRIVILEGED


def run_line(told: Mapping[str, Any]) -> str:
    """Return the `docker run` that is equivalent to these `arguments`, for a shell, one option a line."""
    log = told["log_config"]
    gpus = [uuid for request in told.get("device_requests", ()) for uuid in request["DeviceIDs"]]
    given = {option: told[key] for option, key in _OPTIONS.items() if key in told}
    mounts = []
    for mount in told["mounts"]:
        access = ",readonly" if mount["ReadOnly"] else ""
        mounts.append(f"--mount=type=bind,source={mount['Source']},target={mount['Target']}{access}")
    options = [
        f"--name={told['name']}",
        *(f"--label={key}={value}" for key, value in told["labels"].items()),
        f"--user={told['user']}",
        f"--network={told['network_mode']}",
        f"--userns={told['userns_mode']}",
        f"--ipc={told['ipc_mode']}",
        *([f"--shm-size={told['shm_size']}"] if "shm_size" in told else []),
        "--read-only",
        *(f"--tmpfs={path}:{how}" for path, how in told["tmpfs"].items()),
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--pids-limit={told['pids_limit']}",
        *(f"--gpus=device={uuid}" for uuid in gpus),
        *(f"--{option}={value}" for option, value in given.items()),
        *(f"--env={key}={value}" for key, value in told["environment"].items()),
        *mounts,
        f"--log-driver={log['type']}",
        *(f"--log-opt={key}={value}" for key, value in log["config"].items()),
        f"--stop-signal={told['stop_signal']}",
        "--no-healthcheck",
        f"--restart={RESTART['Name']}",
    ]
    lines = ["docker run --detach", *map(shlex.quote, options), told["image"]]
    lines += [shlex.quote(argument) for argument in told["command"]]
    return program.SHELL_BREAK.join(lines)


_OPTIONS = {
    "cpuset-cpus": "cpuset_cpus",
    "cpu-shares": "cpu_shares",
    "cgroup-parent": "cgroup_parent",
    "cpu-period": "cpu_period",
    "cpu-quota": "cpu_quota",
    "memory": "mem_limit",
    "memory-swap": "memswap_limit",
}


RESTART = {"Name": "unless-stopped"}
"""Set once a server was ready: before that, a model that cannot load would be loaded for ever."""

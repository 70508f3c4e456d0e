"""NVIDIA's Multi-Process Service: one control daemon for each GPU, started, checked, used again, ended.

A daemon below our own folder is ours; `sweep` ends it once it has no clients. A daemon that
$CUDA_MPS_PIPE_DIRECTORY names belongs to another program: it is checked and used, never ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.device import MAX_MPS_CLIENTS
from controlplane.domain.errors import EngineError, LaunchTimeout, MissingTool
from controlplane.domain.fleet import ServerSpec
from controlplane.ports import Capability
from launchers.gpu import gpus

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
MECHANISM = "mps"
_PLACES = "/usr/local/nvidia/bin:/usr/bin:/usr/sbin"
"""Folders of a driver's programs that may be missing in PATH, as on hosts that mount their driver."""
_ANSWER_S = 10.0
_UNPRIVILEGED = 1000


@dataclass(frozen=True, slots=True)
class MpsClient:
    """What a server needs to be a client: the GPU, the daemon's folder and its user.

    A container runs as `uid` and `gid`: the daemon's user, since another user's client would wait for ever,
    or an unprivileged user where the daemon is root's, which accepts any single user.
    """

    uuid: str
    pipe_directory: str
    daemon_uid: int
    environment: dict[str, str]

    @property
    def uid(self) -> int:
        """The user that a container runs as."""
        return self.daemon_uid or _UNPRIVILEGED

    @property
    def gid(self) -> int:
        """The group that a container runs as."""
        return os.getgid() if self.uid == os.getuid() else self.uid


def share_variables(spec: ServerSpec) -> dict[str, str]:
    """Return the variables of a share, which the CUDA context fixes. Under MPS the only GPU has ordinal 0."""
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{spec.percent:g}"}
    if spec.memory_limit_mb is not None:
        share["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={round(spec.memory_limit_mb)}M"
    return share


class MpsDaemons:
    """The daemons of this host's GPUs. `root` holds a folder for each that is ours."""

    def __init__(self, root: Path | None = None) -> None:
        # A socket's path may have 107 characters: the folder is near the root, not in the state directory.
        self._root = root or Path(tempfile.gettempdir()) / f"trisect-mps-{os.getuid()}"
        self._lock = threading.Lock()

    def client(self, spec: ServerSpec, *, start: bool) -> MpsClient:
        """Return how a server becomes a client of its GPU's daemon; with `start`, start the daemon first.

        Raises InputError for a GPU that is missing or split, MissingTool without MPS, EngineError where the
        daemon does not answer, serves another GPU, or takes no more clients.
        """
        uuid = gpus.whole(spec.device).uuid
        pipes = self.pipes(uuid)
        if start:
            with self._lock:
                self._prepare(uuid, pipes)
        return MpsClient(uuid, str(pipes), _owner(pipes), {PIPES: str(pipes), **share_variables(spec)})

    def sweep(self) -> tuple[str, ...]:
        """End our daemons that have no clients; return a line for each."""
        ended: list[str] = []
        if _found() is None:
            return ()
        with self._lock:
            if not self._root.exists():
                return ()
            own_folder(self._root)
            for folder in sorted(self._root.glob("GPU-*")):
                pipes = folder / "pipe"
                if answers(pipes) and not clients(pipes):
                    ask(pipes, "quit")
                    ended.append(f"MPS daemon of {folder.name}")
                if not answers(pipes):
                    shutil.rmtree(folder, ignore_errors=True)
        return tuple(ended)

    def pipes(self, uuid: str) -> Path:
        """Return the pipe directory of a GPU's daemon."""
        told = os.environ.get(PIPES)
        return Path(told) if told else self._root / uuid / "pipe"

    def _prepare(self, uuid: str, pipes: Path) -> None:
        if not os.environ.get(PIPES):
            own_folder(self._root)
        if not answers(pipes):
            if os.environ.get(PIPES):
                raise EngineError(
                    f"no MPS daemon answers in {pipes}, which ${PIPES} names: start it, or unset the variable"
                )
            self._launch(uuid, pipes)
        serves = _devices(pipes)
        if serves is not None and uuid not in serves:
            raise EngineError(f"the MPS daemon in {pipes} serves {','.join(serves)}, not {uuid}")
        if faulted(pipes):
            raise EngineError(
                f"the MPS server of {uuid} is in state FAULT and accepts no client until its clients are "
                "gone: stop what runs there (ctl destroy), then apply again"
            )
        if len(clients(pipes)) >= MAX_MPS_CLIENTS:
            raise EngineError(
                f"{uuid} has {MAX_MPS_CLIENTS} MPS clients already, which is all it takes: plan fewer "
                "partitions or instances on it"
            )

    def _launch(self, uuid: str, pipes: Path) -> None:
        logs = pipes.parent / "log"
        environment = {
            **os.environ,
            # It starts nvidia-cuda-mps-server, which lies beside it.
            "PATH": f"{os.environ.get('PATH', os.defpath)}:{Path(_program()).parent}",
            "CUDA_VISIBLE_DEVICES": uuid,
            PIPES: str(pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
        }
        said = logs / "start.log"
        try:
            for folder in (pipes, logs):
                folder.mkdir(parents=True, exist_ok=True)
            with said.open("wb") as out:
                # Not through a pipe: the daemon keeps it open, and `run` would wait for that.
                ended = subprocess.run(
                    [_program(), "-d"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    timeout=_ANSWER_S,
                    check=False,
                ).returncode
        except OSError as error:
            raise EngineError(f"the MPS daemon of {uuid} cannot be started: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise LaunchTimeout(f"{CONTROL} -d did not return for {uuid} (logs: {logs})") from error
        if ended != 0:
            why = said.read_text(errors="replace").strip() or f"exit code {ended}"
            raise EngineError(f"the MPS daemon of {uuid} did not start: {why} (logs: {logs})")
        deadline = time.monotonic() + _ANSWER_S
        while not answers(pipes):
            if time.monotonic() > deadline:
                raise LaunchTimeout(f"the MPS daemon of {uuid} does not answer (logs: {logs})")
            time.sleep(0.02)


def own_folder(path: Path) -> None:
    """Make a folder in which only this user writes. Raises EngineError where it is anything else.

    Its parent is open to all users: another one may have made it, or a link of that name, beforehand.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        found = path.lstat()
    except OSError as error:
        raise EngineError(f"{path}: cannot be made: {error.strerror}") from error
    foreign = found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or foreign:
        raise EngineError(
            f"{path} is a link, another user's, or open for others to write: remove it, or set TMPDIR to a "
            "folder of your own"
        )


def check_user(client: MpsClient, uid: int) -> None:
    """Raise EngineError where user `uid` would wait for another user's daemon, or behind its clients."""
    if client.daemon_uid not in (0, uid):
        raise EngineError(
            f"the MPS daemon in {client.pipe_directory} is user {client.daemon_uid}'s: a client of another "
            "user would wait for ever; run as that user"
        )
    pipes = Path(client.pipe_directory)
    if not answers(pipes):
        return
    for server in ask(pipes, "get_server_list").split():
        with contextlib.suppress(OSError):
            other = Path(f"/proc/{server}").stat().st_uid
            if other != uid and ask(pipes, f"get_client_list {server}").split():
                raise EngineError(
                    f"the MPS server of {client.uuid} serves user {other}: a client of user {uid} would wait "
                    "until those clients are gone; run all partitions of a GPU with one launcher and one user"
                )


def capability() -> Capability:
    """Return whether this host can enforce shares of a GPU."""
    found = _found()
    remedy = None if found else "install the NVIDIA driver's compute tools (package nvidia-compute-utils)"
    return Capability("mps", found is not None, found or f"no {CONTROL}", remedy)


def ask(pipes: Path, question: str, answer_s: float | None = None) -> str:
    """Return the daemon's answer to a command. Raises EngineError without one within `answer_s`."""
    told = _run(pipes, question, answer_s)
    if told.returncode != 0:
        words = (told.stderr or told.stdout).strip() or f"exit code {told.returncode}"
        raise EngineError(f"the MPS daemon in {pipes} did not take {question!r}: {words}")
    return told.stdout


def answers(pipes: Path) -> bool:
    """Return whether a daemon listens there. Raises LaunchTimeout for one that hangs."""
    return pipes.is_dir() and _run(pipes, "get_server_list").returncode == 0


def clients(pipes: Path) -> list[int]:
    """Return the pids of all clients of a daemon."""
    servers = ask(pipes, "get_server_list").split()
    return [int(pid) for s in servers for pid in ask(pipes, f"get_client_list {s}").split()]


def faulted(pipes: Path, answer_s: float | None = None) -> bool:
    """Return whether a server of the daemon is in state FAULT: a fatal exception ended its clients.

    False without an answer: older daemons do not know the command, and a daemon may hang.
    """
    with contextlib.suppress(EngineError):
        servers = ask(pipes, "get_server_list", answer_s).split()
        states = (ask(pipes, f"get_server_status {server}", answer_s) for server in servers)
        return any("FAULT" in state.upper() for state in states)
    return False


def _found() -> str | None:
    return shutil.which(CONTROL) or shutil.which(CONTROL, path=_PLACES)


def _program() -> str:
    found = _found()
    if found is None:
        raise MissingTool(f"no {CONTROL}: {capability().remedy}")
    return found


def _run(pipes: Path, question: str, answer_s: float | None = None) -> subprocess.CompletedProcess[str]:
    limit_s = answer_s or _ANSWER_S
    try:
        return subprocess.run(
            [_program()],
            input=f"{question}\n",
            env={**os.environ, PIPES: str(pipes)},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchTimeout(
            f"{CONTROL} did not answer within {limit_s:g} s: clients of two users wait for each other, "
            "and a faulted client holds up all; echo quit -t 5 | nvidia-cuda-mps-control ends it"
        ) from error


def _owner(pipes: Path) -> int:
    """Return the user of the daemon, or of the one that would be started."""
    with contextlib.suppress(OSError):
        return pipes.stat().st_uid
    return os.getuid()


def _devices(pipes: Path) -> list[str] | None:
    """Return the GPUs that a daemon was started with; None where that is unknown, or for all."""
    try:
        pid = int((pipes / f"{CONTROL}.pid").read_text())
        pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    except (OSError, ValueError):
        return None
    told = dict(pair.partition("=")[::2] for pair in pairs).get("CUDA_VISIBLE_DEVICES")
    return told.split(",") if told else None

"""NVIDIA's Multi-Process Service: one control daemon for each GPU, started, checked, used again, ended.

A daemon below our own folder is ours; `sweep` ends it once it has no clients and no server that names it is
starting. A daemon that $CUDA_MPS_PIPE_DIRECTORY names belongs to another program: it is checked and used,
never ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.device import MAX_MPS_CLIENTS
from controlplane.domain.errors import EngineError, LaunchTimeout
from controlplane.domain.fleet import ServerSpec
from launchers.gpu import control, gpus, probe, proof
from launchers.gpu.control import PERCENTAGE, PIPES
from launchers.host import process_table

MECHANISM = "mps"
_UNPRIVILEGED = 1000
_LOG_BYTES = 8_000_000
_KILL_S = 2.0
"""How long a kill waits for the lists of a daemon that may hang."""


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
    def own_environment(self) -> dict[str, str]:
        """The environment of a client that this program starts itself."""
        return {**os.environ, **self.environment, "CUDA_VISIBLE_DEVICES": self.uuid}

    @property
    def gid(self) -> int:
        """The group that a container runs as."""
        return os.getgid() if self.uid == os.getuid() else self.uid


def share_variables(spec: ServerSpec) -> dict[str, str]:
    """Return the variables of a share, which the CUDA context fixes. Under MPS the only GPU has ordinal 0."""
    share = {PERCENTAGE: f"{spec.percent:g}"}
    if spec.memory_limit_mb is not None:
        share["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={round(spec.memory_limit_mb)}M"
    return share


class MpsDaemons:
    """The daemons of this host's GPUs. `root` holds a folder for each that is ours."""

    def __init__(self, root: Path | None = None) -> None:
        # A socket's path may have 107 characters: the folder is near the root, not in the state directory.
        self._root = root or Path(tempfile.gettempdir()) / f"trisect-mps-{os.getuid()}"

    def client(self, spec: ServerSpec, *, start: bool) -> MpsClient:
        """Return how a server becomes a client of its GPU's daemon; with `start`, start the daemon first.

        Raises InputError for a GPU that is missing or split, MissingTool without MPS, EngineError where the
        daemon does not answer, serves another GPU, or takes no more clients.
        """
        uuid = gpus.whole(spec.device).uuid
        pipes = self.pipes(uuid)
        if start:
            with self._locked(f"launch-{uuid}", fcntl.LOCK_EX):
                self._prepare(uuid, pipes)
        return MpsClient(uuid, str(pipes), control.owner(pipes), {PIPES: str(pipes), **share_variables(spec)})

    def await_server(self, client: MpsClient, user: int) -> None:
        """Have a daemon of ours start the MPS server for a user's clients, and wait until it takes them.

        Some releases refuse a client that comes while its server starts (CUDA error 807), and a server that
        ends is named before a model is loaded. Where nothing comes of it, the first client has one started.
        Raises EngineError where the server ends, LaunchTimeout where the daemon hangs.
        """
        pipes = Path(client.pipe_directory)
        if os.environ.get(PIPES):
            return
        with self._locked(f"launch-{client.uuid}", fcntl.LOCK_EX):
            ended, deadline = proof.server_exit(pipes), time.monotonic() + control.ANSWER_S
            if not control.servers(pipes):
                try:
                    control.ask(pipes, f"start_server -uid {user}")
                except EngineError:
                    return
            while not (state := control.state(pipes)) or "INITIALIZING" in state:
                if (now := proof.server_exit(pipes)) not in (None, ended):
                    raise EngineError(f"{client.uuid}: {now}")
                if time.monotonic() > deadline:
                    return
                time.sleep(0.02)

    def prove_share(self, client: MpsClient, user: int) -> None:
        """Before the first server of a daemon of ours, time kernels on its idle GPU.

        Where nothing can be measured (another user's clients, a busy GPU, no libcuda) nothing is said: the
        daemon's lists still count. Raises EngineError where half of the GPU is no slower than all of it.
        """
        pipes = Path(client.pipe_directory)
        measured = pipes.parent / "share"
        if os.environ.get(PIPES) or user != os.getuid():
            return
        # No other server starts meanwhile: beside one that loads, times prove nothing.
        with self._locked(f"launch-{client.uuid}", fcntl.LOCK_EX):
            if measured.exists() or not proof.clients_of(client.uuid, pipes).are_none:
                return
            try:
                held, said = probe.enforced(client.own_environment)
            except EngineError as error:
                held, said = True, f"not measured: {error}"
            if not held:
                raise EngineError(f"{client.uuid}: {said}: look at MPS's logs and at the driver's release")
            measured.write_text(said)

    def shorten_log(self, uuid: str) -> None:
        """Empty the log of a daemon of ours where it is long: each command adds lines to it."""
        log = self._root / uuid / "log" / "control.log"
        with contextlib.suppress(OSError):
            if log.stat().st_blocks * 512 > _LOG_BYTES:  # not its size: the daemon may write on where it was
                os.truncate(log, 0)

    def release(self, uuid: str, pids: Collection[int]) -> None:
        """End the GPU work of clients that are about to be killed.

        Else the MPS server and its other clients are in an undefined state (MPS, Client Early Termination).
        """
        pipes = self.pipes(uuid)
        with contextlib.suppress(EngineError):
            for server in (control.servers(pipes, _KILL_S) or ()) if pids else ():
                for pid in set(control.clients(pipes, server, _KILL_S)) & set(pids):
                    control.ask(pipes, f"terminate_client {server} {pid}")

    @contextlib.contextmanager
    def starting(self, uuid: str) -> Iterator[None]:
        """Keep every program of this user from ending the GPU's daemon until a start is over."""
        with self._locked(f"use-{uuid}", fcntl.LOCK_SH):
            yield

    def sweep(self) -> tuple[str, ...]:
        """End our daemons that have no clients and that no process names; return a line for each."""
        ended: list[str] = []
        if control.found() is None or not self._root.exists():
            return ()
        own_folder(self._root)
        for folder in sorted(self._root.glob("GPU-*")):
            # Where it is taken, a server that names this daemon is starting.
            with (
                contextlib.suppress(BlockingIOError),
                self._locked(f"use-{folder.name}", fcntl.LOCK_EX | fcntl.LOCK_NB),
            ):
                servers = control.servers(folder / "pipe")
                if servers is not None and _end_unused(folder / "pipe", servers):
                    ended.append(f"MPS daemon of {folder.name}")
                    servers = None
                if servers is None:
                    shutil.rmtree(folder, ignore_errors=True)
        return tuple(ended)

    @contextlib.contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        """Hold a lock between programs, which the kernel takes away with their end."""
        own_folder(self._root)
        with (self._root / name).open("w") as file:
            fcntl.flock(file, how)
            yield

    def pipes(self, uuid: str) -> Path:
        """Return the pipe directory of a GPU's daemon."""
        told = os.environ.get(PIPES)
        return Path(told) if told else self._root / uuid / "pipe"

    def _prepare(self, uuid: str, pipes: Path) -> None:
        servers = control.servers(pipes)
        if servers is None:
            if os.environ.get(PIPES):
                raise EngineError(
                    f"no MPS daemon answers in {pipes}, which ${PIPES} names: start it, or unset the variable"
                )
            self._launch(uuid, pipes)
        serves = control.daemon_variable(pipes, "CUDA_VISIBLE_DEVICES")
        if serves and uuid not in serves.split(","):
            raise EngineError(f"the MPS daemon in {pipes} serves {serves}, not {uuid}")
        if servers and control.FAULT in control.state(pipes):
            raise EngineError(
                f"the MPS server of {uuid} is in state FAULT and accepts no client until its clients are "
                "gone: stop what runs there (ctl destroy), then apply again"
            )
        if sum(len(control.clients(pipes, server)) for server in servers or ()) >= MAX_MPS_CLIENTS:
            raise EngineError(
                f"{uuid} has {MAX_MPS_CLIENTS} MPS clients already, which is all it takes: plan fewer "
                "partitions or instances on it"
            )

    def _launch(self, uuid: str, pipes: Path) -> None:
        logs = pipes.parent / "log"
        environment = {
            **control.environment(pipes),
            # It starts nvidia-cuda-mps-server, which lies beside it.
            "PATH": f"{os.environ.get('PATH', os.defpath)}:{Path(control.program()).parent}",
            "CUDA_VISIBLE_DEVICES": uuid,
            control.LOGS: str(logs),
        }
        said = logs / "start.log"
        try:
            for folder in (pipes, logs):
                folder.mkdir(parents=True, exist_ok=True)
            if os.getuid() == 0:
                # The MPS server runs as its clients' user: it passes these folders, and has its socket there.
                for folder, mode in ((self._root, 0o755), (pipes.parent, 0o755), (pipes, 0o1777)):
                    folder.chmod(mode)
            with said.open("wb") as out:
                # Not through a pipe: the daemon keeps it open, and `run` would wait for that.
                ended = subprocess.run(
                    [control.program(), "-d"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    timeout=control.ANSWER_S,
                    check=False,
                ).returncode
        except OSError as error:
            raise EngineError(f"the MPS daemon of {uuid} cannot be started: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise LaunchTimeout(f"{control.PROGRAM} -d did not return for {uuid} (logs: {logs})") from error
        if ended != 0:
            why = said.read_text(errors="replace").strip() or f"exit code {ended}"
            raise EngineError(f"the MPS daemon of {uuid} did not start: {why} (logs: {logs})")
        deadline = time.monotonic() + control.ANSWER_S
        while control.servers(pipes) is None:
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
    for server in control.servers(pipes) or ():
        with contextlib.suppress(OSError):
            other = Path(f"/proc/{server}").stat().st_uid
            if other != uid and control.clients(pipes, server):
                raise EngineError(
                    f"the MPS server of {client.uuid} serves user {other}: a client of user {uid} would wait "
                    "until those clients are gone; run all partitions of a GPU with one launcher and one user"
                )


def _end_unused(pipes: Path, servers: list[str]) -> bool:
    """End a daemon with these servers, unless a process uses it or is about to; return whether it ended."""
    if any(control.clients(pipes, server) for server in servers):
        return False
    for pid in process_table.pids():
        # A server that loads names the daemon in its environment, as MPS's own processes do.
        if control.variables(pid).get(PIPES) == str(pipes):
            words = (process_table.read_allowed(f"/proc/{pid}/cmdline") or b"").decode(errors="replace")
            if not any(Path(word).name.startswith("nvidia-cuda-mps-") for word in words.split("\0")):
                return False
    with process_table.held(control.daemon_pid(pipes)) as daemon:
        control.ask(pipes, "quit")
        process_table.ends(daemon, control.ANSWER_S)
    return True

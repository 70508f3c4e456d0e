"""What one MPS control daemon says, by NVIDIA's program for it. `pipes` is a daemon's pipe directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from controlplane.domain.errors import EngineError, LaunchTimeout, MissingTool

PROGRAM = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
FAULT = "FAULT"
LACKING = "install the NVIDIA driver's compute tools (package nvidia-compute-utils)"
"""The way to get the program."""
ANSWER_S = 10.0
_PLACES = "/usr/local/nvidia/bin:/usr/bin:/usr/sbin"
"""Folders of a driver's programs that may be missing in PATH, as on hosts that mount their driver."""


def found() -> str | None:
    """Return the path of the program; None where this host has none."""
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path=_PLACES)


def program() -> str:
    """Return the path of the program. Raises MissingTool."""
    path = found()
    if path is None:
        raise MissingTool(f"no {PROGRAM}: {LACKING}")
    return path


def environment(pipes: Path) -> dict[str, str]:
    """Return the environment of a daemon and of what speaks to it.

    Without variables of the caller's: a percentage would be every client's limit, and protocol 3 has other
    commands.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    return {**inherited, PIPES: str(pipes)}


def ask(pipes: Path, question: str, answer_s: float | None = None) -> str:
    """Return the daemon's answer to a command. Raises EngineError without one within `answer_s`."""
    told = _run(pipes, question, answer_s)
    if told.returncode != 0:
        words = (told.stderr or told.stdout).strip() or f"exit code {told.returncode}"
        raise EngineError(f"the MPS daemon in {pipes} did not take {question!r}: {words}")
    return told.stdout


def servers(pipes: Path, answer_s: float | None = None) -> list[str] | None:
    """Return the pids of a daemon's servers; None without a daemon. Raises LaunchTimeout where it hangs."""
    told = _run(pipes, "get_server_list", answer_s) if pipes.is_dir() else None
    return _pids(told.stdout) if told is not None and told.returncode == 0 else None


def clients(pipes: Path, server: str, answer_s: float | None = None) -> list[int]:
    """Return the pids of a server's clients, as its daemon sees them."""
    return [int(pid) for pid in _pids(ask(pipes, f"get_client_list {server}", answer_s))]


def state(pipes: Path, answer_s: float | None = None) -> str:
    """Return the state of a daemon's server: INITIALIZING, ACTIVE, or FAULT after a client's fatal exception.

    Empty without a server, and where its daemon hangs; UNKNOWN from older daemons, which lack the command.
    """
    with contextlib.suppress(EngineError):
        found = servers(pipes, answer_s) or ()
        with contextlib.suppress(EngineError):
            return " ".join(ask(pipes, f"get_server_status {one}", answer_s) for one in found).upper()
        return "UNKNOWN"
    return ""


def owner(pipes: Path) -> int:
    """Return the user of the daemon, or of the one that would be started."""
    with contextlib.suppress(OSError):
        return pipes.stat().st_uid
    return os.getuid()


def daemon_pid(pipes: Path) -> int | None:
    """Return the daemon's pid from its file; None where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int((pipes / f"{PROGRAM}.pid").read_text())
    return None


def daemon_variable(pipes: Path, name: str) -> str | None:
    """Return a variable of the daemon's environment; None where it is unset or cannot be read."""
    pid = daemon_pid(pipes)
    return None if pid is None else variables(pid).get(name)


def variables(pid: int) -> dict[str, str]:
    """Return the environment of a process; empty where it is gone, or not this user's to read."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.partition("=")[::2] for pair in pairs)


def _pids(answer: str) -> list[str]:
    """Return the pids of an answer, a line each; not what it says of a server that has ended meanwhile."""
    return [line.strip() for line in answer.splitlines() if line.strip().isdigit()]


def _run(pipes: Path, question: str, answer_s: float | None) -> subprocess.CompletedProcess[str]:
    limit_s = answer_s or ANSWER_S
    try:
        return subprocess.run(
            [program()],
            input=f"{question}\n",
            env=environment(pipes),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchTimeout(
            f"{PROGRAM} did not answer within {limit_s:g} s: clients of two users wait for each other, "
            "and a faulted client holds up all; echo quit -t 5 | nvidia-cuda-mps-control ends it"
        ) from error

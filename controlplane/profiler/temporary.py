"""Servers that one command starts for itself and stops again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Server, ServerSpec
from controlplane.files.waiting import locked
from controlplane.ports import Launcher


@contextlib.contextmanager
def exclusive(launcher: Launcher, fleet: str, lock_file: Path, busy: str) -> Iterator[None]:
    """Have the fleet for this command alone: nothing of it is left before, and nothing after.

    Raises FleetBusy with the message `busy` where another command has the lock.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)

    def clear() -> None:
        with contextlib.ExitStack() as each:  # what cannot be stopped keeps nothing else from its end
            each.callback(launcher.sweep, fleet)
            for server in launcher.servers(fleet):
                each.callback(launcher.stop, server, drain_s=0)

    with contextlib.ExitStack() as at_end:
        at_end.enter_context(locked(lock_file, 0.0, busy))
        # A signal may come between a server's start and the block that would stop it.
        at_end.callback(to_its_end, clear)
        clear()
        yield


_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/+@%=:,~-]*")


def check_python_path(launcher: Launcher, repository: Path) -> None:
    """Raise InputError for a path from which Triton's Python backend starts no model.

    It passes the path to a shell as it is, and reads it as ASCII. No model starts there, and the deadline
    passes. In a container the path is another one.
    """
    if launcher.name == "process" and not _PLAIN_PATH.fullmatch(str(repository)):
        raise InputError(
            "has a blank, a letter beyond ASCII or a sign of the shell in its path, and Triton's Python "
            "backend starts no model there: move it, or set XDG_STATE_HOME where it is Trisect's own folder",
            file=str(repository),
        )


@contextlib.contextmanager
def running(launcher: Launcher, spec: ServerSpec, *, deadline_s: float) -> Iterator[Server]:
    """Run a server and stop it at the end, at once: its requests have been answered by then."""
    server = launcher.start(spec, deadline_s=deadline_s)
    try:
        yield server
    finally:
        to_its_end(lambda: launcher.stop(server, drain_s=0))


def to_its_end(stop: Callable[[], object]) -> None:
    """Stop what was started, also where Ctrl-C or SIGTERM comes meanwhile: it would outlive this process.

    `stop` may be called twice, the second time for what the first has left.
    """
    try:
        stop()
    except KeyboardInterrupt:
        stop()
        raise

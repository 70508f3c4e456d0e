"""Keep the gateway's processes running.

`python -m controlplane.gateway.supervise STATE_DIR [HTTP_FD GRPC_FD] [--facade HTTP_FD GRPC_FD]`.

It starts what is missing, adopts what lives, and restarts what dies: at once, and waiting longer each time a
process dies young again. Traffic does not pass through it: when it dies, its processes go on, and the facade
starts the next supervisor (`supervision`), which adopts them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from controlplane.domain.errors import GatewayError, TrisectError, Troubles, is_own_lack
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import Restart, append_restart
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.waiting import wait_until
from controlplane.gateway import processes, store
from controlplane.gateway.controller_keeper import ControllerKeeper
from controlplane.gateway.processes import Held, say
from controlplane.gateway.programs import Programs
from controlplane.gateway.running import RuntimeSocket, Unreachable
from controlplane.sockets import ask

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 5.0
_YOUNG_S = 10.0
_LOOKED_AT_S = 0.5
_PATIENT_DEATHS = 8
"""Starts of a facade that end young, over some ten seconds, before requests that wait for it are refused."""
_LOOK_S = 2.0
"""Between two looks for the controller, which is no child, and two tries to renew HAProxy."""
_LACK_S = 0.2
"""Until what this process had no descriptors or memory to start is tried again: that says nothing of it."""
_ANSWER_S = 1.0
_TIDY_EVERY_S = 60.0
_LOG_LIMIT_BYTES = 4 * 2**20


@dataclass(slots=True)
class ManagedProcess:
    """One process to keep running. `handle` is its pidfd, None while it is down or cannot be watched."""

    role: str
    start: Callable[[], subprocess.Popen[bytes]]
    handle: int | None = None
    pid: int | None = None
    child: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    deaths: int = 0
    due_at: float = 0.0


class Supervisor:
    """The loop. `stop` ends it and leaves the processes running."""

    def __init__(self, paths: GatewayPaths, held: Held) -> None:
        self._paths = paths
        self._programs = Programs(paths, held)
        self._managed = [
            ManagedProcess(processes.HAPROXY, self._programs.haproxy),
            ManagedProcess(processes.FACADE, self._programs.facade),
            ManagedProcess(processes.MONITOR, self._programs.monitor),
        ]
        self._held = held
        self._wake_read, self._wake_write = os.pipe()
        self._stopping = False
        self._renewal_due = False
        self._renew_at_s = 0.0
        self._not_renewed = Troubles(lambda why: say(f"{processes.HAPROXY} is not renewed: {why}"))
        self._finishing: dict[int, subprocess.Popen[bytes] | None] = {}
        """pidfd -> child, of replaced HAProxies that still finish their requests."""
        self._controller = ControllerKeeper(FleetFiles(paths.state.parent.parent, paths.state.parent.name))
        self._tidy_at_s = 0.0

    def stop(self) -> None:
        """End the loop; may be called from a signal handler."""
        self._stopping = True
        os.write(self._wake_write, b"x")

    def renew(self) -> None:
        """Have a HAProxy that runs with other settings replaced; may be called from a signal handler."""
        self._renewal_due, self._renew_at_s = True, 0.0
        os.write(self._wake_write, b"x")

    def run(self, *, took_over: bool = False) -> None:
        """Run until `stop`. `took_over`: the supervisor before died."""
        if self._facade_has_sockets():
            return  # the next one takes over
        if took_over:
            self._remember(processes.SUPERVISOR, "died; another one took over")
        for process in self._managed:
            self._adopt(process)
            if took_over and process.handle is None:
                self._remember(process.role, "ended while no supervisor ran; started again")
        self._renewal_due = self._held.clients is not None
        while not self._stopping and not self._facade_has_sockets():
            now = time.monotonic()
            for process in self._managed:
                if process.handle is None and process.due_at <= now:
                    self._start(process)
            if self._renewal_due and self._renew_at_s <= now:
                self._renewal_due, self._renew_at_s = False, now + _LOOK_S
                if not self._renew_haproxy():
                    return
            if (reason := self._controller.look(now)) is not None:
                say(f"controller {reason}")
                self._remember("controller", reason)
            self._await()

    def _adopt(self, process: ManagedProcess) -> None:
        living = processes.find(self._paths, process.role)
        if not living:
            return
        process.started_at = time.monotonic()
        # Of two HAProxies, the one that a newer has replaced answers no more.
        answering = self._programs.answering() if process.role == processes.HAPROXY else None
        process.pid = answering if answering in living else living[0]
        with contextlib.suppress(ProcessLookupError):
            process.handle = os.pidfd_open(process.pid)
        for pid in living if process.role == processes.HAPROXY else ():
            if pid != process.pid:
                with contextlib.suppress(ProcessLookupError):
                    self._finishing[os.pidfd_open(pid)] = None

    def _facade_has_sockets(self) -> bool:
        """Return whether this supervisor has none, and a facade that answers starts one with its own.

        A command or the controller started this one, where the facade had not yet seen that none ran.
        """
        if self._held.descriptors():
            return False
        with contextlib.suppress(GatewayError):
            return "pid" in ask(self._paths.control_socket, {"do": "ping"}, timeout_s=_ANSWER_S)
        return False

    def _renew_haproxy(self) -> bool:
        """Replace a HAProxy that was started from other settings; return False without the sockets for it.

        Both accept connections until the new one listens; the old one ends once its requests have. What
        prevents that now leaves the renewal due.
        """
        process = self._managed[0]
        runtime = RuntimeSocket(self._paths.runtime_socket)
        try:
            held = runtime.variable(store.FINGERPRINT)
            wanted = store.fingerprint(self._paths, store.settings_of(self._paths))
            if held == wanted:
                self._not_renewed.over()
            elif self._held.clients is not None:
                self._replace(process)
                if held != store.WITHOUT_SERVERS:  # which is part of a fleet's first apply
                    self._remember(process.role, "renewed with the settings of the last apply")
            elif self._held.facade is not None:
                self._replace_without_sockets(process)
            else:
                return False  # the facade may hold them, and starts the next supervisor with them
        except Unreachable:
            self._renewal_due = True  # it is being started, with the settings on disk, or stands still
        except (OSError, TrisectError) as error:
            self._not_renewed.met(error)
            self._renewal_due = True
        return True

    def _replace(self, process: ManagedProcess) -> None:
        """Start another HAProxy beside one that then ends. Raises OSError and TrisectError."""
        former, former_child, former_pid = process.handle, process.child, process.pid
        if former is None:
            raise GatewayError("the present one cannot be watched yet")
        child = self._programs.haproxy(replaced=former_pid)
        if child.poll() is not None:
            raise GatewayError(f"the new one {ended(child.wait())}")
        process.child, process.handle, process.started_at = child, None, time.monotonic()
        self._finishing[former] = former_child
        self._start(process)

    def _replace_without_sockets(self, process: ManagedProcess) -> None:
        """Have HAProxy end with its requests, and start the next one where its ports are free.

        Where supervisor and facade had died, it alone has the sockets: for a moment connections are refused.
        """
        if process.handle is None:
            raise GatewayError("the present one cannot be watched yet")
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process.handle, signal.SIGUSR1)
        self._finishing[process.handle] = process.child
        process.handle = process.child = None
        process.due_at = 0.0

    def _start(self, process: ManagedProcess) -> None:
        try:
            if process.child is None:
                process.started_at = time.monotonic()
                process.child = process.start()
            process.pid = process.child.pid
            process.handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._died(process)  # within its start
        except (OSError, TrisectError) as error:
            # One that runs is watched as soon as this process has a descriptor for it.
            if process.child is None and not is_own_lack(error):
                self._died(process, f"does not start: {error}")
            else:
                process.due_at = time.monotonic() + _LACK_S

    def _await(self) -> None:
        handles = {process.handle: process for process in self._managed if process.handle is not None}
        due = [process.due_at for process in self._managed if process.handle is None]
        timeout = min(max(0.0, min(due) - time.monotonic()) if due else _LOOK_S, _LOOK_S)
        ready, _, _ = select.select([*handles, *self._finishing, self._wake_read], [], [], timeout)
        for handle in ready:
            if handle in handles:
                self._died(handles[handle])
            elif handle in self._finishing:
                os.close(handle)
                if (child := self._finishing.pop(handle)) is not None:
                    child.wait()
            else:
                os.read(self._wake_read, 1)
                self._tidy_at_s = 0.0
        if time.monotonic() >= self._tidy_at_s:
            self._tidy_at_s = time.monotonic() + _TIDY_EVERY_S
            self._tidy()

    def _tidy(self) -> None:
        """Trim logs, and serve a renewed certificate."""
        # A Triton warns of each connection to its sockets, and HAProxy's checks make some a second.
        for log in (*map(self._paths.log, processes.ALL), *self._paths.servers_logs()):
            with contextlib.suppress(OSError):
                if log.stat().st_size > _LOG_LIMIT_BYTES:
                    with contextlib.suppress(OSError):  # a full disk: the room is needed more than the lines
                        shutil.copyfile(log, log.with_suffix(".log.1"))
                    # Its process goes on writing to the same file, at its end.
                    os.truncate(log, 0)
        try:
            settings = store.settings_of(self._paths)
            runtime = RuntimeSocket(self._paths.runtime_socket)
            load = partial(runtime.load_certificate, self._paths.certificate)
            if settings.protection.certificate and store.write_certificate(self._paths, settings, load):
                say("the certificate is renewed")
        except (OSError, TrisectError) as error:
            say(f"the certificate is not renewed: {error}")

    def _died(self, process: ManagedProcess, how: str = "") -> None:
        code: int | None = None
        if process.child is not None:
            code = process.child.wait()
            process.child = None
        if process.handle is not None:
            os.close(process.handle)
            process.handle = None
        now = time.monotonic()
        process.deaths = process.deaths + 1 if now - process.started_at < _YOUNG_S else 1
        wait_s = back_off_s(process.deaths)
        process.due_at = now + wait_s
        reason = f"{how or ended(code)}; started again {f'in {wait_s:.2f} s' if wait_s else 'at once'}"
        say(f"{process.role} {reason}")
        self._remember(process.role, reason)
        facade = self._held.facade if process.role == processes.FACADE else None
        if facade is not None and process.deaths > _PATIENT_DEATHS:
            facade.refuse_waiting()

    def _remember(self, role: str, reason: str) -> None:
        """Record a restart for `ctl events`; a full disk prevents no start."""
        with contextlib.suppress(OSError, TrisectError):
            append_restart(self._paths.restarts, Restart(time.time(), role, reason))


def back_off_s(deaths: int) -> float:
    """How long a process stays down that died young this many times in a row: not at all the first time."""
    return 0.0 if deaths <= 1 else min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(deaths - 2, 10))


def ended(code: int | None) -> str:
    """Return how a process ended, in words; None for a process that was no child."""
    if code is None:
        return "ended"
    return f"ended by signal {-code}" if code < 0 else f"ended with {code}"


def _taken(lock: BinaryIO) -> bool:
    """Whether this process has the lock now. Whoever looks whether it is held has it for a moment too."""

    def taken() -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    return wait_until(taken, deadline_s=_LOOKED_AT_S, interval_s=0.01)


def _write_version(lock: BinaryIO) -> None:
    """Write this code's version, unless it is there: a full disk would take back the block that it frees."""
    version = processes.code_version().encode()
    lock.seek(0)
    if lock.read() != version:
        with contextlib.suppress(OSError):
            lock.truncate(0)
            lock.write(version)


def main() -> int:
    """One supervisor a gateway: a second one ends."""
    state, held = Held.inherited(sys.argv[1:])
    paths = GatewayPaths.of(state)
    # Who ends a supervisor on purpose removes its lock first.
    took_over = paths.supervisor_lock.exists()
    supervisor = Supervisor(paths, held)
    # Before it has the lock, since whoever sees that it does may send a signal.
    signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
    signal.signal(signal.SIGINT, lambda *_: supervisor.stop())
    signal.signal(signal.SIGHUP, lambda *_: supervisor.renew())
    try:
        opened = paths.supervisor_lock.open("a+b", buffering=0)
    except OSError:  # the disk became read-only
        opened = paths.supervisor_lock.open("rb", buffering=0)
    with opened as lock:
        if not _taken(lock):
            return 0
        _write_version(lock)
        supervisor.run(took_over=took_over)
    return 0


if __name__ == "__main__":
    sys.exit(main())

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from filelock import FileLock, Timeout

from controlplane.domain.errors import EngineError, TrisectError
from controlplane.files import log_pipe
from controlplane.files.fleets import FleetFiles
from controlplane.files.gateway import Restart, append_restart
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.writing import write_derived
from controlplane.gateway import processes, store, supervision
from controlplane.gateway.controller_keeper import ControllerKeeper
from controlplane.gateway.listeners import Held, Listeners
from controlplane.gateway.processes import say
from controlplane.gateway.runtime_socket import RuntimeSocket, Unreachable
from controlplane.gateway.security import certificate

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 5.0
_YOUNG_S = 10.0
_BIND_DEADLINE_S = 5.0
_FACADE_GRACE_S = 1.0
_LOOKED_AT_S = 0.5
_PATIENT_DEATHS = 8
"""Starts of a facade that end young, over some ten seconds, before requests that wait for it are refused."""
_COMMIT_S = 2.0
"""For a commit to end before HAProxy is started all the same: a stopped command must not prevent a repair."""
_LOOK_S = 2.0
"""Between two looks for the controller, which is no child."""
_TIDY_EVERY_S = 60.0
_FACADES_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "1048576"}
"""For glibc: few arenas, and large blocks return to the kernel when freed."""
_LOG_LIMIT_BYTES = 4 * 2**20


@dataclass(slots=True)
class Charge:
    """One process to keep running. `handle` is its pidfd, None while it is down."""

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
        self._charges = [
            Charge(processes.HAPROXY, self._start_haproxy),
            Charge(processes.FACADE, self._start_facade),
            Charge(processes.MONITOR, self._start_monitor),
        ]
        self._held = held
        # Kept open for the next monitor: lines that come while none runs wait in it.
        self._log: int | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._stopping = False
        self._renewal_due = False
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
        self._renewal_due = True
        os.write(self._wake_write, b"x")

    def run(self, *, took_over: bool = False) -> None:
        """Run until `stop`. `took_over`: the supervisor before died."""
        if took_over:
            self._remember(processes.SUPERVISOR, "died; another one took over")
        for charge in self._charges:
            self._adopt(charge)
            if took_over and charge.handle is None:
                self._remember(charge.role, "ended while no supervisor ran; started again")
        self._renewal_due = self._held.clients is not None
        while not self._stopping:
            now = time.monotonic()
            for charge in self._charges:
                if charge.handle is None and charge.due_at <= now:
                    self._start(charge)
            if self._renewal_due:
                self._renewal_due = False
                if not self._renew_haproxy():
                    return
            if (reason := self._controller.look(now)) is not None:
                say(f"controller {reason}")
                self._remember("controller", reason)
            self._await()

    def _adopt(self, charge: Charge) -> None:
        living = processes.find(self._paths, charge.role)
        if not living:
            return
        charge.started_at = time.monotonic()
        # Of two HAProxies, the one that a newer has replaced answers no more.
        answering = self._answering() if charge.role == processes.HAPROXY else None
        with contextlib.suppress(ProcessLookupError):
            charge.handle = os.pidfd_open(answering if answering in living else living[0])
        charge.pid = answering if answering in living else living[0]
        for pid in living if charge.role == processes.HAPROXY else ():
            if pid != charge.pid:
                with contextlib.suppress(ProcessLookupError):
                    self._finishing[os.pidfd_open(pid)] = None

    def _answering(self) -> int | None:
        with contextlib.suppress(Unreachable):
            return RuntimeSocket(self._paths.runtime_socket).pid()
        return None

    def _renew_haproxy(self) -> bool:
        """Replace a HAProxy that was started from other settings; return False without the sockets for it.

        Both accept connections until the new one listens; the old one ends once its requests have.
        """
        charge = self._charges[0]
        runtime = RuntimeSocket(self._paths.runtime_socket)
        try:
            held = runtime.variable(store.FINGERPRINT)
            wanted = store.fingerprint(self._paths, store.settings_of(self._paths))
        except (Unreachable, TrisectError):
            return True  # it is being started, with the settings on disk
        if charge.handle is None or held == wanted:
            return True
        if self._held.clients is None:
            if self._held.facade is None:
                return False  # the facade may hold them, and starts the next supervisor with them
            self._replace_without_sockets(charge)
            return True
        former, former_child, former_pid = charge.handle, charge.child, charge.pid
        try:
            child = self._start_haproxy(replaced=former_pid)
        except (OSError, TrisectError) as error:
            say(f"{charge.role} is not renewed: {error}")
            return True
        if child.poll() is None:
            charge.child, charge.pid, charge.handle = child, child.pid, os.pidfd_open(child.pid)
            charge.started_at = time.monotonic()
            self._finishing[former] = former_child
            self._remember(charge.role, "renewed with the settings of the last apply")
        else:
            say(f"{charge.role} is not renewed: the new one {ended(child.wait())}")
        return True

    def _replace_without_sockets(self, charge: Charge) -> None:
        """Have HAProxy end with its requests, and start the next one where its ports are free.

        Where supervisor and facade had died, it alone has the sockets: for a moment connections are refused.
        """
        assert charge.handle is not None
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(charge.handle, signal.SIGUSR1)
        self._finishing[charge.handle] = charge.child
        charge.handle = charge.child = None
        charge.due_at = 0.0

    def _start(self, charge: Charge) -> None:
        charge.started_at = time.monotonic()
        try:
            charge.child = charge.start()
            charge.pid = charge.child.pid
            charge.handle = os.pidfd_open(charge.pid)
        except ProcessLookupError:
            self._died(charge)  # within its start
        except (OSError, TrisectError) as error:
            self._died(charge, f"does not start: {error}")

    def _await(self) -> None:
        handles = {charge.handle: charge for charge in self._charges if charge.handle is not None}
        due = [charge.due_at for charge in self._charges if charge.handle is None]
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
        for role in processes.ALL:
            _trim(self._paths.log(role))
        try:
            settings = store.settings_of(self._paths)
            runtime = RuntimeSocket(self._paths.runtime_socket)
            load = partial(certificate.load, runtime, self._paths.certificate)
            if settings.protection.certificate and store.write_certificate(self._paths, settings, load):
                say("the certificate is renewed")
        except (OSError, TrisectError) as error:
            say(f"the certificate is not renewed: {error}")

    def _died(self, charge: Charge, how: str = "") -> None:
        code: int | None = None
        if charge.child is not None:
            code = charge.child.wait()
            charge.child = None
        if charge.handle is not None:
            os.close(charge.handle)
            charge.handle = None
        now = time.monotonic()
        charge.deaths = charge.deaths + 1 if now - charge.started_at < _YOUNG_S else 1
        wait_s = back_off_s(charge.deaths)
        charge.due_at = now + wait_s
        reason = f"{how or ended(code)}; started again {f'in {wait_s:.2f} s' if wait_s else 'at once'}"
        say(f"{charge.role} {reason}")
        self._remember(charge.role, reason)
        facade = self._held.facade if charge.role == processes.FACADE else None
        if facade is not None and charge.deaths > _PATIENT_DEATHS:
            facade.refuse_waiting()

    def _remember(self, role: str, reason: str) -> None:
        """Record a restart for `ctl events`; a full disk prevents no start."""
        with contextlib.suppress(OSError, TrisectError):
            append_restart(self._paths.restarts, Restart(time.time(), role, reason))

    def _start_haproxy(self, replaced: int | None = None) -> subprocess.Popen[bytes]:
        settings = store.settings_of(self._paths)
        if self._held.clients is None:
            if self._held.facade is None:
                # An adopted facade may hold them. Without HAProxy no client reaches it; the next gets these.
                processes.end(processes.find(self._paths, processes.FACADE), grace_s=_FACADE_GRACE_S)
            self._held.clients = Listeners.for_clients(settings)
        # Before HAProxy calls there.
        self._held.facade = self._held.facade or Listeners.for_haproxy(self._paths)
        clients, log_fd = self._held.clients, self._log_pipe()
        finish = () if replaced is None else ("-sf", str(replaced))
        # Under the commit's lock until it listens: it reads three files that belong together.
        with self._no_commit():
            text = store.config(self._paths, settings, clients, log_fd)
            with _in_memory(text) as config:
                # A name, by which `ps` shows whose it is.
                named = ("-L", str(self._paths.state))
                child = processes.spawn(
                    self._paths,
                    processes.HAPROXY,
                    [settings.haproxy, "-db", "-f", f"/dev/fd/{config.fileno()}", *named, *finish],
                    descriptors=(*clients.descriptors(), log_fd, config.fileno()),
                )
            with contextlib.suppress(EngineError):
                write_derived(self._paths.config, text)  # for whoever wants to read it
            deadline = time.monotonic() + _BIND_DEADLINE_S
            while child.poll() is None and time.monotonic() < deadline and self._answering() != child.pid:
                time.sleep(0.01)
        return child

    @contextlib.contextmanager
    def _no_commit(self) -> Iterator[None]:
        """Hold the commit's lock, but wait for it for a moment only: its holder may be stopped.

        A commit that goes on later finds a HAProxy that holds the table on disk, and sends its difference.
        """
        lock = FileLock(self._paths.lock, timeout=_COMMIT_S)
        try:
            lock.acquire()
        except Timeout:
            say(f"{self._paths.lock} is held by a command that stands still; going on")
        except OSError as error:
            say(f"{self._paths.lock} cannot be held ({error}); going on")
        try:
            yield
        finally:
            lock.release()

    def _start_facade(self) -> subprocess.Popen[bytes]:
        self._held.facade = self._held.facade or Listeners.for_haproxy(self._paths)
        command = [sys.executable, "-m", "controlplane.gateway.facade", str(self._paths.state)]
        command += self._held.arguments()
        return processes.spawn(
            self._paths, processes.FACADE, command, _FACADES_ENVIRONMENT, self._held.descriptors()
        )

    def _log_pipe(self) -> int:
        if self._log is None:
            self._log = log_pipe.opened(self._paths.log_pipe)
        return self._log

    def _start_monitor(self) -> subprocess.Popen[bytes]:
        # Known by name only: the monitor's package is beside the gateway's, not below it.
        self._log_pipe()
        return processes.spawn(
            self._paths,
            processes.MONITOR,
            [
                sys.executable,
                *("-m", "controlplane.monitor.collect"),
                *("--settings", str(self._paths.settings)),
                *("--slots", str(self._paths.slots)),
                *("--haproxy", str(self._paths.runtime_socket)),
                *("--listen", str(self._paths.monitor_socket)),
                *("--clients", str(self._paths.clients)),
                *("--certificate", str(self._paths.certificate)),
                *("--audit", str(self._paths.audit)),
                *("--plan", str(self._paths.plan)),
                *("--controller", str(self._paths.controller_socket)),
                *("--exporter", str(self._paths.exporter_socket)),
                *("--log", str(self._paths.log_pipe)),
            ],
        )


def back_off_s(deaths: int) -> float:
    """How long a process stays down that died young this many times in a row: not at all the first time."""
    return 0.0 if deaths <= 1 else min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(deaths - 2, 10))


def ended(code: int | None) -> str:
    """Return how a process ended, in words; None for a process that was no child."""
    if code is None:
        return "ended"
    return f"ended by signal {-code}" if code < 0 else f"ended with {code}"


def _in_memory(text: str) -> BinaryIO:
    """Return a file that is on no disk, so that a full one prevents no start."""
    found = os.fdopen(os.memfd_create("haproxy.cfg"), "w+b", buffering=0)
    found.write(text.encode())
    return found


def _trim(log: Path) -> None:
    with contextlib.suppress(OSError):
        if log.stat().st_size > _LOG_LIMIT_BYTES:
            with contextlib.suppress(OSError):  # a full disk: the room is needed more than the lines
                shutil.copyfile(log, log.with_suffix(".log.1"))
            # Its process goes on writing to the same file, at its end.
            os.truncate(log, 0)


def _taken(lock: BinaryIO) -> bool:
    """Whether this process has the lock now. Whoever looks whether it is held has it for a moment too."""
    deadline = time.monotonic() + _LOOKED_AT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _opened(lock: Path) -> BinaryIO:
    """Open a lock, on a disk that became read-only too."""
    try:
        return lock.open("a+b", buffering=0)
    except OSError:
        return lock.open("rb", buffering=0)


def _write_version(lock: BinaryIO) -> None:
    """Write this code's version, unless it is there: a full disk would take back the block that it frees."""
    version = supervision.version().encode()
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
    with _opened(paths.supervisor_lock) as lock:
        if not _taken(lock):
            return 0
        supervisor = Supervisor(paths, held)

        def stop(_signal: int, _frame: FrameType | None) -> None:
            supervisor.stop()

        def renew(_signal: int, _frame: FrameType | None) -> None:
            supervisor.renew()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, renew)
        _write_version(lock)
        supervisor.run(took_over=took_over)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The programs that the supervisor starts: HAProxy, the facade and the monitor, with what each inherits."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from controlplane.domain.errors import EngineError, GatewayError
from controlplane.files.gateway_paths import GatewayPaths, open_log
from controlplane.files.waiting import locked, wait_until
from controlplane.files.writing import write_derived
from controlplane.gateway import processes, store
from controlplane.gateway.processes import Held, Listeners, say
from controlplane.gateway.running import RuntimeSocket, Unreachable

_BIND_DEADLINE_S = 5.0
_FACADE_GRACE_S = 1.0
_COMMIT_S = 2.0
"""For a commit to end before HAProxy is started all the same: a stopped command must not prevent a repair."""
_FACADES_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "1048576"}
"""For glibc: few arenas, and large blocks return to the kernel when freed."""


class Programs:
    """Starts the programs of one gateway. Raises OSError, TrisectError where one cannot be started."""

    def __init__(self, paths: GatewayPaths, held: Held) -> None:
        self._paths = paths
        self.held = held
        # Kept open for the next monitor: lines that come while none runs wait in it.
        self._log: int | None = None

    def answering(self) -> int | None:
        """Return the pid of the HAProxy that answers; None where none does."""
        with contextlib.suppress(Unreachable):
            return int(RuntimeSocket(self._paths.runtime_socket).info("Pid") or 0) or None
        return None

    def haproxy(self, replaced: int | None = None) -> subprocess.Popen[bytes]:
        """Start HAProxy with the settings and the table on disk; `replaced` ends with its requests."""
        settings = store.settings_of(self._paths)
        if self.held.clients is None:
            if self.held.facade is None:
                # An adopted facade may hold them. Without HAProxy no client reaches it; the next gets these.
                processes.end(processes.find(self._paths, processes.FACADE), grace_s=_FACADE_GRACE_S)
            clients = Listeners.for_clients(settings)
            if not processes.find(self._paths, processes.HAPROXY):
                # Without one no client reaches it. The next facade keeps these for a later supervisor.
                processes.end(processes.find(self._paths, processes.FACADE), grace_s=_FACADE_GRACE_S)
            self.held.clients = clients
        # Before HAProxy calls there.
        self.held.facade = self.held.facade or Listeners.for_haproxy(self._paths)
        clients, log_fd = self.held.clients, self._log_pipe()
        finish = () if replaced is None else ("-sf", str(replaced))
        # Under the commit's lock until it listens: it reads three files that belong together.
        with contextlib.ExitStack() as no_commit:
            try:
                no_commit.enter_context(locked(self._paths.lock, _COMMIT_S))
            except GatewayError as error:
                # A commit that goes on later finds a HAProxy that holds the table on disk, and sends its
                # difference.
                say(f"{error}; HAProxy is started all the same")
            text = store.config(self._paths, settings, clients, log_fd)
            # On no disk, so that a full one prevents no start.
            with os.fdopen(os.memfd_create("haproxy.cfg"), "wb", buffering=0) as config:
                config.write(text.encode())
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
            wait_until(
                lambda: child.poll() is not None or self.answering() == child.pid,
                deadline_s=_BIND_DEADLINE_S,
                interval_s=0.01,
            )
        return child

    def facade(self) -> subprocess.Popen[bytes]:
        """Start the facade, which keeps the sockets for the next supervisor."""
        self.held.facade = self.held.facade or Listeners.for_haproxy(self._paths)
        command = [sys.executable, "-m", "controlplane.gateway.facade", str(self._paths.state)]
        command += self.held.arguments()
        return processes.spawn(
            self._paths, processes.FACADE, command, _FACADES_ENVIRONMENT, self.held.descriptors()
        )

    def _log_pipe(self) -> int:
        if self._log is None:
            self._log = open_log(self._paths.log_pipe)
        return self._log

    def monitor(self) -> subprocess.Popen[bytes]:
        """Start the monitor."""
        # Known by name only: the monitor's package is beside the gateway's, not below it.
        self._log_pipe()
        command = [sys.executable, "-m", "controlplane.monitor.collect", str(self._paths.state)]
        return processes.spawn(self._paths, processes.MONITOR, command)

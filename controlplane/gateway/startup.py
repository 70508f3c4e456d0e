"""Starting the gateway's processes, changing the options of running ones, and ending them."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controlplane.domain.errors import GatewayError, InputError, MissingTool
from controlplane.domain.fleet import GatewayConfig
from controlplane.domain.plan import MOST_SERVERS
from controlplane.files.gateway import FormerFacade, GatewaySettings, write_settings
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.files.reading import exists
from controlplane.files.waiting import locked, wait_until
from controlplane.files.writing import fields_of
from controlplane.gateway import processes, store
from controlplane.gateway.running import RunningHaproxy
from controlplane.gateway.security.certificate import check_exposure
from controlplane.sockets import Unreachable, ask

_START_DEADLINE_S = 60.0
_RELOAD_DEADLINE_S = 2.0
"""A facade that hangs delays a redirect by this long; it goes on reloading afterwards."""
_END_S = 5.0
_SOFT_STOP = signal.SIGUSR1
"""HAProxy stops listening, tells its clients to connect elsewhere, and ends with its last request."""
_POLL_S = 0.01
_WAY_OUT = (
    "write into the spec's section `serve` what `ctl show --fleet` prints, or `ctl destroy` the fleet first"
)
_MORE_PATHS = ("/usr/sbin", "/usr/local/sbin")

_READ_BY_HAPROXY = re.compile(r"[\w./@+:~=-]+")


class Startup:
    """The processes of one gateway."""

    def __init__(self, paths: GatewayPaths) -> None:
        self._paths = paths
        self._haproxy = RunningHaproxy(paths)

    def start(self, wanted: GatewayConfig, endpoints: int) -> None:
        """Have HAProxy, the facade and their supervisor running and answering, with the options wanted."""
        settings = store.settings_of(self._paths) if exists(self._paths.settings) else None
        runs = settings is not None and any(processes.find(self._paths, role) for role in processes.ALL)
        if settings is None or not runs or settings.protection != wanted.protection:
            # One that runs was accepted when it was started, by an earlier version perhaps.
            check_exposure(wanted.host, wanted.protection)
        for path in filter(None, (str(self._paths.state), wanted.protection.client_ca)):
            if not _READ_BY_HAPROXY.fullmatch(path):
                problem = "HAProxy's configuration cannot name a path with a blank, a comma or a quote in it"
                raise InputError(f"{problem}: choose another (of the state: $XDG_STATE_HOME)", file=path)
        slots = store.slot_count(endpoints, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        self._paths.make()
        with locked(self._paths.start_lock):
            if runs and settings is not None:
                self._change(settings, _changed(settings, wanted, slots))
            else:
                if settings is None:
                    # Processes whose files were removed hold the ports, and nothing can reach them any more.
                    self.end()
                self._begin(wanted, slots)

    def finish(self, patience_s: float) -> None:
        """End HAProxy softly: with its last request, after `patience_s` at the latest."""
        # Without its lock and its process, nothing starts HAProxy again.
        self._paths.supervisor_lock.unlink(missing_ok=True)
        processes.end(processes.find(self._paths, processes.SUPERVISOR), grace_s=_END_S)
        running = processes.find(self._paths, processes.HAPROXY)
        processes.end(running, grace_s=patience_s, first=_SOFT_STOP)

    def end(self) -> None:
        """End all processes."""
        # Twice: the facade may just have taken the supervisor for dead and started another one.
        for _ in range(2):
            # Without the lock the supervisor's end does not count as a death.
            self._paths.supervisor_lock.unlink(missing_ok=True)
            for role in processes.ALL:
                processes.end(processes.find(self._paths, role), grace_s=_END_S)

    def _begin(self, wanted: GatewayConfig, slots: int) -> None:
        before = store.settings_of(self._paths) if exists(self._paths.settings) else None
        # The table on disk may use the last of them.
        settings = _new(wanted, slots if before is None else max(slots, before.slots))
        if settings != before:
            self._write(settings)
        processes.start_supervisor(self._paths)
        try:
            self._await_answer()
        except GatewayError:
            self.end()
            raise

    def _change(self, present: GatewaySettings, settings: GatewaySettings) -> None:
        """Replace HAProxy where the settings are others than those it was started from.

        Requests in flight finish on the one before. Where the new one does not start, the settings stay.
        """
        processes.replace_outdated_supervisor(self._paths)
        if settings != present:
            self._write(settings)
        if not processes.find(self._paths, processes.SUPERVISOR):
            processes.start_supervisor(self._paths)
        try:
            self._await_answer()
            if settings.former is not None:
                tell_facade(self._paths)
            self._await_renewed(settings)
            self._await_answer()  # the facade may have been started again, to hold new sockets
            tell_facade(self._paths)
        except GatewayError:
            if settings != present:
                former = FormerFacade(tokens=settings.protection.tokens)
                self._write(replace(present, former=former))
                tell_facade(self._paths)
                processes.wake_supervisor(self._paths)
            raise
        if settings.former is not None:
            self._write(replace(settings, former=None))
            tell_facade(self._paths)
        if settings.former is not None or settings.trace_endpoint != present.trace_endpoint:
            # It reads certificates, tokens, audit and collector at its start; the log's lines wait for it.
            processes.end(processes.find(self._paths, processes.MONITOR), grace_s=_RELOAD_DEADLINE_S)
            self._await_answer()

    def _write(self, settings: GatewaySettings) -> None:
        with locked(self._paths.lock):
            write_settings(self._paths.settings, settings)

    def _await_answer(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(Unreachable):
                return (
                    self._haproxy.generation() is not None
                    and bool(ask(self._paths.control_socket, {"do": "ping"}))
                    and self._paths.monitor_socket.exists()
                )
            return False

        wait(self._paths, answers, _START_DEADLINE_S, "the gateway to answer")

    def _await_renewed(self, settings: GatewaySettings) -> None:
        """Return once the running HAProxy has these settings, and those before it with servers have ended.

        Servers that this HAProxy does not lead to may be stopped then: no earlier one does either.
        """
        wanted = store.fingerprint(self._paths, settings)
        if self._haproxy.fingerprint() != wanted or settings.protection.certificate:
            processes.wake_supervisor(self._paths)
        wait(
            self._paths,
            lambda: self._haproxy.fingerprint() == wanted,
            _START_DEADLINE_S,
            "HAProxy with the new settings",
        )
        without_servers = self._haproxy.without_servers()
        wait(
            self._paths,
            lambda: len(set(processes.find(self._paths, processes.HAPROXY)) - without_servers) == 1,
            _START_DEADLINE_S,
            "requests of the HAProxy before",
        )


def tell_facade(paths: GatewayPaths) -> None:
    """Have the facade read routes and settings again; one of an earlier version is started again."""
    try:
        answer = ask(paths.control_socket, {"do": "reload"}, timeout_s=_RELOAD_DEADLINE_S)
    except Unreachable:
        return
    if "error" in answer:
        # A facade from before an upgrade cannot read this table. The supervisor starts the present ones.
        for role in (processes.FACADE, processes.MONITOR):
            processes.end(processes.find(paths, role), grace_s=_RELOAD_DEADLINE_S)


def wait(paths: GatewayPaths, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Return once a condition holds. Raises GatewayError with the last line of a log."""
    if wait_until(condition, deadline_s=deadline_s, interval_s=_POLL_S):
        return
    problem = f"waited {deadline_s:g} s for {what}"
    for role in (processes.HAPROXY, processes.FACADE, processes.SUPERVISOR):
        log = paths.log(role)
        if log.exists() and (lines := log.read_text(errors="replace").splitlines()):
            raise GatewayError(f"{problem}; {role} said: {lines[-1]}")
    raise GatewayError(problem)


def _new(options: GatewayConfig, slots: int) -> GatewaySettings:
    """Return the settings of a gateway that does not run.

    Raises GatewayError for a port in use, MissingTool.
    """
    ports = (("HTTP", options.http_port), ("gRPC", options.grpc_port), ("metrics", options.metrics_port))
    for name, port in ports:
        try:
            processes.listen(options.host, port).close()
        except OSError as error:
            raise GatewayError(
                f"port {port} ({name}) on {options.host} cannot be used: {error.strerror}; "
                "free it or choose another one"
            ) from error
    return GatewaySettings(**_options(options), slots=slots, members=MOST_SERVERS, haproxy=haproxy_program())


def _options(options: GatewayConfig) -> dict[str, Any]:
    found = fields_of(options)
    del found["overtake_ms"]  # of the files that the controller writes
    return found


def _changed(present: GatewaySettings, options: GatewayConfig, slots: int) -> GatewaySettings:
    """Return a running gateway's settings with these options.

    While its HAProxy is replaced, the facade serves the earlier one by its own rules. Raises GatewayError for
    options that cannot change while it runs.
    """
    wanted = (options.host, options.http_port, options.grpc_port, options.metrics_port)
    if (present.host, present.http_port, present.grpc_port, present.metrics_port) != wanted:
        raise GatewayError(
            f"this fleet's gateway listens on {present.host}:{present.http_port} (HTTP), "
            f":{present.grpc_port} (gRPC) and :{present.metrics_port} (metrics), and does not "
            f"move: {_WAY_OUT}"
        )
    if present.fleet_wide_calls != options.fleet_wide_calls:
        raise GatewayError(
            f"this fleet's gateway runs with{'' if present.fleet_wide_calls else 'out'} fleet-wide calls, "
            f"which cannot change while it runs: {_WAY_OUT}"
        )
    # `former` is perhaps of a change that was interrupted: its HAProxy may still run.
    unchanged = present.protection == options.protection
    return replace(
        present,
        **_options(options),
        slots=max(present.slots, slots),
        former=present.former if unchanged else FormerFacade(present.protection.tokens),
    )


def haproxy_program() -> str:
    """Return the program's path. Raises MissingTool."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), *_MORE_PATHS))
    found = shutil.which("haproxy", path=search)
    if found is None:
        raise MissingTool("HAProxy is not installed; install it with `apt-get install haproxy`")
    return found

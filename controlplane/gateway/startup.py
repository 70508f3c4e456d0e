"""Starting the gateway's processes, changing the options of running ones, and ending them."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import Endpoints
from controlplane.files.gateway import FormerFacade, GatewaySettings, write_settings
from controlplane.gateway import control_socket, options, processes, store, supervision
from controlplane.gateway.locks import locked
from controlplane.gateway.places import Places
from controlplane.gateway.running import RunningHaproxy
from controlplane.gateway.security import exposure

_START_DEADLINE_S = 60.0
_RELOAD_DEADLINE_S = 2.0
"""A facade that hangs delays a redirect by this long; it goes on reloading afterwards."""
_END_S = 5.0
_SOFT_STOP = signal.SIGUSR1
"""HAProxy stops listening, tells its clients to connect elsewhere, and ends with its last request."""
_POLL_S = 0.01


class Startup:
    """The processes of one gateway."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._haproxy = RunningHaproxy(places)

    def start(self, wanted: Endpoints, endpoints: int) -> None:
        """Have HAProxy, the facade and their supervisor running and answering, with the options wanted."""
        settings = store.settings_of(self._places) if self._places.settings.exists() else None
        runs = settings is not None and self.runs()
        if settings is None or not runs or settings.protection != wanted.protection:
            # One that runs was accepted when it was started, by an earlier version perhaps.
            exposure.check(wanted.host, wanted.protection)
        self._places.make()
        with locked(self._places.start_lock):
            if runs and settings is not None:
                self._change(settings, options.changed(settings, wanted, options.slot_count(endpoints)))
            else:
                if settings is None:
                    # Processes whose files were removed hold the ports, and nothing can reach them any more.
                    self.end()
                self._begin(wanted, endpoints)

    def runs(self) -> bool:
        """Whether any process of the gateway lives."""
        return any(processes.find(self._places, role) for role in processes.ALL)

    def finish(self, patience_s: float) -> None:
        """End HAProxy softly: with its last request, after `patience_s` at the latest."""
        # Without its lock and its process, nothing starts HAProxy again.
        self._places.supervisor_lock.unlink(missing_ok=True)
        processes.end(processes.find(self._places, processes.SUPERVISOR), grace_s=_END_S)
        running = processes.find(self._places, processes.HAPROXY)
        processes.end(running, grace_s=patience_s, first=_SOFT_STOP)

    def end(self) -> None:
        """End all processes."""
        # Twice: the facade may just have taken the supervisor for dead and started another one.
        for _ in range(2):
            # Without the lock the supervisor's end does not count as a death.
            self._places.supervisor_lock.unlink(missing_ok=True)
            for role in processes.ALL:
                processes.end(processes.find(self._places, role), grace_s=_END_S)

    def _begin(self, wanted: Endpoints, endpoints: int) -> None:
        slots = options.slot_count(endpoints)
        if self._places.settings.exists():
            # The table on disk may use the last of them.
            slots = max(slots, store.settings_of(self._places).slots)
        settings = options.new(wanted, slots)
        if not self._places.settings.exists() or store.settings_of(self._places) != settings:
            self._write(settings)
        supervision.start(self._places)
        try:
            self._await_answer()
        except GatewayError:
            self.end()
            raise

    def _change(self, present: GatewaySettings, settings: GatewaySettings) -> None:
        """Replace HAProxy where the settings are others than those it was started from.

        Requests in flight finish on the one before. Where the new one does not start, the settings stay.
        """
        supervision.replace_outdated(self._places)
        if settings != present:
            self._write(settings)
        if not processes.find(self._places, processes.SUPERVISOR):
            supervision.start(self._places)
        try:
            self._await_answer()
            if settings.former is not None:
                self._renew_facade()
            self._await_renewed(settings)
            self._renew_facade()
        except GatewayError:
            if settings != present:
                former = FormerFacade(tokens=settings.protection.tokens)
                self._write(replace(present, former=former))
                self._renew_facade()
                supervision.wake(self._places)
            raise
        if settings.former is not None:
            self._write(replace(settings, former=None))
            self._renew_facade()
        if settings.former is not None or settings.trace_endpoint != present.trace_endpoint:
            # It reads certificates, tokens, audit and collector at its start; the log's lines wait for it.
            processes.end(processes.find(self._places, processes.MONITOR), grace_s=_RELOAD_DEADLINE_S)
            self._await_answer()

    def _renew_facade(self) -> None:
        """Have the facade read the settings; replace one of an earlier version, which listens elsewhere."""
        with contextlib.suppress(control_socket.Unreachable):
            answer = control_socket.ask(
                self._places.control_socket, {"do": "reload"}, timeout_s=_RELOAD_DEADLINE_S
            )
            if answer.get("sockets") is not True:
                _end_facade_and_monitor(self._places)
                self._await_answer()

    def _write(self, settings: GatewaySettings) -> None:
        with locked(self._places.lock):
            write_settings(self._places.settings, settings)

    def _await_answer(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(control_socket.Unreachable):
                return (
                    self._haproxy.generation() is not None
                    and bool(control_socket.ask(self._places.control_socket, {"do": "ping"}))
                    and self._places.monitor_socket.exists()
                )
            return False

        wait(self._places, answers, _START_DEADLINE_S, "the gateway to answer")

    def _await_renewed(self, settings: GatewaySettings) -> None:
        """Return once the running HAProxy has these settings, and those before it have ended.

        Servers that this HAProxy does not lead to may be stopped then: no earlier one does either.
        """
        wanted = store.fingerprint(self._places, settings)
        if self._haproxy.fingerprint() != wanted or settings.protection.certificate:
            supervision.wake(self._places)
        wait(
            self._places,
            lambda: self._haproxy.fingerprint() == wanted,
            _START_DEADLINE_S,
            "HAProxy with the new settings",
        )
        wait(
            self._places,
            lambda: len(processes.find(self._places, processes.HAPROXY)) == 1,
            _START_DEADLINE_S,
            "requests of the HAProxy before",
        )


def tell_facade(places: Places) -> None:
    """Have the facade read routes and settings again; one of an earlier version is started again."""
    try:
        answer = control_socket.ask(places.control_socket, {"do": "reload"}, timeout_s=_RELOAD_DEADLINE_S)
    except control_socket.Unreachable:
        return
    if "error" in answer:
        # A facade from before an upgrade cannot read this table.
        _end_facade_and_monitor(places)


def _end_facade_and_monitor(places: Places) -> None:
    """End those of an earlier version. The supervisor starts the present ones."""
    for role in (processes.FACADE, processes.MONITOR):
        processes.end(processes.find(places, role), grace_s=_RELOAD_DEADLINE_S)


def wait(places: Places, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Return once a condition holds. Raises GatewayError with the last line of a log."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise GatewayError(f"waited {deadline_s:g} s for {what}{_last_words(places)}")
        time.sleep(_POLL_S)


def _last_words(places: Places) -> str:
    for role in (processes.HAPROXY, processes.FACADE, processes.SUPERVISOR):
        log = places.log(role)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        if lines:
            return f"; {role} said: {lines[-1]}"
    return ""

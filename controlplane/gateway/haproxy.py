"""The gateway behind the port `Gateway`: HAProxy for the requests, the facade for the fleet's own calls."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from controlplane.domain.errors import GatewayError, MissingTool
from controlplane.domain.fleet import Backend, Protection, Routes
from controlplane.domain.plan import MOST_SERVERS
from controlplane.files.gateway import GatewaySettings, ProtectionFields, Traits, write_settings
from controlplane.files.remembered import Remembered
from controlplane.gateway import control_socket, processes, slots, store, supervision
from controlplane.gateway.listeners import listen
from controlplane.gateway.places import Places
from controlplane.gateway.runtime_socket import RuntimeSocket, Sessions, Unreachable
from controlplane.gateway.security import exposure
from controlplane.gateway.slots import BACKUP, PLAIN, PROTOCOLS, Phase, Slot, SlotTable
from controlplane.gateway.traits import traits_of

_START_DEADLINE_S = 60.0
_RESTART_DEADLINE_S = 10.0
_LOCK_DEADLINE_S = 30.0
_RELOAD_DEADLINE_S = 2.0
"""A facade that hangs delays a redirect by this long; it goes on reloading afterwards."""
_NEW_MODEL_S = 10.0
_KNOWN_MODEL_S = 1.0
_OPEN_DEADLINE_S = 1.0
"""The controller queries this in every cycle."""
_END_S = 5.0
_SOFT_STOP = signal.SIGUSR1
"""HAProxy stops listening, tells its clients to connect elsewhere, and ends with its last request."""
_POLL_S = 0.01
_UNFINISHED = -1
_SECRET_BYTES = 8
_OWN_PORTS = range(18000, 20000)
"""Launchers give servers those from 20000 on."""
_MORE_PATHS = ("/usr/sbin", "/usr/local/sbin")


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports where a single Triton would listen."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


class HaproxyGateway:
    """One gateway; `state_dir` is its own. Any number of these objects may share one running gateway.

    Commits from several processes are put in order by a lock, and every one of them sees the whole table.
    """

    def __init__(
        self,
        state_dir: Path,
        ports: Ports | None = None,
        host: str = "127.0.0.1",
        *,
        compress_answers: bool = False,
        fleet_wide_calls: bool = False,
        protection: Protection | None = None,
    ) -> None:
        self._places = Places.of(state_dir)
        self._ports = ports or Ports()
        self._host = host
        self._compress_answers = compress_answers
        self._fleet_wide_calls = fleet_wide_calls
        self._protection = protection or Protection()
        self._runtime = RuntimeSocket(self._places.runtime_socket)
        self._lock = FileLock(self._places.lock, timeout=_LOCK_DEADLINE_S)
        self._table = Remembered(self._places.slots, self._read_table)
        self._routes = Remembered(self._places.slots, lambda: self._table.get().routes())

    def start(self, endpoints: int = 0) -> None:
        """Have HAProxy, the facade and their supervisor running and answering, with the routes on disk.

        It has slots for so many endpoints to move at once afterwards. Raises MissingTool without HAProxy;
        GatewayError where a port is taken (named), where this gateway already listens elsewhere, and where
        the host's limit of open files allows too few slots.
        """
        program = _haproxy()
        if not self._runs():
            # One that runs was accepted when it was started, by an earlier version perhaps.
            exposure.check(self._host, self._protection)
        self._places.make()
        with _locked(FileLock(self._places.start_lock, timeout=_LOCK_DEADLINE_S)):
            wanted = (self._host, self._ports.http, self._ports.grpc, self._ports.metrics)
            running = self._runs()
            slot_count = _slot_count(endpoints)
            if self._places.settings.exists() and running:
                present = store.settings_of(self._places)
                if (present.host, present.http_port, present.grpc_port, present.metrics_port) != wanted:
                    raise GatewayError(
                        f"this fleet's gateway listens on {present.host}:{present.http_port} (HTTP), "
                        f":{present.grpc_port} (gRPC) and :{present.metrics_port} (metrics), and does not "
                        "move: leave --host, --http-port, --grpc-port and --metrics-port out, or "
                        "`ctl destroy` the fleet first"
                    )
                _refuse_another("compress-answers", present.compress_answers, self._compress_answers)
                _refuse_another("fleet-wide-calls", present.fleet_wide_calls, self._fleet_wide_calls)
                if present.protection.value() != self._protection:
                    raise GatewayError(
                        "this fleet's gateway runs with other certificate files, tokens or audit, which "
                        "cannot change while it runs: leave these options out, or `ctl destroy` the fleet "
                        "first"
                    )
                supervision.replace_outdated(self._places)
                if slot_count > present.slots:
                    settings = present.model_copy(update={"slots": slot_count})
                    with _locked(self._lock):
                        write_settings(self._places.settings, settings)
            else:
                _refuse_taken(self._host, self._ports)
                if self._places.settings.exists():
                    # The table on disk may use the last of them.
                    slot_count = max(slot_count, store.settings_of(self._places).slots)
                log_port, facade_http_port, facade_grpc_port = _own_ports()
                settings = GatewaySettings(
                    host=self._host,
                    http_port=self._ports.http,
                    grpc_port=self._ports.grpc,
                    metrics_port=self._ports.metrics,
                    log_port=log_port,
                    facade_http_port=facade_http_port,
                    facade_grpc_port=facade_grpc_port,
                    slots=slot_count,
                    members=MOST_SERVERS,
                    haproxy=program,
                    compress_answers=self._compress_answers,
                    fleet_wide_calls=self._fleet_wide_calls,
                    log_secret=secrets.token_hex(_SECRET_BYTES),
                    facade_secret=secrets.token_hex(_SECRET_BYTES),
                    protection=ProtectionFields(**asdict(self._protection)),
                )
                with _locked(self._lock):
                    write_settings(self._places.settings, settings)
            if not processes.find(self._places, processes.SUPERVISOR):
                supervision.start(self._places)
            try:
                self._await_answer()
                self._await_slots()
                if self._protection.certificate:
                    supervision.wake(self._places)
            except GatewayError:
                if not running:
                    self._end_processes()
                raise
        self._finish_commit()

    def _runs(self) -> bool:
        return any(processes.find(self._places, role) for role in processes.ALL)

    def routes(self) -> Routes:
        """Return the present routes."""
        if not self._places.settings.exists():
            return {}
        return self._routes.get()

    def _read_table(self) -> SlotTable:
        return store.load(self._places, store.settings_of(self._places))[1]

    def commit(self, routes: Routes) -> None:
        """Make exactly `routes` routable in one step.

        The files are written first: where HAProxy is just being restarted, it starts with the new routes.
        Raises GatewayError where a route does not fit or the gateway does not run. Where slots are short, it
        raises one after it has changed as many routes as it could, of dead servers first.
        """
        if not self._places.settings.exists():
            raise GatewayError("the gateway does not run; start it before routes are committed")
        settings = store.settings_of(self._places)
        with _locked(self._lock):
            generation, table = store.load(self._places, settings)
            reached = self._held_generation()
            freed = slots.release(table, self._idle(table) if reached is not None else _all(table))
            fresh, unknown = slots.fresh(freed.table, routes), slots.unknown(freed.table, routes)
            known = {
                e: self._traits(table, e, routes[e].members) if e in unknown else table.traits(e) or PLAIN
                for e in fresh
            }
            change = slots.assign(freed.table, routes, known)
            if change.left and reached is not None:
                change = slots.assign(freed.table, routes, known, first=self._without_server(freed.table))
            target = generation + 1
            store.save(self._places, target, change.table)
            self._tell_facade()
            if reached is not None:
                if reached == generation:
                    self._apply(replace(change, before=(*freed.before, *change.before)), target)
                else:
                    self._apply(slots.restate(change.table), target)
        if reached is None:
            self._await(
                lambda: (self._held_generation() or 0) >= target, _RESTART_DEADLINE_S, "HAProxy to come back"
            )
        if change.left:
            some = ", ".join(change.left[:5]) + (", ..." if len(change.left) > 5 else "")
            raise GatewayError(
                f"all {len(change.table.slots)} slots are in use: {len(change.left)} endpoints keep their "
                f"present servers ({some}); commit again when requests in flight have ended"
            )

    def _without_server(self, table: SlotTable) -> set[str]:
        """Return the endpoints whose members HAProxy takes for dead."""
        active = [slot for slot in table.slots if slot.phase is Phase.ACTIVE]
        sessions = self._runtime.sessions(_backends(active))
        return {
            slot.endpoint
            for slot in active
            if slot.endpoint is not None
            and not any(sessions[f"h_{slot.index}", line].up for line in slot.servers() if line != BACKUP)
        }

    def _traits(self, table: SlotTable, endpoint: str, members: Sequence[Backend]) -> Traits:
        """Query the model: briefly in a redirect, which can use what was known; longer for a new model."""
        before = table.traits(endpoint)
        patience_s = _NEW_MODEL_S if before is None else _KNOWN_MODEL_S
        return traits_of(endpoint, members, patience_s=patience_s) or before or PLAIN

    def _finish_commit(self) -> None:
        """Bring HAProxy to the table on disk, if a commit died between the two."""
        with _locked(self._lock):
            generation, table = store.load(self._places, store.settings_of(self._places))
            if self._held_generation() not in (None, generation):
                self._tell_facade()
                self._apply(slots.restate(table), generation)

    def _tell_facade(self) -> None:
        try:
            answer = control_socket.ask(
                self._places.control_socket, {"do": "reload"}, timeout_s=_RELOAD_DEADLINE_S
            )
        except control_socket.Unreachable:
            return
        if "error" in answer:
            # A facade from before an upgrade cannot read this table. The supervisor starts the present one.
            for role in (processes.FACADE, processes.MONITOR):
                processes.end(processes.find(self._places, role), grace_s=_RELOAD_DEADLINE_S)

    def in_flight(self, backend: Backend) -> int:
        """Return the requests that a server has not answered: HAProxy's on all its slots, and the facade's.

        Raises GatewayError if one of the two runs and does not answer.
        """
        if not self._places.settings.exists():
            return 0
        leading = [slot for slot in self._table.get().slots if backend in slot.servers().values()]
        sessions = self._runtime.sessions(_backends(leading))
        count = 0
        for slot in leading:
            lines = [name for name, member in slot.servers().items() if member == backend]
            for protocol in PROTOCOLS if lines else ():
                count += _owed(sessions, f"{protocol}_{slot.index}", lines)
        try:
            opened = control_socket.ask(
                self._places.control_socket, {"do": "open"}, timeout_s=_OPEN_DEADLINE_S
            )
            count += int(opened.get(backend.server, 0))
        except control_socket.Silent:
            raise
        except control_socket.Unreachable:
            pass  # its calls ended with it
        return count

    @property
    def telemetry_socket(self) -> Path:
        """The socket of this gateway's monitor (`controlplane.monitor.telemetry`)."""
        return self._places.monitor_socket

    def finish(self, patience_s: float) -> None:
        """Stop listening, and return once all requests have ended, or after `patience_s` without them."""
        if not self._places.state.exists():
            return
        with _locked(FileLock(self._places.start_lock, timeout=_LOCK_DEADLINE_S)):
            # Without its lock and its process, nothing starts HAProxy again.
            self._places.supervisor_lock.unlink(missing_ok=True)
            processes.end(processes.find(self._places, processes.SUPERVISOR), grace_s=_END_S)
            running = processes.find(self._places, processes.HAPROXY)
            processes.end(running, grace_s=patience_s, first=_SOFT_STOP)

    def stop(self) -> None:
        """End the supervisor, then its processes, and remove the gateway's files and sockets. Idempotent."""
        if not self._places.state.exists():
            return
        with _locked(FileLock(self._places.start_lock, timeout=_LOCK_DEADLINE_S)):
            self._end_processes()
        for directory in {self._places.sockets, self._places.state}:
            shutil.rmtree(directory, ignore_errors=True)

    def _end_processes(self) -> None:
        # Twice: the facade may just have taken the supervisor for dead and started another one.
        for _ in range(2):
            # Without the lock the supervisor's end does not count as a death.
            self._places.supervisor_lock.unlink(missing_ok=True)
            for role in processes.ALL:
                processes.end(processes.find(self._places, role), grace_s=_END_S)

    def _await_answer(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(control_socket.Unreachable):
                return (
                    self._held_generation() is not None
                    and bool(control_socket.ask(self._places.control_socket, {"do": "ping"}))
                    and self._places.monitor_socket.exists()
                )
            return False

        self._await(answers, _START_DEADLINE_S, "the gateway to answer")

    def _await_slots(self) -> None:
        """Return once the running HAProxy has the slots that are set, and those before it have ended.

        Servers that this HAProxy does not lead to may be stopped then: no earlier one does either.
        """
        wanted = str(store.settings_of(self._places).slots)
        if self._held(store.COUNT) != wanted:
            supervision.wake(self._places)
            self._await(
                lambda: self._held(store.COUNT) == wanted, _START_DEADLINE_S, "HAProxy with more slots"
            )
        self._await(
            lambda: len(processes.find(self._places, processes.HAPROXY)) == 1,
            _START_DEADLINE_S,
            "requests of the HAProxy before",
        )

    def _await(self, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
        deadline = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > deadline:
                raise GatewayError(f"waited {deadline_s:g} s for {what}{self._last_words()}")
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        for role in (processes.HAPROXY, processes.FACADE, processes.SUPERVISOR):
            log = self._places.log(role)
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            if lines:
                return f"; {role} said: {lines[-1]}"
        return ""

    def _held_generation(self) -> int | None:
        """The table that the running HAProxy holds; None where none answers."""
        held = self._held(store.GENERATION)
        return None if held is None else int(held or _UNFINISHED)

    def _held(self, key: str) -> str | None:
        """Return what the running HAProxy holds, empty where it holds nothing; None where none answers."""
        try:
            return self._runtime.map_value(self._places.checks_map, key) or ""
        except Unreachable:
            return None

    def _apply(self, change: slots.Change, generation: int) -> None:
        # The generation comes last: after an interruption before it, every slot is restated.
        checks = self._places.checks_map
        self._runtime.replace_map(checks, store.check_entries(_UNFINISHED, change.table))
        self._runtime.run(change.before)
        self._runtime.replace_map(self._places.models_map, change.table.model_map())
        self._runtime.run((*change.after, f"set map {checks} {store.GENERATION} {generation}"))

    def _idle(self, table: SlotTable) -> set[int]:
        draining = [slot for slot in table.slots if slot.phase is Phase.DRAINING]
        sessions = self._runtime.sessions(_backends(draining))
        return {
            slot.index
            for slot in draining
            if not any(
                sessions[f"{protocol}_{slot.index}", "BACKEND"].current
                or sessions[f"{protocol}_{slot.index}", "BACKEND"].queued
                for protocol in PROTOCOLS
            )
        }


def _slot_count(endpoints: int) -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = store.slot_count(limit, MOST_SERVERS, endpoints)
    if count < 2 * endpoints:
        needed = store.descriptors(2 * endpoints, MOST_SERVERS)
        raise GatewayError(
            f"{endpoints} endpoints need {2 * endpoints} slots to move all at once, but {limit} open files "
            f"allow {count}; raise the hard limit (ulimit -Hn) to {needed}"
        )
    return count


def _refuse_another(option: str, present: bool, wanted: bool) -> None:
    if present != wanted:
        raise GatewayError(
            f"this fleet's gateway runs with --{'' if present else 'no-'}{option}, which cannot change while "
            f"it runs: leave --{option} and --no-{option} out, or `ctl destroy` the fleet first"
        )


def _backends(those: Iterable[Slot]) -> list[str]:
    return [f"{protocol}_{slot.index}" for slot in those for protocol in PROTOCOLS]


def _all(table: SlotTable) -> set[int]:
    return {slot.index for slot in table.slots}


def _owed(sessions: Mapping[tuple[str, str], Sessions], backend: str, lines: list[str]) -> int:
    """Return the requests on these lines, and those of the backend without a line yet."""
    whole = sessions[backend, "BACKEND"]
    given = sum(s.current for (b, line), s in sessions.items() if b == backend and line != "BACKEND")
    here = sum(sessions[backend, line].current + sessions[backend, line].queued for line in lines)
    return here + whole.queued + max(0, whole.current - given)


def _haproxy() -> str:
    """The program. Raises MissingTool."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), *_MORE_PATHS))
    found = shutil.which("haproxy", path=search)
    if found is None:
        raise MissingTool("HAProxy is not installed; install it with `apt-get install haproxy`")
    return found


def _own_ports() -> tuple[int, int, int]:
    """One for the log (UDP) and two for the facade (TCP).

    Below the range that outgoing connections use: a port must still be there after a restart.
    """
    kinds = (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_STREAM)
    found: list[int] = []
    for port in random.sample(_OWN_PORTS, len(_OWN_PORTS)):
        with socket.socket(socket.AF_INET, kinds[len(found)]) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == len(kinds):
            return found[0], found[1], found[2]
    raise GatewayError(f"no free port between {_OWN_PORTS.start} and {_OWN_PORTS.stop}")


def _refuse_taken(host: str, ports: Ports) -> None:
    for name, port in (("HTTP", ports.http), ("gRPC", ports.grpc), ("metrics", ports.metrics)):
        try:
            listen(host, port).close()
        except OSError as error:
            raise GatewayError(
                f"port {port} ({name}) on {host} cannot be used: {error.strerror}; "
                "free it or choose another one"
            ) from error


@contextlib.contextmanager
def _locked(lock: FileLock) -> Iterator[None]:
    try:
        lock.acquire()
    except Timeout as error:
        raise GatewayError(f"another command holds {lock.lock_file}; try again when it has ended") from error
    except OSError as error:
        raise GatewayError(f"{lock.lock_file}: cannot be held: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()

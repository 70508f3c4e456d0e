"""The running HAProxy: its runtime interface, the table and settings it holds, its sessions, its slots."""

from __future__ import annotations

import contextlib
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import NOTHING_IN_FLIGHT, Backend, InFlight
from controlplane.domain.serving import Order
from controlplane.files.gateway_paths import GatewayPaths
from controlplane.gateway import slots, store
from controlplane.gateway.slots import PROTOCOLS, Phase, Slot, SlotTable
from controlplane.render.haproxy import is_backup

_UNFINISHED = -1
_LINE_LIMIT = 8192
"""Bytes of commands sent at once; HAProxy takes one buffer (tune.bufsize)."""
_BACKEND, _SERVER, _QUEUED, _CURRENT, _STATUS = 0, 1, 2, 4, 17
"""Columns of `show stat`, of some 120: HAProxy's management guide, 9.1. None before has a comma in it."""

_FINE = re.compile(
    r"^(New server registered|Already exists a server with the same name|Server deleted|No such server"
    r"|Server still has connections|New version created:)"
)
"""HAProxy's answers to a successful command, and to one that has nothing to do; most have none."""


class Unreachable(GatewayError):
    """HAProxy does not answer on its runtime socket: it is being restarted, or gone."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Requests on a backend or a server now, requests that wait for it, and whether it takes any."""

    current: int
    queued: int
    up: bool = True


class RuntimeSocket:
    """A client that opens the socket for each command, so a restarted HAProxy is found at once."""

    def __init__(self, path: Path, *, timeout_s: float = 5.0) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def ask(self, command: str) -> str:
        """The answer to one command. Raises Unreachable."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
                stream.settimeout(self._timeout_s)
                stream.connect(str(self._path))
                stream.sendall(command.encode() + b"\n")
                answer = bytearray()
                while part := stream.recv(65536):
                    answer += part
        except OSError as error:
            raise Unreachable(f"HAProxy does not answer on {self._path}: {error}") from error
        if not answer:
            # Even a command without an answer has an empty line.
            raise Unreachable(f"HAProxy ended before it answered on {self._path}")
        return answer.decode()

    def info(self, name: str) -> str:
        """Return what the process says of itself, empty where it does not. Raises Unreachable."""
        return self._found(rf"^{name}: (.*)", "show info") or ""

    def _found(self, pattern: str, command: str) -> str | None:
        found = re.search(pattern, self.ask(command), re.MULTILINE)
        return None if found is None else found.group(1)

    def run(self, commands: Sequence[str]) -> None:
        """Run commands in order. Raises GatewayError with HAProxy's words where one is refused."""
        for part in _parts(commands):
            self._run_line(";".join(part))

    def _run_line(self, line: str) -> None:
        for said in self.ask(line).splitlines():
            if said and not _FINE.match(said):
                raise GatewayError(f"HAProxy refused a command: {said}")

    def replace_map(self, path: Path, entries: Mapping[str, str]) -> None:
        """Put exactly these entries into a map in one step: no lookup sees some of the old and some new."""
        said = self.ask(f"prepare map {path}")
        if (found := re.match(r"New version created: (\d+)", said)) is None:
            raise GatewayError(f"HAProxy refused a new version of {path.name}: {said.strip()}")
        version = found.group(1)
        for part in _parts(f"{key} {value}\n" for key, value in entries.items()):
            self._run_line(f"add map @{version} {path} <<\n{''.join(part)}")
        self._run_line(f"commit map @{version} {path}")

    def map_value(self, path: Path, key: str) -> str | None:
        """One entry of a map; None where it has none."""
        return self._found(r'found=yes.* value="([^"]*)"', f"get map {path} {key}")

    def variable(self, name: str) -> str:
        """Return a variable of the process; empty where it has none."""
        return self._found(r" value=<([^>]*)>", f"get var {name}") or ""

    def load_certificate(self, path: Path, content: bytes) -> None:
        """Serve this in place of the certificate at `path`, on new connections.

        Raises GatewayError where HAProxy refuses it.
        """
        said = self.ask(f"set ssl cert {path} <<\n{content.decode()}")
        if re.search("transaction (created|updated)", said, re.IGNORECASE):
            said = self.ask(f"commit ssl cert {path}")
            if "success" in said.lower():
                return
        raise GatewayError(f"HAProxy refused the certificate {path}: {said.strip()}")

    def sessions(self, backends: Iterable[str]) -> Mapping[tuple[str, str], Sessions]:
        """(backend, server) -> sessions of these; a backend itself stands under the server name BACKEND.

        Not asked of all: all slots together are thousands of rows, which a redirect would wait for.
        """
        asked, found = list(backends), {}
        for part in _parts(f"show stat {backend} 6 -1" for backend in asked):
            for row in self.ask(";".join(part)).splitlines():
                columns = row.split(",", _STATUS + 1)
                if row.startswith("#") or len(columns) <= _STATUS + 1:  # a header, an empty line
                    continue
                up = not columns[_STATUS].startswith(("DOWN", "MAINT"))
                key = columns[_BACKEND], columns[_SERVER]
                found[key] = Sessions(int(columns[_CURRENT] or 0), int(columns[_QUEUED] or 0), up)
        for backend in asked:
            if (backend, "BACKEND") not in found:  # the last row
                raise Unreachable(f"HAProxy ended in the middle of its answer about {backend}")
        return found


class RunningHaproxy:
    """Queries and changes by the runtime socket. Raises Unreachable where not said otherwise."""

    def __init__(self, paths: GatewayPaths) -> None:
        self._paths = paths
        self._runtime = RuntimeSocket(paths.runtime_socket)

    def generation(self) -> int | None:
        """Return the generation of the table that it holds; None where none answers."""
        try:
            held = self._runtime.map_value(self._paths.checks_map, store.GENERATION)
        except Unreachable:
            return None
        return int(held or _UNFINISHED)

    def fingerprint(self) -> str | None:
        """Return that of its settings, empty for one of an earlier version; None where none answers."""
        with contextlib.suppress(Unreachable):
            return self._runtime.variable(store.FINGERPRINT)
        return None

    def outdated_by_servers(self) -> str | None:
        """Have the supervisor replace it at its next look, where it serves added servers worse than its own.

        Return its pid; None where it does not.
        """
        if reuses_grpc(self._runtime.info("Version")):
            return None
        mark = f"set var {store.FINGERPRINT} str({store.WITHOUT_SERVERS})"
        self._runtime.run(["experimental-mode on", mark])
        return self._runtime.info("Pid")

    def note_without_servers(self, pid: str) -> None:
        """Remember in this one that the one before leads to no server, whatever it still has to answer."""
        with contextlib.suppress(GatewayError):  # without the note, a start waits for its end
            self._runtime.run(["experimental-mode on", f"set var {store.FORMER} str({pid})"])

    def without_servers(self) -> set[int]:
        """Return the pid of the one before, if it leads to no server."""
        with contextlib.suppress(Unreachable):
            if noted := self._runtime.variable(store.FORMER):
                return {int(noted)}
        return set()

    def apply(self, change: slots.Change, generation: int, order: Order | None) -> None:
        """Change slots and routes, and its gates where `order` is given.

        Raises GatewayError where a command is refused.
        """
        # The generation comes last: after an interruption before it, every slot is restated.
        checks = self._paths.checks_map
        self._runtime.replace_map(checks, store.check_entries(_UNFINISHED, change.table))
        self._runtime.run(change.before)
        self._runtime.replace_map(self._paths.models_map, change.table.model_map())
        if order is not None:
            self.arrange(change.table, order)
        self._runtime.run((*change.after, f"set map {checks} {store.GENERATION} {generation}"))

    def arrange(self, table: SlotTable, order: Order) -> None:
        """Change the gates. Raises GatewayError where a command is refused."""
        self._runtime.run(slots.gate_commands(table, order))
        self._runtime.replace_map(self._paths.gates_map, slots.gate_map(table, order))

    def restate(self, table: SlotTable) -> slots.Change:
        """Return the change that brings it to a table, in whatever state it is."""
        return slots.restate(table, _lines(self._runtime.sessions(_backends(table.slots))))

    def release(self, table: SlotTable) -> slots.Change:
        """Return the change that frees the draining slots without a request."""
        draining = [slot for slot in table.slots if slot.phase is Phase.DRAINING]
        sessions = self._runtime.sessions(_backends(draining))
        busy = {n for (n, line), one in sessions.items() if line == "BACKEND" and (one.current or one.queued)}
        idle = {slot.index for slot in draining if busy.isdisjoint(_backends([slot]))}
        return slots.release(table, idle, _lines(sessions))

    def without_server(self, table: SlotTable) -> set[str]:
        """Return the endpoints whose members HAProxy takes for dead."""
        active = [slot for slot in table.slots if slot.phase is Phase.ACTIVE]
        sessions = self._runtime.sessions(_backends(active))
        return {
            slot.endpoint
            for slot in active
            if slot.endpoint is not None
            and not any(
                sessions[f"h_{slot.index}", line].up
                for line in slot.servers()
                if not is_backup(line) and (f"h_{slot.index}", line) in sessions
            )
        }

    def in_flights(self, table: SlotTable, backends: Sequence[Backend]) -> dict[str, InFlight]:
        """Return the requests on each server, in all slots that lead to it."""
        asked = frozenset(backends)
        leading: list[tuple[Slot, dict[Backend, list[str]]]] = []
        for slot in table.slots:
            lines: dict[Backend, list[str]] = {}
            for name, member in slot.servers().items():
                if member in asked:
                    lines.setdefault(member, []).append(name)
            if lines:
                leading.append((slot, lines))
        sessions = self._runtime.sessions(_backends([slot for slot, _ in leading]))
        given: Counter[str] = Counter()
        for (name, line), one in sessions.items():
            if line != "BACKEND":
                given[name] += one.current
        found = {backend.server: NOTHING_IN_FLIGHT for backend in backends}
        for slot, lines in leading:
            for backend, names in lines.items():
                count = sum(_owed(sessions, given, name, names) for name in _backends([slot]))
                held = InFlight(streaming=count) if slot.traits.pauses else InFlight(requests=count)
                found[backend.server] = found[backend.server].plus(held)
        return found


def reuses_grpc(version: str) -> bool:
    """Whether this HAProxy sends several gRPC requests over one connection to a server added at runtime.

    Before, such a server has a `max-reuse` of 0, and no command changes it.
    """
    found = version_numbers(version)
    return (2, 6, 18) <= found < (2, 7) or (2, 8, 10) <= found < (2, 9) or found >= (3, 0)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version as HAProxy writes it."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _parts(texts: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > _LINE_LIMIT:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text) + 1
    if part:
        yield part


def _backends(those: Iterable[Slot]) -> list[str]:
    return [f"{protocol}_{slot.index}" for slot in those for protocol in PROTOCOLS]


def _lines(sessions: Mapping[tuple[str, str], Sessions]) -> slots.Held:
    found: dict[str, list[str]] = {}
    for backend, line in sessions:
        if line != "BACKEND":
            found.setdefault(backend, []).append(line)
    return found


def _owed(
    sessions: Mapping[tuple[str, str], Sessions], given: Mapping[str, int], backend: str, lines: list[str]
) -> int:
    """Return the requests on these lines, and those of the backend without a line yet.

    `given` are the requests on all lines, by backend.
    """
    whole = sessions[backend, "BACKEND"]
    # A commit that is under way may not have added all of its lines.
    found = [sessions[backend, line] for line in lines if (backend, line) in sessions]
    here = sum(one.current + one.queued for one in found)
    return here + whole.queued + max(0, whole.current - given[backend])

"""HAProxy's runtime interface: text commands over a Unix socket, and its statistics."""

from __future__ import annotations

import csv
import io
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import GatewayError

_LINE_LIMIT = 8192
"""Bytes of commands sent at once; HAProxy takes one buffer (tune.bufsize)."""

_FINE = re.compile(r"^(no need to change|IP changed from|New version created:)")
"""HAProxy's answers to a successful command; most have none."""


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

    def pid(self) -> int | None:
        """Return the process that answers. Raises Unreachable."""
        found = re.search(r"^Pid: (\d+)", self.ask("show info"), re.MULTILINE)
        return None if found is None else int(found.group(1))

    def run(self, commands: Sequence[str]) -> None:
        """Run commands in order. Raises GatewayError with HAProxy's words where one is refused."""
        line = ""
        for command in commands:
            if line and len(line) + len(command) > _LINE_LIMIT:
                self._run_line(line)
                line = ""
            line = f"{line};{command}" if line else command
        if line:
            self._run_line(line)

    def _run_line(self, line: str) -> None:
        for said in self.ask(line).splitlines():
            if said and not _FINE.match(said):
                raise GatewayError(f"HAProxy refused a command: {said}")

    def replace_map(self, path: Path, entries: Mapping[str, str]) -> None:
        """Put exactly these entries into a map in one step: no lookup sees some of the old and some new."""
        said = self.ask(f"prepare map {path}")
        found = re.match(r"New version created: (\d+)", said)
        if found is None:
            raise GatewayError(f"HAProxy refused a new version of {path.name}: {said.strip()}")
        version = found.group(1)
        payload = ""
        for key, value in entries.items():
            row = f"{key} {value}\n"
            if payload and len(payload) + len(row) > _LINE_LIMIT:
                self._run_line(f"add map @{version} {path} <<\n{payload}")
                payload = ""
            payload += row
        if payload:
            self._run_line(f"add map @{version} {path} <<\n{payload}")
        self._run_line(f"commit map @{version} {path}")

    def map_value(self, path: Path, key: str) -> str | None:
        """One entry of a map; None where it has none."""
        found = re.search(r'found=yes.* value="([^"]*)"', self.ask(f"get map {path} {key}"))
        return None if found is None else found.group(1)

    def variable(self, name: str) -> str:
        """Return a variable of the process; empty where it has none."""
        found = re.search(r" value=<([^>]*)>", self.ask(f"get var {name}"))
        return "" if found is None else found.group(1)

    def sessions(self, backends: Iterable[str]) -> Mapping[tuple[str, str], Sessions]:
        """(backend, server) -> sessions of these; a backend itself stands under the server name BACKEND.

        Asked one by one: all slots together are thousands of rows, which a redirect would wait for.
        """
        found = {}
        for backend in backends:
            text = self.ask(f"show stat {backend} 6 -1").removeprefix("# ")
            for row in csv.DictReader(io.StringIO(text)):
                key = row["pxname"], row["svname"]
                up = not (row["status"] or "").startswith(("DOWN", "MAINT"))
                found[key] = Sessions(int(row["scur"] or 0), int(row["qcur"] or 0), up)
            if (backend, "BACKEND") not in found:  # the last row
                raise Unreachable(f"HAProxy ended in the middle of its answer about {backend}")
        return found

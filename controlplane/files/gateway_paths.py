"""The gateway's files and sockets, below its state directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from controlplane.domain.errors import GatewayError
from controlplane.sockets import close_to_others, socket_folder

_LONGEST_NAME = 29
"""Of a socket: HAProxy binds under a temporary name that is some 16 bytes longer."""

_PIPE_BYTES = 2**20
"""What the kernel allows to every user: some seconds of lines at thousands of requests a second."""


@dataclass(frozen=True)
class _Below:
    """A path below one of the directories."""

    directory: str
    name: str

    def __get__(self, paths: GatewayPaths, _: object = None) -> Path:
        directory: Path = getattr(paths, self.directory)
        return directory / self.name


_file, _socket = partial(_Below, "state"), partial(_Below, "sockets")


@dataclass(frozen=True)
class GatewayPaths:
    """Paths below the gateway's state directory; sockets move to a short one where its name is too long."""

    state: Path
    sockets: Path

    settings = _file("settings.json")
    """What the gateway was started with."""
    slots = _file("slots.json")
    """Which slot serves which endpoint."""
    config = _file("haproxy.cfg")
    """HAProxy's configuration."""
    discounts = _file("discounts")
    """A folder: what the fleet itself asked of each server."""
    models_map = _file("models.map")
    """Endpoint -> slot."""
    checks_map = _file("checks.map")
    """Backend -> endpoint; also the generation that the running HAProxy holds."""
    broadcasts = _file("broadcasts.json")
    """Shared-memory regions, trace and log settings for every Triton that joins."""
    order = _file("order.json")
    """The place of each endpoint's requests in the queue of its partition."""
    gates_map = _file("gates.map")
    """Endpoint -> gate, and its requests' place there."""
    clients = _file("clients.json")
    """The clients with their grants."""
    limits = _file("limits.json")
    """The limits of endpoints, and the endpoints, or one client's calls of them, refused for a while."""
    clients_map = _file("clients.map")
    grants_map = _file("grants.map")
    client_limits_map = _file("client_limits.map")
    endpoint_limits_map = _file("endpoint_limits.map")
    refusals_map = _file("refusals.map")
    certificate = _file("certificate.pem")
    """HAProxy's copy of the certificate and its key."""
    audit = _file("audit.jsonl")
    """A line for every request, where the fleet is audited."""
    restarts = _file("restarts.jsonl")
    """What died and was started again."""
    plan = _Below("fleet", "plan.json")
    """The plan that was applied."""

    lock = _file("commit.lock")
    """Held while the files above and the running HAProxy are changed together."""
    start_lock = _file("start.lock")
    """Held by `start` and `stop`."""
    supervisor_lock = _file("supervisor.lock")
    """Held by the living supervisor."""

    runtime_socket = _socket("haproxy.sock")
    """HAProxy's runtime interface."""
    exporter_socket = _socket("exporter.sock")
    """HAProxy's metrics, as its own exporter writes them."""
    gate_socket = _socket("gate.sock")
    """Where requests that a gate let through come back to HAProxy."""
    control_socket = _socket("control.sock")
    """The facade's control interface."""
    facade_http_socket = _socket("facade_http.sock")
    """Where HAProxy reaches the facade over HTTP."""
    facade_grpc_socket = _socket("facade_grpc.sock")
    """Where HAProxy reaches the facade over gRPC."""
    relayed_socket = _socket("relayed.sock")
    """Where the facade's gRPC server listens itself."""
    log_pipe = _socket("log.pipe")
    """A line for every request, on its way to the monitor."""
    monitor_socket = _socket("monitor.sock")
    """The monitor's queries."""
    controller_socket = _socket("controller.sock")
    """The controller's metrics and health."""

    @classmethod
    def of(cls, state: Path) -> GatewayPaths:
        """For a state directory; touches nothing."""
        state = state.absolute()
        return cls(state, socket_folder(state, "run", _LONGEST_NAME))

    @property
    def fleet(self) -> Path:
        """The fleet's directory, of which the gateway's state is a folder."""
        return self.state.parent

    def log(self, role: str) -> Path:
        """The output of a process."""
        return self.state / f"{role}.log"

    def servers_logs(self) -> tuple[Path, ...]:
        """Return the logs of the fleet's servers that are processes of this host."""
        return tuple((self.fleet / "logs").glob("*.log"))

    def make(self) -> None:
        """Make both directories, open to this user only. Raises GatewayError where one is another user's."""
        for directory in (self.state, self.sockets):
            if (problem := close_to_others(directory)) is not None:
                raise GatewayError(problem)


def open_log(path: Path) -> int:
    """Return a descriptor of the log's pipe for reading and writing, which never waits; make a missing pipe.

    HAProxy and the facade send a line for every request through it to the monitor. It lies in the gateway's
    folder, so no other user can send to it or read it, and a stopped monitor loses no line before the pipe is
    full. Lines do not mix, since each is shorter than PIPE_BUF.

    Whoever has it open for both keeps the lines in it while its reader restarts. Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return pipe

"""The gateway's files and sockets, and the environment that marks its processes."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from controlplane.domain.errors import GatewayError

_SOCKET_PATH_LIMIT = 80
"""The kernel takes 107 bytes; HAProxy binds under a temporary name that is some 16 bytes longer."""

LABEL = "TRISECT_GATEWAY"
ROLE_LABEL = "TRISECT_GATEWAY_ROLE"


@dataclass(frozen=True, slots=True)
class Places:
    """Paths below the gateway's state directory; sockets move to a short one where its name is too long."""

    state: Path
    sockets: Path

    @classmethod
    def of(cls, state: Path) -> Places:
        """For a state directory; touches nothing."""
        state = state.absolute()
        sockets = state / "run"
        if len(os.fsencode(sockets / "haproxy.sock")) > _SOCKET_PATH_LIMIT:
            short = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
            # The same for every caller: $XDG_RUNTIME_DIR differs under cron and sudo, and ends with a login.
            sockets = Path("/tmp") / f"trisect-{os.getuid()}-{short}"
        return cls(state, sockets)

    def make(self) -> None:
        """Make both directories, open to this user only. Raises GatewayError where one is another user's."""
        for directory in (self.state, self.sockets):
            try:
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                found = directory.lstat()
            except OSError as error:
                raise GatewayError(f"{directory}: cannot be made: {error.strerror}") from error
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise GatewayError(
                    f"{directory} is a link or belongs to another user (uid {found.st_uid}); remove it"
                )
            directory.chmod(0o700)

    @property
    def settings(self) -> Path:
        """What the gateway was started with."""
        return self.state / "settings.json"

    @property
    def slots(self) -> Path:
        """Which slot serves which endpoint."""
        return self.state / "slots.json"

    @property
    def config(self) -> Path:
        """HAProxy's configuration."""
        return self.state / "haproxy.cfg"

    @property
    def models_map(self) -> Path:
        """Endpoint -> slot."""
        return self.state / "models.map"

    @property
    def checks_map(self) -> Path:
        """Backend -> endpoint; also the generation that the running HAProxy holds."""
        return self.state / "checks.map"

    @property
    def broadcasts(self) -> Path:
        """Shared-memory regions, trace and log settings for every Triton that joins."""
        return self.state / "broadcasts.json"

    @property
    def clients(self) -> Path:
        """The clients with their grants."""
        return self.state / "clients.json"

    @property
    def limits(self) -> Path:
        """The limits of endpoints."""
        return self.state / "limits.json"

    @property
    def refusals(self) -> Path:
        """The endpoints, or one client's calls of them, that are refused for a while."""
        return self.state / "refusals.json"

    @property
    def order(self) -> Path:
        """The place of each endpoint's requests in the queue of its partition."""
        return self.state / "order.json"

    @property
    def gates_map(self) -> Path:
        """Endpoint -> gate, and its requests' place there."""
        return self.state / "gates.map"

    @property
    def gate_socket(self) -> Path:
        """Where requests that a gate let through come back to HAProxy."""
        return self.sockets / "gate.sock"

    @property
    def certificate(self) -> Path:
        """HAProxy's copy of the certificate and its key."""
        return self.state / "certificate.pem"

    @property
    def audit(self) -> Path:
        """A line for every request, where the fleet is audited."""
        return self.state / "audit.jsonl"

    def access_map(self, name: str) -> Path:
        """One of HAProxy's maps: `clients`, `grants`, `client_limits`, `endpoint_limits` or `refusals`."""
        return self.state / f"{name}.map"

    @property
    def lock(self) -> Path:
        """Held while the files above and the running HAProxy are changed together."""
        return self.state / "commit.lock"

    @property
    def start_lock(self) -> Path:
        """Held by `start` and `stop`."""
        return self.state / "start.lock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the living supervisor."""
        return self.state / "supervisor.lock"

    @property
    def restarts(self) -> Path:
        """What died and was started again."""
        return self.state / "restarts.jsonl"

    def log(self, role: str) -> Path:
        """The output of a process."""
        return self.state / f"{role}.log"

    @property
    def runtime_socket(self) -> Path:
        """HAProxy's runtime interface."""
        return self.sockets / "haproxy.sock"

    @property
    def exporter_socket(self) -> Path:
        """HAProxy's metrics, as its own exporter writes them."""
        return self.sockets / "exporter.sock"

    @property
    def control_socket(self) -> Path:
        """The facade's control interface."""
        return self.sockets / "control.sock"

    @property
    def facade_http_socket(self) -> Path:
        """Where HAProxy reaches the facade over HTTP."""
        return self.sockets / "facade_http.sock"

    @property
    def facade_grpc_socket(self) -> Path:
        """Where HAProxy reaches the facade over gRPC."""
        return self.sockets / "facade_grpc.sock"

    @property
    def relayed_socket(self) -> Path:
        """Where the facade's gRPC server listens itself."""
        return self.sockets / "relayed.sock"

    @property
    def log_pipe(self) -> Path:
        """A line for every request, on its way to the monitor."""
        return self.sockets / "log.pipe"

    @property
    def monitor_socket(self) -> Path:
        """The monitor's queries."""
        return self.sockets / "monitor.sock"

    @property
    def controller_socket(self) -> Path:
        """The controller's metrics and health."""
        return self.sockets / "controller.sock"

    @property
    def plan(self) -> Path:
        """The plan that was applied; the gateway's state is a folder of the fleet's."""
        return self.state.parent / "plan.json"

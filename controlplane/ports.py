"""The ports: protocols of everything that has effects. Code on this side of a port handles values only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from controlplane.domain.device import DeviceReading, HeldDevice
    from controlplane.domain.fleet import (
        Backend,
        Batches,
        GatewayConfig,
        InFlight,
        QuotaUse,
        Routes,
        Server,
        ServerSpec,
        ShareUsage,
    )
    from controlplane.domain.observation import Entry, HostSeen, LatencyWindow, News
    from controlplane.domain.serving import Order


@dataclass(frozen=True, slots=True)
class Capability:
    """One line of `ctl doctor`: whether something is available, and otherwise how to get it."""

    name: str
    available: bool
    detail: str
    remedy: str | None = None


class Clock(Protocol):
    """The source of time."""

    def monotonic(self) -> float:
        """Seconds since some fixed point, never going back."""

    def wall(self) -> float:
        """Seconds since the epoch."""


class Watch(Protocol):
    """Reports deaths of servers at once, and of their models' processes where it can see them.

    It does not report hangs; canaries find those.
    """

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """Return the reports about these servers since the call before. Never waits or repeats a report."""

    def close(self) -> None:
        """Stop listening. Idempotent."""


GivesWay = Callable[[], bool]
"""Whether the servers of its core go before one that starts; it may change while that loads."""


def always() -> bool:
    """Return True: no request waits for what starts."""
    return True


class Launcher(Protocol):
    """Runs Tritons. Every implementation passes `tests/contract/launcher`.

    Calls block and raise EngineError (LaunchTimeout, MissingTool). A failed `start` leaves nothing behind.
    """

    @property
    def name(self) -> str:
        """`process`, `docker`, ..."""

    def enforcement(self) -> str | None:
        """Return the mechanism that enforces shares on this host; None where there is none."""

    def capabilities(self) -> tuple[Capability, ...]:
        """Return what this launcher needs, and whether the host has it."""

    def command(self, spec: ServerSpec) -> str:
        """Return the command line of a start, for display. Starts and changes nothing."""

    def inventory(self) -> tuple[HeldDevice, ...] | None:
        """Return the devices of its cluster, in the order in which plans count them; None: this host's."""

    def start(self, spec: ServerSpec, *, deadline_s: float, gives_way: GivesWay = always) -> Server:
        """Start one Triton and return once it answers with its own name and every model is ready.

        Starting a spec whose name already runs returns that server. While it loads, it takes only what the
        servers of its core leave, for as long as it `gives_way`: not where requests wait for it.
        Raises LaunchTimeout after `deadline_s`, EngineError where the server exits or a model fails to
        load (with the reason from its log); the server and all it owns are gone then.
        """

    def servers(self, fleet: str) -> tuple[Server, ...]:
        """Return every server with this fleet's labels, from the engine, sorted by name."""

    def stop(self, server: Server, *, drain_s: float) -> None:
        """Let requests finish for up to `drain_s`, end the server and remove what it owned. Idempotent.

        A later server of the same name is not stopped.
        """

    def resize(self, server: Server, percent: float) -> None:
        """Change the share of a running server, without a restart.

        Its labels keep the share of its start, which an apply compares. Raises InputError where the share
        cannot change while the server runs: on a GPU, MPS fixes it.
        """

    def batch_library(self) -> str | None:
        """Return the library by which its servers change their batches; None where they are fixed."""

    def set_batches(self, server: Server, batches: Batches) -> None:
        """Change the largest dynamic batches of a running server; the next batches keep to them.

        Raises EngineError for a model that was not started with one.
        """

    def watch(self, fleet: str) -> Watch:
        """Listen for deaths of this fleet's servers, and wait for an engine that is away."""

    def reading(self, device: str) -> DeviceReading:
        """Return NVML's readings of a GPU; empty for a core."""

    def usage(self, server: Server) -> ShareUsage:
        """Return the counters of the server's share."""

    def quota_use(self, server: Server) -> QuotaUse | None:
        """Return what delayed the server since its start; None where nothing counts.

        Read once a second for every server with traffic, so it must cost little.
        """

    def log(self, server: Server) -> str:
        """Return what a server has logged, as far as it is kept; empty where nothing can be read."""

    def sweep(self, fleet: str) -> tuple[str, ...]:
        """Remove and return what dead servers of this fleet left behind."""


class Gateway(Protocol):
    """One endpoint for the fleet. Every implementation passes `tests/contract/gateway`.

    Raises GatewayError.
    """

    def start(self, wanted: GatewayConfig, endpoints: int = 0) -> None:
        """Start a gateway with room for `endpoints`; one that listens already changes its options."""

    def routes(self) -> Routes:
        """Return the present routes."""

    def commit(self, routes: Routes) -> None:
        """Replace all routes in one step: no request sees a mixture of old and new ones.

        New requests go to the new members once this returns; requests in flight finish where they are.
        """

    def arrange(self, order: Order) -> None:
        """Have requests wait for their partitions in this order, where the gateway's options say so."""

    def refuse(self, endpoint: str, client: str, until_s: float) -> None:
        """Refuse inferences of an endpoint until then (since the epoch), of one client or (empty) of all.

        For ten minutes more, one that a dead server held is not sent to a second one.
        """

    def discount(self, server: str, counters: Sequence[Entry] | None) -> None:
        """Leave the fleet's own requests out of what clients read of a server's counters.

        None forgets those before: the server or its models count from 0. Never waits for long or raises.
        """

    def in_flight(self, backend: Backend) -> InFlight:
        """Return the requests that this server has not answered, including queued ones."""

    def in_flights(self, backends: Sequence[Backend]) -> Mapping[str, InFlight]:
        """Return the same by server: of the first one, and of the others where one reading has them all."""

    def missing(self) -> tuple[str, ...]:
        """Return its processes that should run and do not, by name. Never waits."""

    def restore(self) -> None:
        """Start what keeps its processes running, where that died; what was stopped stays so."""

    def stop(self) -> None:
        """Stop listening and remove what the gateway owned. Idempotent."""


class Telemetry(Protocol):
    """Measurements of the fleet's requests at the gateway."""

    def windows(self, seconds: float) -> Mapping[str, LatencyWindow]:
        """Return the requests that ended within the last `seconds`, by endpoint."""


class Host(Protocol):
    """The host that the gateway and the servers share."""

    def seen(self) -> HostSeen | None:
        """Return how much the host delays the gateway; None where nothing is known yet. Never waits."""


class Progress(Protocol):
    """Shows the progress of a long run."""

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        """`done` of `total` steps are done; `what` is the present one."""

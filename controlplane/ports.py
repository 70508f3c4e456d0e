"""The seams to the world. Everything behind them is an effect; everything before them is a value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from controlplane.domain.device import DeviceReading
from controlplane.domain.fleet import Backend, Routes, Server, ServerSpec, ShareUsage
from controlplane.domain.observation import HostSeen, LatencyWindow, News


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing `ctl doctor` reports: is it there, and if not, how to get it."""

    name: str
    available: bool
    detail: str
    remedy: str | None = None


class Clock(Protocol):
    """Time, handed in."""

    def monotonic(self) -> float:
        """Seconds since some fixed point, never going back."""

    def wall(self) -> float:
        """Seconds since the epoch."""


class Watch(Protocol):
    """Hears at once of servers that end. What makes no noise (a hang) has to be found by asking.

    An implementation that sees the processes of a server's models tells of their deaths too.
    """

    def news(self, servers: Collection[Server]) -> tuple[News, ...]:
        """What was told of these servers since the call before; never waits, never tells a loss twice."""

    def close(self) -> None:
        """Stop listening. Idempotent."""


class Launcher(Protocol):
    """Runs Tritons. Every implementation passes `tests/contract/launcher`.

    Calls block and raise EngineError (LaunchTimeout, MissingTool). A failed `start` leaves nothing behind.
    """

    @property
    def name(self) -> str:
        """`process`, `docker`, ..."""

    def enforcement(self) -> str | None:
        """The mechanism that will hold shares on this host; None where nothing can."""

    def capabilities(self) -> tuple[Capability, ...]:
        """What this launcher needs, and whether the host has it."""

    def command(self, spec: ServerSpec) -> str:
        """The command line a start would run now, for a person to read. Starts and changes nothing."""

    def start(self, spec: ServerSpec, *, deadline_s: float) -> Server:
        """Start one Triton and return once it answers with its own name and every model is ready.

        Starting a spec whose name already runs returns that server.
        Raises LaunchTimeout after `deadline_s`, EngineError where the server exits or a model fails to
        load (with the reason from its log); the server and all it owns are gone then.
        """

    def servers(self, fleet: str) -> tuple[Server, ...]:
        """Every server with this fleet's labels, from the engine itself, sorted by name."""

    def stop(self, server: Server, *, drain_s: float) -> None:
        """Let requests in flight finish for up to `drain_s`, end it, sweep what it owned. Idempotent.

        This very server: one that was started since under the same name is left alone.
        """

    def resize(self, server: Server, percent: float) -> None:
        """Hold a running server to another percentage from now on, without a restart.

        Its labels keep the share it was started with, which is what an apply compares.
        Raises InputError where its share cannot change while it runs: on a GPU MPS fixes it.
        """

    def watch(self, fleet: str) -> Watch:
        """Listen for this fleet's servers that end. An engine that is away is waited for."""

    def reading(self, device: str) -> DeviceReading:
        """What the device does now, as NVML tells of a GPU; nothing of a core."""

    def usage(self, server: Server) -> ShareUsage:
        """Counters of the server's share."""

    def sweep(self, fleet: str) -> tuple[str, ...]:
        """Remove what dead servers of this fleet left behind; returns what was removed."""


class Gateway(Protocol):
    """One endpoint for the fleet. Every implementation passes `tests/contract/gateway`.

    Raises GatewayError.
    """

    def start(self, endpoints: int = 0) -> None:
        """Have the gateway listening, a new one with room for `endpoints`; one that does is left alone."""

    def routes(self) -> Routes:
        """What is routed now."""

    def commit(self, routes: Routes) -> None:
        """Make exactly these endpoints routable, all in one step: no request sees half of it.

        New requests go to the new members once this returns; requests in flight finish where they are.
        """

    def in_flight(self, backend: Backend) -> int:
        """Requests this server still owes an answer to, queued ones included."""

    def stop(self) -> None:
        """Stop listening and remove what the gateway owned. Idempotent."""


class Telemetry(Protocol):
    """What the fleet's requests looked like from the gateway."""

    def windows(self, seconds: float) -> Mapping[str, LatencyWindow]:
        """Endpoint -> its requests that ended within the last `seconds`."""


class Host(Protocol):
    """The host that the gateway and the servers share."""

    def seen(self) -> HostSeen | None:
        """How far it held up the gateway lately; None where nothing is known yet. Never waits."""


class Progress(Protocol):
    """Tells a person how far a long run is."""

    def advance(self, what: str, done: int, total: int, seconds_left: float | None) -> None:
        """`done` of `total` steps are done; `what` is the present one."""

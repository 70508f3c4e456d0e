"""The port between the controller's loop and what becomes of its decisions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from controlplane.control.converge.desired import NamedRoute
from controlplane.control.guard.state import Effect, GuardState
from controlplane.domain.fleet import Server
from controlplane.domain.observation import FleetSeen
from controlplane.runtime.controller.adopt import Adopted
from controlplane.runtime.controller.observer import Observer
from controlplane.runtime.controller.workers import Workers
from controlplane.runtime.fleet.history import Event

Notice = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Decision:
    """The guard's decision of one tick, and the observation on which it rests."""

    state: GuardState
    effects: tuple[Effect, ...]
    routes: dict[str, NamedRoute]
    seen: FleetSeen


class Actor(Protocol):
    """Carries decisions out (`executor.Executor`) or only announces them (`plan_only.Announcer`)."""

    def hold_fleet(self) -> AbstractContextManager[None]:
        """Keep other commands from the fleet. Raises FleetBusy at once if one works on it."""

    def open_gateway(self) -> None:
        """Make the gateway listen."""

    def restore_gateway(self) -> None:
        """Start the gateway's supervisor where it died."""

    def adopt_standby(self, server: Server, workers: Workers) -> None:
        """Adopt a hot shadow that runs, ready or not."""

    def adopt_warm(self, server: Server, workers: Workers) -> None:
        """Adopt a warm shadow that runs; its models may be loaded."""

    def stop_surplus(self, servers: tuple[Server, ...], state: GuardState, workers: Workers) -> None:
        """Stop the servers that an interrupted command or controller left."""

    def act(self, decision: Decision, adopted: Adopted, workers: Workers, observer: Observer) -> None:
        """Process a decision and update `adopted`."""

    def publish(self, decision: Decision, state: GuardState, workers: Workers) -> None:
        """Write what `ctl status` and `ctl validate` read."""

    def is_busy(self, state: GuardState | None, workers: Workers) -> bool:
        """Return whether something is being repaired, or can still be repaired without help."""

    def note(self, event: Event) -> None:
        """Record and show an event."""

    def close(self, state: GuardState | None, workers: Workers) -> None:
        """End threads and write what is left; `state` is None if the fleet is gone."""

"""`ctl controller` that ends by SIGKILL at a point of a redirect: `killed_controller.py POINT --fleet NAME`.

The product knows nothing of it: a method that the redirect comes by is wrapped from outside. All points but
the first wait until the guard has decided to redirect.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.control.guard import decide
from controlplane.control.guard.effects import Redirect
from controlplane.control.guard.state import GuardState
from controlplane.domain.observation import FleetSeen
from controlplane.gateway.haproxy import HaproxyGateway
from controlplane.gateway.running import RunningHaproxy, RuntimeSocket
from controlplane.runtime.controller import executor, probes
from controlplane.runtime.controller.workers import Workers
from launchers.process import ProcessLauncher
from launchers.triton import readiness


@dataclass(frozen=True)
class Point:
    """Before the call of this method, passing over the first `calls` of them."""

    owner: Any
    method: str
    calls: int = 0


POINTS = {
    "violation seen": Point(probes.Readings, "read"),
    "verdict": Point(executor.Executor, "act"),
    "routes written": Point(RunningHaproxy, "apply"),
    "HAProxy half told": Point(RuntimeSocket, "replace_map", 1),
    "routes committed": Point(executor, "changed_routes"),
    "told to drain and stop": Point(Workers, "stop"),
    "draining": Point(HaproxyGateway, "in_flight"),
    "launching": Point(ProcessLauncher, "start"),
    "launched": Point(readiness, "is_ready"),
    "shadow ready": Point(HaproxyGateway, "commit", 1),
}
"""In the order a redirect comes by them."""


def arm(point: Point, *, at_once: bool) -> None:
    """Wrap the method; `at_once`: whatever the guard has decided."""
    method: Callable[..., Any] = getattr(point.owner, point.method)
    decided = decide.decide
    left, armed = point.calls, at_once

    def watched(state: GuardState, seen: FleetSeen) -> Any:
        nonlocal armed
        after, effects = decided(state, seen)
        armed = armed or any(isinstance(effect, Redirect) for effect in effects)
        return after, effects

    def fatal(*given: Any, **named: Any) -> Any:
        nonlocal left
        if armed:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return method(*given, **named)

    decide.decide = watched
    setattr(point.owner, point.method, fatal)


def main() -> None:
    """Be the controller until that point."""
    from controlplane.cli import main as cli

    name, *arguments = sys.argv[1:]
    arm(POINTS[name], at_once=name == next(iter(POINTS)))
    sys.argv = ["ctl", "controller", *arguments]
    cli.main()


if __name__ == "__main__":
    main()

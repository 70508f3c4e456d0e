"""Chooses the launcher and builds a fleet's parts: the only place that knows the concrete classes."""

from __future__ import annotations

import sys
from collections.abc import Callable

from controlplane.cli.options import LauncherName
from controlplane.domain.errors import InputError
from controlplane.files.fleets import Endpoints, FleetFiles, FleetSettings, state_root
from controlplane.ports import Launcher
from controlplane.report.status_table import StatusRow
from controlplane.runtime.clock import SystemClock
from controlplane.runtime.fleet import Fleet


def say(line: str) -> None:
    """Progress goes to stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def launcher(name: LauncherName | None) -> Launcher:
    """The launcher of that name; the process launcher where none is named."""
    from launchers.process import ProcessLauncher

    match name or LauncherName.PROCESS:
        case LauncherName.PROCESS:
            return ProcessLauncher(state_root())


def every_launcher() -> tuple[Launcher, ...]:
    """All launchers there are."""
    return tuple(launcher(name) for name in LauncherName)


def fleet(name: str, *, launcher_name: LauncherName | None, endpoints: Endpoints) -> Fleet:
    """A fleet with its files, launcher and gateway."""
    from controlplane.domain import units
    from controlplane.gateway.haproxy import HaproxyGateway, Ports

    units.safe_name(name, "--fleet")
    files = FleetFiles(state_root(), name)
    ports = Ports(endpoints.http_port, endpoints.grpc_port, endpoints.metrics_port)
    gateway = HaproxyGateway(files.gateway, ports, endpoints.host)
    return Fleet(files, launcher(launcher_name), gateway, SystemClock(), say)


def existing_fleet(name: str) -> tuple[Fleet, FleetSettings]:
    """A fleet that was applied, with the launcher and endpoints it was applied with.

    Raises InputError where there is none of that name.
    """
    from controlplane.files.fleets import fleets

    settings = FleetFiles(state_root(), name).settings()
    if settings is None:
        known = ", ".join(fleets(state_root())) or "none"
        raise InputError(f"there is no fleet {name!r}; fleets that were applied: {known}", field="--fleet")
    found = fleet(name, launcher_name=LauncherName(settings.launcher), endpoints=settings.endpoints)
    return found, settings


def unrecorded_fleet(name: str) -> Fleet:
    """A fleet no file speaks of: its servers may still carry its labels."""
    return fleet(name, launcher_name=None, endpoints=Endpoints())


def status_source(name: str) -> Callable[[], list[StatusRow]]:
    """A function that looks at a fleet anew each time it is called."""
    from controlplane.runtime.status import status_rows

    found, _ = existing_fleet(name)
    plan = found.files.plan()
    return lambda: status_rows(found.launcher, found.gateway, name, plan, {})

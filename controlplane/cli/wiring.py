"""Construction of gateways and fleets: with `launcher_registry` and `cluster`, what names their classes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from controlplane.cli.launcher_registry import DEFAULT_CLUSTER, launcher, pin_rules
from controlplane.cli.output import say
from controlplane.domain import units
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.errors import InputError, MissingTool
from controlplane.domain.fleet import Cluster
from controlplane.domain.server_options import NO_OPTIONS, ServerOptions
from controlplane.domain.serving import LauncherName
from controlplane.files.fleets import FleetFiles, FleetSettings, fleets, state_root
from controlplane.files.reading import exists
from controlplane.runtime import SystemClock

if TYPE_CHECKING:
    from controlplane.domain.device import DeviceLimits
    from controlplane.domain.observation import Event
    from controlplane.gateway.security.registry import ClientRegistry, LimitRegistry
    from controlplane.ports import Gateway, Launcher
    from controlplane.profiler.session import Place
    from controlplane.report.tables.status_table import Status
    from controlplane.runtime.fleet.fleet import Fleet
    from controlplane.runtime.jobs.completing import Completer


def fleet(name: str, *, launcher_name: LauncherName | None, cluster: Cluster = DEFAULT_CLUSTER) -> Fleet:
    """Build a fleet from its files, launcher and gateway."""
    from controlplane.runtime.fleet.fleet import Fleet

    files, chosen = fleet_files(name), launcher(launcher_name, cluster)
    return Fleet(files, chosen, gateway(files), SystemClock(), say, pinning=pin_rules(chosen.name))


def fleet_files(name: str) -> FleetFiles:
    """Return a fleet's files, whether it was applied or not."""
    return FleetFiles(state_root(), units.safe_name(name, "--fleet"))


def gateway(files: FleetFiles) -> Gateway:
    """Build a fleet's gateway: this host's, or in the pod of a controller the replicas in its cluster."""
    from controlplane.cli import cluster
    from controlplane.gateway.haproxy import HaproxyGateway

    if cluster.has_replicas():
        return cluster.replicas(files.fleet)
    return HaproxyGateway(files.gateway)


def clients(name: str) -> ClientRegistry:
    """Return the clients of a fleet that was applied. Raises InputError where there is none."""
    from controlplane.gateway.security.registry import ClientRegistry

    return ClientRegistry(_applied(name).gateway)


def limits(name: str) -> LimitRegistry:
    """Return the limits of a fleet's endpoints. Raises InputError where there is no such fleet."""
    from controlplane.gateway.security.registry import LimitRegistry

    return LimitRegistry(_applied(name).gateway)


def _applied(name: str) -> FleetFiles:
    files = fleet_files(name)
    if not files.exists():
        raise InputError(f"no fleet {name!r} was applied; `ctl apply` makes one", field="--fleet")
    return files


def chosen_launcher(files: FleetFiles, given: LauncherName | None) -> LauncherName | None:
    """Return the launcher to apply a fleet with: the one with which it runs, if it runs.

    Raises InputError for a different one: it would not find the fleet's servers.
    """
    settings = files.settings()
    if settings is None:
        return given
    known = LauncherName(settings.launcher)
    if given not in (None, known):
        raise InputError(
            f"fleet {files.fleet!r} runs with {known}: `ctl destroy` the fleet first", field="serve.launcher"
        )
    return known


def chosen_cluster(files: FleetFiles, given: Cluster) -> Cluster:
    """Return where to apply a fleet: where it runs, if it runs.

    Raises InputError for another place: the fleet's servers would not be found there.
    """
    settings = files.settings()
    if settings is None:
        return given
    known = settings.cluster
    for key, old, new in (
        ("context", known.context, given.context),
        ("namespace", known.namespace, given.namespace),
    ):
        if new not in (None, old):
            where = old or "the default one"
            problem = f"fleet {files.fleet!r} runs in {where}: `ctl destroy` the fleet first"
            raise InputError(problem, field=f"serve.{key}")
    return known


def existing_fleet(name: str) -> tuple[Fleet, FleetSettings]:
    """Return a fleet that was applied, with its launcher and endpoints.

    Raises InputError where no fleet has that name.
    """
    files = fleet_files(name)
    settings = files.settings()
    if settings is None:
        raise _unknown(files)
    if unknown := files.unknown_keys():
        say(
            f"warning: a newer version of ctl applied fleet {name!r}; this one leaves out "
            f"{', '.join(unknown)}, and loses them with the next apply"
        )
    if settings.cluster.installed:
        raise InputError(
            f"controllers in the cluster keep fleet {name!r}: apply, status, events, redirect, rollback and "
            "destroy work from here, other commands in the leader's pod (`kubectl exec`)",
            field="--fleet",
        )
    found = fleet(name, launcher_name=LauncherName(settings.launcher), cluster=settings.cluster)
    return found, settings


def _unknown(files: FleetFiles) -> InputError:
    applied = fleets(state_root())
    others = f"fleets that were applied: {', '.join(applied)}" if applied else "no fleet was applied"
    problem = f"there is no fleet {files.fleet!r}; {others}"
    if exists(files.ended):
        problem += f"; the history of the destroyed one: `ctl events --fleet {files.fleet}`"
    return InputError(problem, field="--fleet")


ANY_GPU = "gpu"
"""The first GPU, whatever its type."""


def place(device: str, on: Launcher | None = None) -> Place:
    """Return the device to measure on, of this host or of a cluster.

    `cpu` is its first core, `cpu-1` core 1, `gpu` its first GPU. Raises InputError for a device that the
    launcher `on`, by default this host, does not have.
    """
    from controlplane.profiler.session import Place
    from controlplane.runtime.devices import devices_of, host_devices, known_device

    held = {} if on is None else devices_of(on)
    available = host_devices() if on is None else {k: tuple(d.name for d in ds) for k, ds in held.items()}
    first = next((kind for kind in available if kind != CPU_DEVICE), None)
    for kind, devices in available.items():
        if devices and (device == kind or (device == ANY_GPU and kind == first)):
            return Place(known_device(kind), devices[0])
        if device in devices:
            return Place(known_device(kind), device)
    known = ", ".join(name for devices in available.values() for name in devices)
    raise InputError(f"there is no device {device!r}; there are: {known}", field="--device")


def driver_limits(of: Place) -> DeviceLimits | None:
    """Return what the driver of a GPU says of it; None for a core."""
    from launchers.gpu import gpus

    return gpus.limits(of.name)


def main_device() -> str:
    """Return the device type that this host serves models on: its first GPU's, else `cpu`."""
    from controlplane.runtime.devices import host_devices

    # Cores come first.
    kinds = list(host_devices())
    return kinds[1] if len(kinds) > 1 else kinds[0]


def completer(
    with_launcher: Launcher, options: ServerOptions = NO_OPTIONS, load_timeout_s: float | None = None
) -> Completer:
    """Return what has a Triton on the main device complete configurations."""
    from controlplane.runtime.jobs.completing import LOAD_S, Completer

    device, scratch = place(main_device()).name, state_root() / ".completed"
    load_s = load_timeout_s or LOAD_S
    return Completer(with_launcher, device, scratch, options, _backends(with_launcher), load_s)


def _backends(launcher: Launcher) -> frozenset[str] | None:
    """Return the backends of this host's Triton; None for one in an image."""
    if launcher.name != LauncherName.PROCESS:
        return None
    from launchers.triton.program import find_home

    try:
        return frozenset(path.name for path in find_home().backends.iterdir() if path.is_dir())
    except (MissingTool, OSError):
        return None


def fleet_to_end(name: str) -> Fleet | None:
    """Return a fleet to destroy: an applied one, or the rest of one after an interruption or lost files.

    The labels are on the servers, so servers are found without any file. None where a destroyed fleet left
    nothing behind. Raises InputError where there never was a fleet of that name.
    """
    unrecorded = fleet(name, launcher_name=None)
    files = unrecorded.files
    begun = exists(files.directory) and not files.exists()
    if begun or (not files.exists() and unrecorded.launcher.servers(name)):
        return unrecorded
    if not files.exists() and exists(files.ended):
        return None
    return existing_fleet(name)[0]


def status_source(name: str, *, window_s: float | None = None) -> Callable[[], Status]:
    """Return a function that reads a fleet's present status, with figures of `window_s` (a minute)."""
    from controlplane.files.gateway_paths import GatewayPaths
    from controlplane.monitor.client import GatewayTelemetry
    from controlplane.report.tables.status_table import WINDOW_S
    from controlplane.runtime.fleet.status import fleet_status

    found, _ = existing_fleet(name)
    telemetry = GatewayTelemetry(GatewayPaths.of(found.files.gateway).monitor_socket)
    return lambda: fleet_status(found, found.files.plan(), telemetry, window_s or WINDOW_S)


def serve(
    name: str, show: Callable[[Mapping[str, Any]], None], *, once: bool, plan_only: bool, host: str, port: int
) -> None:
    """Run the controller of a fleet; `show` prints its events."""
    from controlplane.files.gateway_paths import GatewayPaths
    from controlplane.monitor.client import RequestLog, local
    from controlplane.runtime.controller import serve

    found, _ = existing_fleet(name)
    socket = GatewayPaths.of(found.files.gateway).monitor_socket
    serve.guard(
        found,
        printer(show),
        RequestLog(partial(local, socket)),
        serve.stop_at_signals(),
        once=once,
        plan_only=plan_only,
        host=host,
        port=port,
    )
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    # A normal exit waits for a start under way, up to its whole deadline. Its server is found by its labels.
    os._exit(0)


def printer(show: Callable[[Mapping[str, Any]], None]) -> Callable[[Event], None]:
    """Return a function that shows an event; a full disk or a closed pipe does not stop a controller."""

    def print_event(event: Event) -> None:
        with contextlib.suppress(OSError):
            show(asdict(event))

    return print_event


def recent_events(name: str, *, since_s: float | None, limit: int) -> tuple[Event, ...]:
    """Return the events of a fleet, or of the last destroyed one of that name, which is announced."""
    from controlplane.runtime.fleet import history

    files = fleet_files(name)
    if not files.exists():
        if not exists(files.ended):
            raise _unknown(files)
        say(f"fleet {name!r} was destroyed; its events until then:")
    begin = 0.0 if since_s is None else time.time() - since_s
    return history.events(files, since_s=begin, limit=limit)

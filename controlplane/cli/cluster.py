"""Construction of a controller that runs in a cluster, beside others of which one leads."""

from __future__ import annotations

import os
import platform
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from controlplane.cli.endings import EXIT_DEFECT
from controlplane.cli.output import say
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Cluster
from controlplane.domain.serving import LauncherName, Listen, Serving
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
from controlplane.ports import Gateway
from controlplane.runtime import SystemClock

if TYPE_CHECKING:
    from controlplane.domain.observation import Event
    from controlplane.domain.plan import Plan
    from controlplane.runtime.fleet.in_cluster import FleetInCluster
    from launchers.kubernetes.leading.fleets import FleetOrders

TOKEN_FILE = "TRISECT_GATEWAY_TOKEN_FILE"
"""The token of the gateway's replicas. Set in a controller's pod, for the commands in it too."""

_HERE = Cluster()
"""The pod's own account and namespace; outside a pod the kubeconfig's."""


def has_replicas() -> bool:
    """Return whether the gateway is one of several replicas in the cluster."""
    return TOKEN_FILE in os.environ


def replicas(fleet: str) -> Gateway:
    """Return the gateway of a fleet for one command. Raises EngineError, InputError."""
    from controlplane.gateway.replicas.gateway import ReplicatedGateway
    from launchers.kubernetes.api import ClusterApi
    from launchers.kubernetes.leading.fleets import GatewayPods

    pods = GatewayPods(ClusterApi(_HERE), fleet)
    pods.refresh()
    return ReplicatedGateway(pods.addresses, _token())


def fleet_of_controllers(files: FleetFiles, place: Cluster) -> FleetInCluster | None:
    """Return a fleet that controllers in the cluster keep; None where none runs for it there.

    Raises InputError where this host's gateway and controller already serve it.
    """
    from controlplane.runtime.fleet.in_cluster import FleetInCluster

    orders = _orders(files.fleet, place)
    if not place.installed:
        if not orders.controllers():
            return None
        if files.exists():
            raise InputError(
                f"fleet {files.fleet!r} runs with the gateway and the controller of this host, and the "
                "cluster now has controllers for it too: `ctl destroy` the fleet first",
                field="--fleet",
            )
    return FleetInCluster(files, orders, say)


def kept_fleet(files: FleetFiles) -> FleetInCluster | None:
    """Return a fleet that was applied to controllers in a cluster; None for any other one."""
    settings = files.settings()
    if settings is None or not settings.cluster.installed:
        return None
    return fleet_of_controllers(files, settings.cluster)


def by_leader(files: FleetFiles, *command: str) -> None:
    """Where controllers in a cluster keep a fleet, run `ctl` in the leader's pod and exit with its code."""
    settings = files.settings()
    if settings is not None and settings.cluster.installed:
        told = ("ctl", *command, "--fleet", files.fleet)
        raise typer.Exit(_orders(files.fleet, settings.cluster).run_by_leader(*told))


def _orders(fleet: str, place: Cluster) -> FleetOrders:
    from launchers.kubernetes.leading.fleets import FleetOrders

    return FleetOrders(place, fleet)


def lead(
    name: str, show: Callable[[Mapping[str, Any]], None], repository: Path, *, host: str, port: int
) -> None:
    """Wait until this controller leads, and keep the fleet until SIGTERM or until another one leads."""
    from controlplane.cli import launcher_registry, wiring
    from controlplane.gateway.replicas.gateway import ReplicatedGateway
    from controlplane.runtime.controller import elected, serve
    from controlplane.runtime.controller.answers import ReplicaLogs
    from controlplane.runtime.fleet.fleet import Fleet
    from launchers.kubernetes.api import ClusterApi
    from launchers.kubernetes.leading.fleets import FleetObject, GatewayPods
    from launchers.kubernetes.leading.lease import Leadership
    from launchers.kubernetes.leading.room import Room
    from launchers.kubernetes.options import PodOptions

    token, stopping, ended = _token(), serve.stop_at_signals(), threading.Event()
    api, identity = ClusterApi(_HERE, patience_s=0.0), platform.node()
    leadership = Leadership(api, name, identity, say)
    if not leadership.acquire(stopping):
        return
    # At once: what is under way must not go on beside the next leader. The kubelet starts a new candidate.
    keeping = threading.Thread(target=leadership.keep, args=(ended, partial(os._exit, 1)))
    keeping.start()
    code = 0
    try:
        pods = GatewayPods(api, name)
        gateway = ReplicatedGateway(pods.addresses, token, leadership.term)
        pods_of = launcher_registry.launcher(LauncherName.KUBERNETES, _HERE)
        files, rules = FleetFiles(state_root(), name), launcher_registry.pin_rules(pods_of.name)
        fleet = Fleet(files, pods_of, gateway, SystemClock(), say, pinning=rules)
        installation = elected.Installation(
            partial(_settings, fleet, repository),
            pods.refresh,
            Room(api, name, identity, PodOptions.from_environment()).wait_for,
        )
        keeper = elected.Keeper(fleet, FleetObject(api, name, identity), installation)

        def notice(event: Event) -> None:
            wiring.printer(show)(event)
            keeper.note(event)

        def guard() -> None:
            logs = ReplicaLogs(pods.addresses, token)
            around = elected.Following(keeper, logs)
            serve.guard(fleet, notice, logs, stopping, host=host, port=port, cluster=around)

        try:
            elected.lead(keeper, guard, fleet, stopping)
        except Exception:
            traceback.print_exc()
            code = EXIT_DEFECT
    finally:
        ended.set()
        keeping.join()
    os._exit(code)  # a normal exit waits for a start under way


def _settings(
    fleet: Any, repository: Path, plan: Plan, devices: Mapping[str, str], runs: bool
) -> FleetSettings:
    from controlplane.runtime.fleet import preflight

    return preflight.settings(
        plan,
        fleet,
        repository=repository,
        output=fleet.files.directory / "rendered",
        section=Serving(listen=Listen("0.0.0.0"), load_timeout_s=(plan.serve or Serving()).load_timeout_s),
        known=devices,
        runs=runs,
    )


def _token() -> str:
    """Return the replicas' token. Raises InputError where the file cannot be read."""
    path = os.environ.get(TOKEN_FILE)
    if path is None:
        problem = "is not set: name the file with the token of the gateway's replicas"
        raise InputError(problem, field=f"${TOKEN_FILE}")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path, field=f"${TOKEN_FILE}") from error

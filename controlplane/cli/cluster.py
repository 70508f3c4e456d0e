"""Construction of a controller that runs in a cluster, beside others of which one leads."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from controlplane.cli.stderr import say
from controlplane.domain.errors import InputError
from controlplane.domain.fleet import Cluster, Endpoints
from controlplane.domain.plan import Plan
from controlplane.files.fleets import FleetFiles, FleetSettings, state_root
from controlplane.ports import Gateway
from controlplane.runtime.clock import SystemClock

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
    from launchers.kubernetes.api import ClusterApi, ClusterPlace
    from launchers.kubernetes.leading.gateways import GatewayPods

    pods = GatewayPods(ClusterApi(ClusterPlace()), fleet)
    pods.refresh()
    return ReplicatedGateway(pods.addresses, _token())


def lead(
    name: str, show: Callable[[Mapping[str, Any]], None], repository: Path, *, host: str, port: int
) -> None:
    """Wait until this controller leads, and keep the fleet until SIGTERM or until another one leads."""
    from controlplane.cli import wiring
    from controlplane.gateway.replicas.gateway import ReplicatedGateway
    from controlplane.runtime.controller import elected, serve
    from controlplane.runtime.controller.replica_log import ReplicaLogs
    from controlplane.runtime.fleet.fleet import Fleet
    from launchers.kubernetes.api import ClusterApi, ClusterPlace
    from launchers.kubernetes.leading.fleets import FleetObject
    from launchers.kubernetes.leading.gateways import GatewayPods
    from launchers.kubernetes.leading.lease import Leadership

    token, stopping, ended = _token(), serve.stop_at_signals(), threading.Event()
    api, identity = ClusterApi(ClusterPlace(), patience_s=0.0), platform.node()
    leadership = Leadership(api, name, identity, say)
    if not leadership.acquire(stopping):
        return
    # At once: what is under way must not go on beside the next leader. The kubelet starts a new candidate.
    keeping = threading.Thread(target=leadership.keep, args=(ended, partial(os._exit, 1)))
    keeping.start()
    try:
        pods = GatewayPods(api, name)
        gateway = ReplicatedGateway(pods.addresses, token, leadership.term)
        fleet = Fleet(FleetFiles(state_root(), name), wiring.pods(_HERE), gateway, SystemClock(), say)
        installation = elected.Installation(partial(_settings, fleet, repository), pods.refresh)
        keeper = elected.Keeper(fleet, FleetObject(api, name, identity), installation)

        def guard() -> None:
            logs = ReplicaLogs(pods.addresses, token)
            serve.guard(fleet, wiring.printer(show), logs, stopping, host=host, port=port)

        elected.lead(keeper, guard, fleet, stopping)
    finally:
        ended.set()
        keeping.join()
    os._exit(0)  # a normal exit waits for a start under way


def _settings(fleet: Any, repository: Path, plan: Plan) -> FleetSettings:
    from controlplane.runtime.fleet import preflight

    return preflight.settings(
        plan,
        fleet,
        repository=repository,
        output=fleet.files.directory / "rendered",
        endpoints=Endpoints("0.0.0.0"),
        cluster=_HERE,
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

"""The registry of launchers: an entry for each name, and all that names their classes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from controlplane.cli.output import say
from controlplane.domain.errors import InputError, MissingTool
from controlplane.domain.fleet import Cluster, Server
from controlplane.domain.serving import LauncherName
from controlplane.files.fleets import state_root

if TYPE_CHECKING:
    from controlplane.files.pinned import PinRules
    from controlplane.ports import Launcher
    from launchers.docker.launcher import DockerLauncher
    from launchers.process import ProcessLauncher

DEFAULT_CLUSTER = Cluster()


@dataclass(frozen=True)
class Entry:
    """A launcher: how it is built, and what its fleets' model repositories need.

    `local` builds it where its servers are this host's, and `engine_answers` says whether they can be listed.
    """

    build: Callable[[Cluster], Launcher]
    pin_rules: Callable[[PinRules], PinRules] = lambda rules: rules
    local: Callable[[], ProcessLauncher | DockerLauncher] | None = None
    engine_answers: Callable[[], bool] = lambda: True


def launcher(name: LauncherName | None, cluster: Cluster = DEFAULT_CLUSTER) -> Launcher:
    """Return the launcher of that name; by default Docker where a GPU and an engine are, else processes.

    `cluster` is where pods are started. Raises MissingTool without the extra that it needs.
    """
    if name is None:
        from launchers.gpu import gpus

        name = LauncherName.DOCKER if gpus.inventory() and _docker_answers() else LauncherName.PROCESS
    return LAUNCHERS[name].build(cluster)


def local_launchers() -> tuple[Launcher, ...]:
    """Return the launchers of this host."""
    return tuple(entry.local() for entry in LAUNCHERS.values() if entry.local is not None)


def servers_of_host() -> tuple[Server, ...]:
    """Return the running servers of all of this user's fleets on this host: processes and containers."""
    listed = (e.local() for e in LAUNCHERS.values() if e.local is not None and e.engine_answers())
    return tuple(server for one in listed for server in one.servers_of_host())


def pin_rules(name: str) -> PinRules:
    """Return how a launcher's fleets pin models. Raises InputError for a variable that makes no sense."""
    from controlplane.files.pinned import LIMIT, PinRules

    given = os.environ.get(LIMIT)
    try:
        limited = PinRules() if not given else PinRules(limit_gb=float(given))
    except ValueError:
        raise InputError(f"{given!r} is no number of GB", field=f"${LIMIT}") from None
    return LAUNCHERS[LauncherName(name)].pin_rules(limited)


def _process() -> ProcessLauncher:
    from launchers.process import ProcessLauncher

    return ProcessLauncher(state_root())


def _docker() -> DockerLauncher:
    from launchers.docker.containers import ContainerOptions
    from launchers.docker.launcher import DockerLauncher

    return DockerLauncher(state_root(), ContainerOptions.from_environment(), say=say)


def _docker_answers() -> bool:
    from launchers.docker import engine

    return engine.reachable()


def _mounted(rules: PinRules) -> PinRules:
    from launchers.docker.containers import ContainerOptions

    return replace(rules, link_roots=ContainerOptions.from_environment().link_roots)


def _pods(cluster: Cluster) -> Launcher:
    try:
        from launchers.kubernetes.launcher import KubernetesLauncher
        from launchers.kubernetes.options import PodOptions
    except ModuleNotFoundError as error:
        problem = f"the launcher kubernetes needs {error.name}: pip install 'trisect[kubernetes]'"
        raise MissingTool(problem) from error
    return KubernetesLauncher(state_root(), cluster, PodOptions.from_environment())


LAUNCHERS = {
    LauncherName.PROCESS: Entry(lambda _: _process(), local=_process),
    LauncherName.DOCKER: Entry(lambda _: _docker(), _mounted, _docker, _docker_answers),
    LauncherName.KUBERNETES: Entry(_pods, lambda rules: replace(rules, copies=False)),
}

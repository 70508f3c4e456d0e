"""`ctl doctor`: what this host can do."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from controlplane.cli import launcher_registry, options
from controlplane.cli.output import answer
from controlplane.domain.fleet import Cluster
from controlplane.domain.serving import LauncherName
from controlplane.files.fleets import fleets, state_root
from controlplane.runtime.jobs.doctor import examine


def doctor(
    launcher: Annotated[
        LauncherName | None,
        typer.Option(help="Check what this launcher needs; by default process and docker."),
    ] = None,
    context: options.Context = None,
    namespace: options.Namespace = None,
    json: options.Json = False,
) -> None:
    """Check this host for GPUs, Triton, HAProxy, Docker and quotas; say how to get what is missing.

    With `--launcher kubernetes`, check a cluster: permissions, nodes, whether it admits a server's pod.
    """
    checked = launcher_registry.local_launchers()
    if launcher is not None:
        checked = (launcher_registry.launcher(launcher, Cluster(context, namespace)),)
    found = examine(checked, fleets(state_root()))
    table = Table(box=None, pad_edge=False, show_header=False)
    for capability in found:
        mark = "yes" if capability.available else "no"
        remedy = "" if capability.available or not capability.remedy else f" -> {capability.remedy}"
        table.add_row(mark, capability.name, f"{capability.detail}{remedy}")
    answer({"capabilities": found}, table, json=json)

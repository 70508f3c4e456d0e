"""`ctl doctor` and `ctl schema`: what this host can do, and what the documents have."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.output import answer
from controlplane.domain.errors import InputError
from controlplane.domain.serving import LauncherName


def doctor(
    launcher: Annotated[
        LauncherName | None,
        typer.Option(help="Check what this launcher needs; by default process and docker."),
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="For kubernetes: the kubeconfig's context; by default the current one.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="For kubernetes: the namespace; by default the context's.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Check this host for GPUs, Triton, HAProxy, Docker and quotas; say how to get what is missing.

    With `--launcher kubernetes`, check a cluster: permissions, nodes, whether it admits a server's pod.
    """
    from rich.table import Table

    from controlplane.cli import launcher_registry
    from controlplane.domain.fleet import Cluster
    from controlplane.files.fleets import fleets, state_root
    from controlplane.runtime.jobs.doctor import examine

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


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A verb, `spec` or `error`.",
            autocompletion=completers.documents,
        ),
    ],
) -> None:
    """Print the JSON Schema of what a verb prints with --json.

    `spec` is the input of `ctl plan`, `error` what a failing verb prints, `controller` a line of its output.
    """
    from controlplane.cli import schemas
    from controlplane.files.mistakes import nearest
    from controlplane.files.writing import to_json

    if name not in schemas.NAMES:
        raise InputError(f"there is no document {name!r}{nearest(name, schemas.NAMES)}", field="NAME")
    print(to_json(schemas.schema(name)), end="")

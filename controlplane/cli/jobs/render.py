"""`ctl render`: write a plan's model repositories."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.fleet.committed import show_manifest
from controlplane.cli.output import answer
from controlplane.files.pinned import PinRules
from controlplane.files.plans import read_plan
from controlplane.runtime.fleet.rendering import Place, pinned_plan


def render(
    plan: options.PlanFile,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    output: options.Output = options.DEFAULT_OUTPUT,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    manifest: Annotated[
        bool,
        typer.Option(
            "--manifest",
            help="Print PLAN as the Fleet object of a cluster instead, for a repository of manifests.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Write the model repository of each partition of PLAN, as `ctl apply` would; start nothing."""
    parsed, _ = read_plan(plan)
    if manifest:
        show_manifest(fleet, parsed, allow_violations=False, json=json)
        return
    _, rendered = pinned_plan(parsed, repository, Place(output, fleet), PinRules(), {})
    paths = {partition: str(one.path) for partition, one in rendered.items()}
    answer({"partitions": paths}, "\n".join(paths.values()), json=json)

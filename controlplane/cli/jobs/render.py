"""`ctl render`: write a plan's model repositories."""

from __future__ import annotations

from controlplane.cli import options
from controlplane.files.plans import read_plan
from controlplane.runtime.fleet.rendering import render_plan


def render(
    plan: options.PlanFile,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    output: options.Output = options.DEFAULT_OUTPUT,
    fleet: options.Fleet = options.DEFAULT_FLEET,
) -> None:
    """Write the model repository of each partition of PLAN, as `ctl apply` would; start nothing."""
    parsed, _ = read_plan(plan)
    for rendered in render_plan(parsed, repository=repository, output=output, fleet=fleet).values():
        print(rendered.path)

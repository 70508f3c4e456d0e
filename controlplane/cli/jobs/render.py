"""`ctl render`: write a plan's model repositories."""

from __future__ import annotations

from controlplane.cli import options
from controlplane.cli.output import print_json
from controlplane.files.plans import read_plan
from controlplane.runtime.fleet.rendering import render_plan


def render(
    plan: options.PlanFile,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    output: options.Output = options.DEFAULT_OUTPUT,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Write the model repository of each partition of PLAN, as `ctl apply` would; start nothing."""
    parsed, _ = read_plan(plan)
    rendered = render_plan(parsed, repository=repository, output=output, fleet=fleet)
    if json:
        print_json({"partitions": {partition: str(one.path) for partition, one in rendered.items()}})
        return
    for one in rendered.values():
        print(one.path)

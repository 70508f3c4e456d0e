"""`ctl demo`: every step with real Tritons, on this host or in a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import options
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import print_json, progress_bar, say, say_when_compiling

if TYPE_CHECKING:
    from controlplane.runtime.demo.demo import Outcome

_FLEET = "demo"
_ON_CPU = (Path("model_repository/demo.yaml"), options.DEFAULT_REPOSITORY)
_ON_GPU = (Path("gpu_kit/demo.yaml"), Path("gpu_kit/models"))
"""Spec and repository. The model of the second needs no more of a GPU than its driver."""


def demo(
    spec: Annotated[Path, typer.Option(help="The spec of the demo's workloads.")] = _ON_CPU[0],
    device: Annotated[
        str, typer.Option(help="`cpu`, or `gpu` for this host's first GPU, with a model of its own.")
    ] = "cpu",
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    output: options.Output = options.DEFAULT_OUTPUT,
    given: options.SetServe = None,
    name: Annotated[
        str | None, typer.Option(help="Name the fleet demo-NAME, to run beside another demo of this host.")
    ] = None,
    plan_file: Annotated[Path | None, typer.Option(help="Keep the plan in this file.")] = None,
    json: options.Json = False,
) -> None:
    """Run every step with real Tritons: profile, plan, apply, load, repair, destroy.

    With --set serve.launcher=kubernetes in pods that this host reaches, with the repository in
    $TRISECT_MODELS. Prints predicted beside measured latencies. It slows one server down until it breaks its
    SLO, and the controller redirects its traffic to the shadow.
    """
    from controlplane.cli import wiring
    from controlplane.domain import units
    from controlplane.domain.fleet import Cluster
    from controlplane.domain.serving import LauncherName
    from controlplane.domain.settings import ServeSettings
    from controlplane.files.fleets import state_root
    from controlplane.files.set_values import with_values
    from controlplane.runtime.demo.demo import Demo, Scene, run

    section = with_values(ServeSettings(), given or []).serve
    launcher = section.launcher or options.launcher_of_environment()
    if device != "cpu":
        launcher = launcher or LauncherName.PROCESS
        spec, repository = _ON_GPU if (spec, repository) == _ON_CPU else (spec, repository)
    fleet_name = _FLEET if name is None else f"{_FLEET}-{units.safe_name(name, '--name')}"
    say_when_compiling()
    scene = Scene(
        spec=spec,
        repository=repository,
        output=output,
        scratch=state_root() / "profiling",
        section=section,
        slowed_by_request=repository == _ON_GPU[1],
    )
    cluster = Cluster(section.context, section.namespace)
    with progress_bar() as bar:
        fleet = wiring.fleet(fleet_name, launcher_name=launcher, cluster=cluster)
        steps = Demo(scene, fleet, wiring.place(device, fleet.launcher), bar, say)
        outcome = run(steps, plan_file)
    if not _print(outcome, json=json):
        raise typer.Exit(EXIT_NO)


def _print(outcome: Outcome, *, json: bool) -> bool:
    """Print a demo's tables or its document; return whether no request was lost and a violation repaired."""
    from controlplane.report.tables.demo_table import demo_table, repair_lines, repair_table
    from controlplane.report.tables.terminal import show

    failed = sum(row.failed for row in outcome.rows)
    repair = outcome.repair
    lost = 0 if repair is None else sum(span.failed for span in repair.spans)
    if json:
        print_json({"workloads": outcome.rows, "repair": repair, "no_repair": outcome.no_repair or None})
        return repair is not None and not failed and not lost
    show(demo_table(outcome.rows))
    print(f"\n{sum(row.answered for row in outcome.rows)} requests answered, {failed} failed\n")
    if repair is None:
        print(f"no violation was repaired: {outcome.no_repair}")
        return False
    print("\n".join(repair_lines(repair)), end="\n\n")
    show(repair_table(repair))
    print(f"\n{lost} requests failed")
    return not failed and not lost

"""`ctl demo`: the whole story on this host, with real Tritons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.domain.fleet import Endpoints

_DEFAULTS = Endpoints()
_FLEET = "demo"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(
    spec: Annotated[Path, typer.Option(help="What is asked for.")] = Path("model_repository/demo.yaml"),
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    output: options.Output = options.DEFAULT_OUTPUT,
    launcher: options.Launcher = None,
    http_port: options.HttpPort = _DEFAULTS.http_port,
    grpc_port: options.GrpcPort = _DEFAULTS.grpc_port,
    metrics_port: options.MetricsPort = _DEFAULTS.metrics_port,
    plan_file: Annotated[Path | None, typer.Option(help="Keep the plan in this file.")] = None,
) -> None:
    """Profile the sample models, plan, apply, load, compare, break a promise and see it repaired, destroy."""
    from controlplane.cli import wiring
    from controlplane.files.fleets import state_root
    from controlplane.report.demo_table import demo_table
    from controlplane.report.plan_table import show
    from controlplane.report.progress import Bar
    from controlplane.report.repair_table import repair_lines, repair_table
    from controlplane.runtime.demo.demo import Demo, Scene, run
    from controlplane.runtime.jobs.compiling import say_when_compiling

    say_when_compiling(wiring.say)
    perf = Path(".tools/perf")
    scene = Scene(
        spec=spec,
        repository=repository,
        output=output,
        scratch=state_root() / "profiling",
        endpoints=Endpoints(_DEFAULTS.host, http_port, grpc_port, metrics_port),
        perf_home=perf if (perf / "bin" / "perf_analyzer").exists() else None,
    )
    with Bar() as bar:
        fleet = wiring.fleet(_FLEET, launcher_name=launcher, endpoints=scene.endpoints)
        actors = Demo(scene, fleet.launcher, fleet, wiring.place("cpu"), bar, wiring.say)
        story = run(actors, plan_file)
    show(demo_table(story.rows))
    failed = sum(row.failed for row in story.rows)
    print(f"\n{sum(row.answered for row in story.rows)} requests answered, {failed} failed\n")
    if story.repair is None:
        print(f"no violation was repaired: {story.untold}")
        raise typer.Exit(1)
    print("\n".join(repair_lines(story.repair)), end="\n\n")
    show(repair_table(story.repair))
    lost = sum(span.failed for span in story.repair.spans)
    print(f"\n{lost} requests failed")
    if failed or lost:
        raise typer.Exit(1)

"""`ctl demo`: every step with real Tritons, on this host or in a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options, wiring
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import print_json, progress_bar, say, say_when_compiling
from controlplane.domain import units
from controlplane.domain.device import CPU_DEVICE
from controlplane.domain.fleet import Cluster, GatewayConfig
from controlplane.domain.serving import LauncherName
from controlplane.files.fleets import state_root
from controlplane.report.tables.demo_table import demo_table, repair_lines, repair_table
from controlplane.report.tables.terminal import show
from controlplane.runtime.demo.demo import Demo, Outcome, Scene, run

_DEFAULTS = GatewayConfig()
_FLEET = "demo"
_ON_CPU = (Path("model_repository/demo.yaml"), options.DEFAULT_REPOSITORY)
_ON_GPU = (Path("gpu_kit/demo.yaml"), Path("gpu_kit/models"))
"""Spec and repository. The model of the second needs no more of a GPU than its driver."""


def demo(
    spec: Annotated[Path, typer.Option(help="The spec of the demo's workloads.")] = _ON_CPU[0],
    device: Annotated[
        str, typer.Option(help="`cpu`, or `gpu` for this host's first GPU, with a model of its own.")
    ] = CPU_DEVICE,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    output: options.Output = options.DEFAULT_OUTPUT,
    launcher: options.Launcher = None,
    context: options.Context = None,
    namespace: options.Namespace = None,
    http_port: options.HttpPort = _DEFAULTS.http_port,
    grpc_port: options.GrpcPort = _DEFAULTS.grpc_port,
    metrics_port: options.MetricsPort = _DEFAULTS.metrics_port,
    name: Annotated[
        str | None, typer.Option(help="Name the fleet demo-NAME, to run beside another demo of this host.")
    ] = None,
    plan_file: Annotated[Path | None, typer.Option(help="Keep the plan in this file.")] = None,
    json: options.Json = False,
) -> None:
    """Run every step with real Tritons: profile, plan, apply, load, repair, destroy.

    On this host, or with --launcher kubernetes in pods that this host reaches, with the repository in
    $TRISECT_MODELS. Prints predicted beside measured latencies. The repair: the demo slows one server down
    until it breaks its SLO, and the controller redirects its traffic to the shadow.
    """
    if launcher is not LauncherName.KUBERNETES:
        options.refuse("is for --launcher kubernetes", {"--context": context, "--namespace": namespace})
    if device != CPU_DEVICE:
        launcher = launcher or LauncherName.PROCESS
        spec, repository = _ON_GPU if (spec, repository) == _ON_CPU else (spec, repository)
    fleet_name = _FLEET if name is None else f"{_FLEET}-{units.safe_name(name, '--name')}"
    say_when_compiling()
    perf = Path(".tools/perf")
    scene = Scene(
        spec=spec,
        repository=repository,
        output=output,
        scratch=state_root() / "profiling",
        endpoints=GatewayConfig(_DEFAULTS.host, http_port, grpc_port, metrics_port),
        perf_home=perf if (perf / "bin" / "perf_analyzer").exists() else None,
        cluster=Cluster(context, namespace),
    )
    with progress_bar() as bar:
        fleet = wiring.fleet(fleet_name, launcher_name=launcher, cluster=scene.cluster)
        steps = Demo(scene, fleet.launcher, fleet, wiring.place(device, fleet.launcher), bar, say)
        outcome = run(steps, plan_file)
    failed = sum(row.failed for row in outcome.rows)
    repair = outcome.repair
    lost = sum(span.failed for span in repair.spans) if repair is not None else 0
    if json:
        print_json(
            {
                "workloads": outcome.rows,
                "repair": repair,
                "no_repair": outcome.no_repair or None,
            }
        )
    else:
        _print(outcome)
    if failed or lost or repair is None:
        raise typer.Exit(EXIT_NO)


def _print(outcome: Outcome) -> None:
    """Print the tables of a demo."""
    show(demo_table(outcome.rows))
    failed = sum(row.failed for row in outcome.rows)
    print(f"\n{sum(row.answered for row in outcome.rows)} requests answered, {failed} failed\n")
    if outcome.repair is None:
        print(f"no violation was repaired: {outcome.no_repair}")
        return
    print("\n".join(repair_lines(outcome.repair)), end="\n\n")
    show(repair_table(outcome.repair))
    lost = sum(span.failed for span in outcome.repair.spans)
    print(f"\n{lost} requests failed")

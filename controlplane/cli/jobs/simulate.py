"""`ctl simulate`: predicted latencies of each workload of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.exits import EXIT_NO
from controlplane.cli.output import print_json
from controlplane.cli.stderr import say, warn
from controlplane.files.plans import read_plan
from controlplane.files.writing import write_text
from controlplane.report.tables.plan_table import counted, show
from controlplane.report.tables.simulation_table import simulation_table
from controlplane.runtime.jobs.compiling import say_when_compiling
from controlplane.runtime.jobs.simulate import run

_TIMELINE_POINTS = 40


def simulate(
    plan: options.PlanFile,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    seconds: Annotated[float, typer.Option(help="The simulated time in seconds.")] = 100.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)] = 1,
    arrivals: Annotated[
        list[str] | None,
        typer.Option(
            help="poisson, constant or a trace (CSV), for all or for one as WORKLOAD=... [the plan's]."
        ),
    ] = None,
    truth: Annotated[
        str | None,
        typer.Option(
            help="Execution times to simulate with: a latency model, one times a factor (NAME*1.1), or a "
            "folder of profiles [the plan's model]."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw latency over time and CDFs here (.svg, .png or .pdf).", callback=options.drawable
        ),
    ] = None,
    report: options.Report = None,
    json: options.Json = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if a workload misses its SLO.")] = False,
) -> None:
    """Predict the latencies of each workload of PLAN by simulation.

    Simulates random arrivals, Triton's dynamic batcher, and the interference of partitions on one GPU.
    """
    say_when_compiling(say)
    simulated = read_plan(plan)[0]
    result = run(
        simulated,
        profiles=profiles,
        truth=truth,
        arrivals=arrivals or [],
        seconds=seconds,
        seed=seed,
        timeline_points=_TIMELINE_POINTS if plot is not None else 0,
    )
    if plot is not None:
        from controlplane.report.plots.simulation_plot import plot_simulation

        plot_simulation(result, plot)
    if report is not None:
        from controlplane.runtime.jobs.report import simulation_report

        write_text(report, simulation_report(simulated, result, profiles))
    if json:
        print_json(result.document())
    else:
        show(simulation_table(result, simulated.quantile))
    if check and result.breaks:
        warn(f"{counted(result.breaks, 'workload')} of {len(result.workloads)} would miss the SLO")
        raise typer.Exit(EXIT_NO)

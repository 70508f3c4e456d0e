"""`ctl simulate`: predicted latencies of each workload of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import answer, say, say_when_compiling, warn
from controlplane.domain.order import LONGEST_MS
from controlplane.domain.plan import Plan
from controlplane.files.plans import read_plan
from controlplane.files.writing import write_text
from controlplane.report.tables.simulation_table import simulation_table
from controlplane.report.words import counted
from controlplane.runtime.jobs.simulate import Asked, run, with_guard

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
    guard: Annotated[
        bool,
        typer.Option(
            "--guard", help="Simulate the controller's guard too, and compare with a fleet without it."
        ),
    ] = False,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="With --guard: slow:PARTITION*FACTOR@SECOND, slower:MODEL*FACTOR@SECOND, "
            "crash:PARTITION@SECOND or lost:GPU@SECOND; may be repeated."
        ),
    ] = None,
    overtake_ms: Annotated[
        int | None,
        typer.Option(
            "--overtake-ms",
            help="Simulate a fleet with --late-binding: how long a shorter request may pass longer ones.",
            min=0,
            max=LONGEST_MS,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if a workload misses its SLO.")] = False,
) -> None:
    """Predict the latencies of each workload of PLAN by simulation.

    Simulates random arrivals, Triton's dynamic batcher, and the interference of partitions on one GPU. With
    --guard the controller's own decisions run on simulated time: what faults and a wrong --truth break, and
    how soon it is repaired.
    """
    options.refuse("is for --guard", {} if guard else {"--fault": fault or None})
    options.refuse("is not for --guard", {"--plot": plot, "--report": report} if guard else {})
    say_when_compiling()
    simulated = read_plan(plan)[0]
    points = _TIMELINE_POINTS if plot is not None else 0
    asked = Asked(profiles, truth, arrivals or [], seconds, seed, points, overtake_ms)
    if guard:
        _show_guarded(simulated, asked, fault or [], json=json, check=check)
        return
    result = run(simulated, asked)
    if plot is not None:
        from controlplane.report.plots import plot_simulation

        plot_simulation(result, plot)
        say(f"{plot}: written")
    if report is not None:
        from controlplane.runtime.jobs.plan import plan_page

        write_text(report, plan_page(simulated, profiles, result))
        say(f"{report}: written")
    answer(result.document(), simulation_table(result, simulated.quantile), json=json)
    _check(result.breaks if check else 0, len(result.workloads))


def _show_guarded(plan: Plan, asked: Asked, faults: list[str], *, json: bool, check: bool) -> None:
    from controlplane.report.tables.guard_table import guard_table
    from controlplane.simulate.closed_loop.faults import parse

    found = with_guard(plan, asked, [parse(text, plan) for text in faults])
    answer(found.document(), guard_table(found), json=json)
    _check(found.breaks if check else 0, len(found.guarded.workloads))


def _check(breaks: int, workloads: int) -> None:
    if breaks:
        warn(f"{counted(breaks, 'workload')} of {workloads} would miss the SLO")
        raise typer.Exit(EXIT_NO)

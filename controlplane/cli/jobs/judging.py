"""`ctl simulate` and `ctl compare`: what plans are worth, without running them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import options
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import answer, progress_bar, say, say_when_compiling, warn
from controlplane.domain.errors import InputError
from controlplane.domain.serving import LONGEST_MS
from controlplane.planning.registry import DEFAULT, STRATEGIES
from controlplane.report.words import counted

if TYPE_CHECKING:
    from controlplane.domain.plan import Plan
    from controlplane.runtime.jobs.simulate import Asked

_Arrivals = Annotated[
    list[str] | None,
    typer.Option(help="poisson, constant or a trace (CSV), for all or for one as WORKLOAD=... [the plan's]."),
]
_Truth = Annotated[
    str | None,
    typer.Option(
        help="Execution times to simulate with: a latency model, one times a factor (NAME*1.1), or a folder "
        "of profiles [the plan's model]."
    ),
]
_Guard = Annotated[
    bool,
    typer.Option("--guard", help="Simulate the controller's guard too, and compare with a fleet without it."),
]
_Fault = Annotated[
    list[str] | None,
    typer.Option(
        help="With --guard: slow:PARTITION*FACTOR@SECOND, slower:MODEL*FACTOR@SECOND, crash:PARTITION@SECOND "
        "or lost:GPU@SECOND; may be repeated."
    ),
]
_Overtake = Annotated[
    int | None,
    typer.Option(
        help="Simulate a fleet with serve.late_binding: how long a shorter request may pass longer ones.",
        min=0,
        max=LONGEST_MS,
    ),
]
_Strategies = Annotated[
    str,
    typer.Option(
        help=f"The strategies, separated by commas: {DEFAULT} is ours, the others are of papers: "
        f"{', '.join(name for name in STRATEGIES if name != DEFAULT)}."
    ),
]


def simulate(
    plan: options.PlanFile,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    seconds: Annotated[float, typer.Option(help="The simulated time in seconds.")] = 100.0,
    seed: options.Seed = 1,
    arrivals: _Arrivals = None,
    truth: _Truth = None,
    report: options.Report = None,
    json: options.Json = False,
    guard: _Guard = False,
    fault: _Fault = None,
    overtake_ms: _Overtake = None,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if a workload misses its SLO.")] = False,
) -> None:
    """Predict the latencies of each workload of PLAN by simulation.

    With --guard the controller's own decisions run on simulated time: what faults and a wrong --truth break,
    and how soon it is repaired.
    """
    from controlplane.files.plans import read_plan
    from controlplane.files.writing import write_text
    from controlplane.report.tables.simulation_table import simulation_table
    from controlplane.runtime.jobs.plan import plan_page
    from controlplane.runtime.jobs.simulate import Asked, run

    options.refuse("is for --guard", {} if guard else {"--fault": fault or None})
    options.refuse("is not for --guard", {"--report": report} if guard else {})
    say_when_compiling()
    simulated = read_plan(plan)[0]
    asked = Asked(profiles, truth, arrivals or [], seconds, seed, overtake_ms)
    if guard:
        _show_guarded(simulated, asked, fault or [], json=json, check=check)
        return
    result = run(simulated, asked)
    if report is not None:
        write_text(report, plan_page(simulated, profiles, result))
        say(f"{report}: written")
    answer(result.document(), simulation_table(result, simulated.quantile), json=json)
    _check(result.breaks if check else 0, len(result.workloads))


def _show_guarded(plan: Plan, asked: Asked, faults: list[str], *, json: bool, check: bool) -> None:
    from controlplane.report.tables.simulation_table import guard_table
    from controlplane.runtime.jobs.simulate import with_guard
    from controlplane.simulate.closed_loop.faults import parse

    found = with_guard(plan, asked, [parse(text, plan) for text in faults])
    answer(found.document(), guard_table(found), json=json)
    _check(found.breaks if check else 0, len(found.guarded.workloads))


def _check(breaks: int, workloads: int) -> None:
    if breaks:
        warn(f"{counted(breaks, 'workload')} of {workloads} would miss the SLO")
        raise typer.Exit(EXIT_NO)


def compare(
    spec: options.Spec,
    strategies: _Strategies = "joint,igniter,ffd++",
    truths: Annotated[
        str | None,
        typer.Option(
            help="The truths to simulate, separated by commas, of believed, measured, slower, faster, "
            "burstier [these] and even."
        ),
    ] = None,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    seconds: Annotated[float, typer.Option(help="The simulated time of each plan in seconds.")] = 30.0,
    seed: options.Seed = 1,
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Plan SPEC with several strategies and simulate each plan under several truths.

    A truth is an assumption about the real execution times and arrivals: `believed` is what the plan's own
    latency model predicts, `measured` the profiles; `slower` and `faster` are 10 % off them.
    """
    from controlplane.files.documents import plain
    from controlplane.files.mistakes import nearest
    from controlplane.files.writing import write_text
    from controlplane.report.page import page
    from controlplane.report.tables.comparison_table import comparison_table
    from controlplane.runtime.jobs import compare as comparing

    names = list(dict.fromkeys(strategies.split(",")))
    for name in names:
        if name not in STRATEGIES:
            problem = f"no strategy is called {name!r}{nearest(name, STRATEGIES)}"
            raise InputError(problem, field="--strategies")
    question = comparing.Question(spec, profiles, seconds, seed)
    wanted = comparing.DEFAULT if truths is None else [name for name in truths.split(",") if name]
    with progress_bar() as bar:
        found = comparing.compare(question, names, comparing.chosen(wanted), bar)
    if report is not None:
        write_text(report, page("Strategies compared", {"title": "Strategies compared", **plain(found)}))
        say(f"{report}: written")
    answer(found, comparison_table(found), json=json)

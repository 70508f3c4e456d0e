"""`ctl simulate`, `compare` and `validate`: what plans and predictions are worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import answer, progress_bar, say, say_when_compiling, warn
from controlplane.domain.errors import InputError
from controlplane.domain.serving import LONGEST_MS
from controlplane.planning.registry import DEFAULT, STRATEGIES
from controlplane.report.words import counted

if TYPE_CHECKING:
    from controlplane.simulate.closed_loop.faults import WithAndWithout
    from controlplane.simulate.result import SimulationResult

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
    from controlplane.report.tables.simulation_table import guard_table, simulation_table
    from controlplane.runtime.jobs.plan import plan_page
    from controlplane.runtime.jobs.simulate import Asked, run, with_guard
    from controlplane.simulate.closed_loop.faults import parse

    options.refuse("is for --guard", {} if guard else {"--fault": fault or None})
    options.refuse("is not for --guard", {"--report": report} if guard else {})
    say_when_compiling()
    simulated = read_plan(plan)[0]
    asked = Asked(profiles, truth, arrivals or [], seconds, seed, overtake_ms)
    found: SimulationResult | WithAndWithout
    if guard:
        found = with_guard(simulated, asked, [parse(text, simulated) for text in fault or []])
        table, count = guard_table(found), len(found.guarded.workloads)
    else:
        found = run(simulated, asked)
        table, count = simulation_table(found, simulated.quantile), len(found.workloads)
        if report is not None:
            write_text(report, plan_page(simulated, profiles, found))
            say(f"{report}: written")
    answer(found.document(), table, json=json)
    if check and found.breaks:
        warn(f"{counted(found.breaks, 'workload')} of {count} would miss the SLO")
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


def validate(
    catalogue: Annotated[
        str | None,
        typer.Option(
            help="A device with built-in measurements, like v100.", autocompletion=completers.built_in_devices
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="A profile's file; each point is predicted from the others.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="A CSV of models alone (model, percent, batch, ms) beside those of --profiles."),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            help="A running fleet: compare the record of its controller.", autocompletion=completers.fleets
        ),
    ] = None,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Watch the fleet for so many seconds instead of reading its record.", min=2, max=86400
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Correct the next plan's predictions by the fleet's measurements."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Compare the latency models' predictions with measurements on which they were not fitted.

    With --catalogue: each batch size predicted from the others. With --fleet: the execution times of
    its servers, and P99s beside SLOs. Of many models the ten worst are shown, all by --json.
    """
    from controlplane.report.tables.observed_table import validation_table
    from controlplane.runtime.jobs.validate import measured_alone, validation

    if fleet is not None:
        others = {"--catalogue": catalogue, "--profile": profile, "--measured": measured}
        options.refuse("cannot be combined with --fleet", others)
        _running(fleet, profiles, seconds, calibrate=calibrate, json=json)
        return
    options.refuse("needs --fleet", {"--seconds": seconds, "--calibrate": calibrate or None})
    if measured is None:
        found = validation(catalogue, profile)
    else:
        others = {"--catalogue": catalogue, "--profile": profile}
        options.refuse("cannot be combined with --measured", others)
        found = measured_alone(profiles, measured)
    answer(found, validation_table(found), json=json)


def _running(fleet: str, profiles: Path, seconds: float | None, *, calibrate: bool, json: bool) -> None:
    from rich.console import Group, RenderableType

    from controlplane.cli import wiring
    from controlplane.report.tables.observed_table import kept_table, observed_document, observed_table
    from controlplane.runtime.fleet.calibrate import learn, observe, recall

    found = wiring.existing_fleet(fleet)[0]
    if seconds is None:
        seen, unseen, kept = recall(found, profiles)
    else:
        (seen, unseen), kept = observe(found, profiles, seconds), []
    if calibrate:
        written = learn(profiles, seen)
        say(f"calibrated: {written}" if written else "no usable measurement; nothing is changed")
    table: RenderableType = observed_table(seen, unseen)
    if kept:
        table = Group(table, "", kept_table(kept))
    answer(observed_document(seen, unseen, kept), table, json=json)

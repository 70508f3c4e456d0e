"""`ctl plan`: a spec becomes a plan; `ctl train`: a policy for its InSS strategy."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.options import Allowance
from controlplane.cli.output import answer, print_json, progress_bar, say, say_when_compiling, warn
from controlplane.domain.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from controlplane.domain.settings import PlanSettings
    from controlplane.domain.workload import Spec
    from controlplane.files.documents import Document
    from controlplane.runtime.jobs.plan import Improve, Planned

_Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write the plan to this file.", callback=options.writable("--output")
    ),
]
_Strategy = Annotated[str, typer.Option(help="The planning algorithm.", autocompletion=completers.strategies)]
_Rates = Annotated[
    str | None,
    typer.Option(
        help="Rates in place of SPEC's: fleet:NAME takes those that the controller of a fleet forecasts, "
        "prometheus:URL the result of --query."
    ),
]
_Query = Annotated[
    str | None,
    typer.Option(
        help="PromQL for --rates prometheus:URL: inferences per second by workload, endpoint or model, such "
        "as quantile_over_time(0.99, ...[1d:1m])."
    ),
]
_Against = Annotated[
    Path | None,
    typer.Option(help="The plan that runs now: the new one moves as few workloads as its cost allows."),
]
_Prove = Annotated[
    bool,
    typer.Option(
        help="For joint: prove up to 12 workloads' plan best, or find a cheaper one; more get a closer bound."
    ),
]


def plan(
    spec: options.Spec,
    output: _Output = None,
    strategy: _Strategy = "joint",
    given: options.SetPlan = None,
    rates: _Rates = None,
    query: _Query = None,
    against: _Against = None,
    prove: _Prove = False,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    allow: options.Allow = None,
    json: options.Json = False,
) -> None:
    """Choose the GPU, share and batch of every workload in SPEC, and which workloads share a GPU.

    Exit code 3: some workloads are infeasible; the others are planned and written.

    Research: --strategy takes algorithms of papers too (`ctl compare -h` lists them), whose own settings
    `--set help` marks.
    """
    from controlplane.files.plans import read_plan
    from controlplane.runtime import SystemClock
    from controlplane.runtime.jobs.plan import Choices, check_spare_core, make_plan

    allowed = options.allowances(allow)
    compiled = say_when_compiling()
    parsed, document, settings = _read(spec, rates, query, given or [])
    cores = len(os.sched_getaffinity(0))
    planned = make_plan(
        parsed,
        document,
        Choices(strategy, settings),
        profiles=profiles,
        cores=cores,
        clock=SystemClock(),
        previous=None if against is None else read_plan(against)[0],
        improve=_proof(strategy) if prove else None,
    )
    _warn(planned)
    made = planned.plan
    check_spare_core(made, document, cores, say, accepted=Allowance.ALL_CORES in allowed, spec=parsed)
    accepted = Allowance.VIOLATIONS in allowed
    _print(planned, document, output, accepted=accepted, json=json)
    if compiled() and not json:
        say("the planning time includes a compilation; the next plan needs none")
    if made.infeasible:
        raise typer.Exit(InfeasibleError.exit_code)


def _read(
    path: Path, rates: str | None, query: str | None, given: list[str]
) -> tuple[Spec, Document, PlanSettings]:
    """Return the spec as the options change it, its document, and how to plan it."""
    from controlplane.domain.serving import Serving
    from controlplane.domain.settings import PlanSettings
    from controlplane.domain.workload import with_covers_demanded
    from controlplane.files.plans import read_spec
    from controlplane.files.set_values import with_values

    spec, document = read_spec(path)
    if rates is None:
        options.refuse("is for --rates prometheus:URL", {"--query": query})
    else:
        from controlplane.runtime.jobs.rates import with_rates

        spec = with_rates(spec, rates, query, say)
    # Defaults too: a plan without a section is one of an earlier version, and leaves its fleet's as it is.
    settings = with_values(PlanSettings(serve=spec.serve or Serving()), given)
    if settings.covers is not None:
        spec = replace(spec, workloads=with_covers_demanded(spec.workloads, settings.covers))
    return replace(spec, serve=settings.serve), document, settings


def _warn(planned: Planned) -> None:
    from controlplane.runtime.jobs.plan import blind_types, models_of_one_share

    for kind in blind_types(planned):
        say(
            f"warning: the latency model {planned.plan.latency_model} has no interference on {kind}, which "
            "is in no catalogue: neighbours count as free; measure models beside each other: `ctl profile "
            "--colocation SECONDS`"
        )
    for model, kind, percent in models_of_one_share(planned):
        say(
            f"warning: {model} was measured at {percent:g} % of {kind} only, so it gets no smaller share: "
            f"`ctl profile {model} --device {kind}` measures more shares"
        )


def _print(planned: Planned, document: Document, output: Path | None, *, accepted: bool, json: bool) -> None:
    """Write and print a plan; with `json`, stdout is the plan alone, which `ctl apply` reads."""
    from controlplane.files.plans import write_plan
    from controlplane.report.tables.change_table import change_table
    from controlplane.report.tables.plan_table import plan_table
    from controlplane.report.tables.terminal import plain, show
    from controlplane.runtime.jobs.plan import refuse_violations

    made, previous = planned.plan, planned.request.previous
    if output is not None and (accepted or made.verified):
        write_plan(output, made)  # before anything is shown: the reader of stdout may have gone
    if not json:
        show(plan_table(made))
    if previous is not None:
        table = change_table(previous, made, planned.request.workloads)
        if json:
            warn(plain(table))
        else:
            show(table)
    if output is not None:
        if not accepted:
            refuse_violations(made.violations, document, "it is not written without --allow violations")
        say(f"{output}: written")
    if json:  # last: what fails before prints an error in its place
        print_json(made)


def _proof(strategy: str) -> Improve:
    if strategy != "joint":
        raise InputError(f"is for --strategy joint alone, not for {strategy}", field="--prove")
    from controlplane.planning.exact.prove import prove

    return prove


def train(
    spec: options.Spec,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The policy's file; the learning curve and a checkpoint are written beside it.",
        ),
    ],
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    most_models: Annotated[
        int | None, typer.Option(help="The largest number of models in a training plan [all of SPEC].", min=1)
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="The number of rounds, each of 64 plans [400].", min=1)
    ] = None,
    reward: Annotated[
        str, typer.Option(help="The reward: goodput, terminal (at the end of a plan only) or paper (Eq 3).")
    ] = "goodput",
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.", min=0)] = 1,
    json: options.Json = False,
) -> None:
    """Train a policy for `ctl plan --strategy inss` on random specs like SPEC.

    They have SPEC's models and GPU types, and other rates, SLOs and sizes. After an interruption, the same
    command continues from its checkpoint. Training needs the extra `rl`, planning does not.
    """
    from controlplane.runtime import SystemClock
    from controlplane.runtime.jobs.train import Lesson, train_policy

    with progress_bar() as bar:
        learnt = train_policy(
            Lesson(spec, output, most_models, rounds, reward, seed),
            profiles=profiles,
            progress=bar,
            clock=SystemClock(),
        )
    document = {"policy": str(output), "summary": learnt.summary, "curve": learnt.curve}
    answer(document, learnt.summary, json=json)

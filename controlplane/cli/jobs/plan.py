"""`ctl plan`: a spec becomes a plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import RenderableType

from controlplane.cli import completers, options
from controlplane.cli.options import Allowance
from controlplane.cli.output import print_json, say, say_when_compiling, warn
from controlplane.domain.errors import InfeasibleError, InputError
from controlplane.domain.plan import Rule
from controlplane.domain.workload import LARGEST_COVER, with_covers_demanded
from controlplane.files.specs import read_spec
from controlplane.latency.registry import FITS
from controlplane.planning.registry import DEFAULT, STRATEGIES
from controlplane.report.tables.plan_table import plan_table
from controlplane.report.tables.terminal import plain, show
from controlplane.runtime import SystemClock
from controlplane.runtime.fleet.preflight import check_spare_core
from controlplane.runtime.jobs.plan import (
    Choices,
    Improve,
    blind_types,
    make_plan,
    models_of_one_share,
    refuse_violations,
)


def plan(
    spec: options.Spec,
    strategy: Annotated[
        str,
        typer.Option(
            help=f"The planning algorithm: {', '.join(STRATEGIES)}.",
            autocompletion=completers.strategies,
        ),
    ] = DEFAULT,
    rule: Annotated[
        Rule | None,
        typer.Option(
            help="The latency limit: P99 within the SLO, or execution within half of it; by default the "
            "strategy's own."
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            help=f"The model of execution times and interference: {', '.join(FITS)}; by default the "
            "strategy's own.",
            autocompletion=completers.latency_models,
        ),
    ] = None,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the plan to this file.", callback=options.writable("--output")
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="The plan that runs now: the new one moves as few workloads as its cost allows."),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="Rates in place of SPEC's: fleet:NAME takes those that the controller of a fleet forecasts, "
            "prometheus:URL the result of --query."
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            help="PromQL for --rates prometheus:URL: inferences per second by workload, endpoint or model, "
            "such as quantile_over_time(0.99, ...[1d:1m])."
        ),
    ] = None,
    json: options.Json = False,
    quantile: Annotated[
        float, typer.Option(help="Plan with this quantile of the execution times; 0.5 is the median.")
    ] = 0.95,
    covers: Annotated[
        float | None,
        typer.Option(
            help="Demand of each shadow that its model may be so many times slower than planned, as "
            "`shadow: {covers}` in SPEC does, and say how many GPUs that costs.",
            min=1.0,
            max=LARGEST_COVER,
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            help="The length of the search: attempts to empty a GPU (joint), or rounds (inss).", min=0
        ),
    ] = None,
    prove: Annotated[
        bool,
        typer.Option(help="For joint with up to 12 workloads: prove the plan best, or find a cheaper one."),
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="Stop the search after so many seconds; the plan says if that happened.", min=0),
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same plan.", min=0)] = 1,
    bda: Annotated[
        Literal["exact", "paper"] | None,
        typer.Option(
            help="For inss, the search for batches: `exact` tries each, `paper` follows the paper. [exact]"
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="For inss: a policy from `ctl train`, or `none` for the search alone. [built in]"),
    ] = None,
    as_coded: Annotated[
        bool,
        typer.Option(
            "--as-coded",
            help="For gpulet's strategies: follow the authors' code where it differs from the papers.",
        ),
    ] = False,
    late_binding: Annotated[
        bool,
        typer.Option(
            "--late-binding",
            help="For joint: where it saves a GPU, requests of several models wait at the gateway for their "
            "turn, the shortest first. Not for Kubernetes.",
        ),
    ] = False,
    allow: options.Allow = None,
) -> None:
    """Choose the GPU, share and batch of every workload in SPEC, and which workloads share a GPU.

    Exit code 3: some workloads are infeasible; the others are planned and written.
    Exit code 2: SPEC or an option is wrong, or the plan takes every core of this host (see --allow).
    With --json, the table of --against is on stderr.
    """
    allowed = options.allowances(allow)
    compiled = say_when_compiling()
    parsed, document = read_spec(spec)
    if rates is None:
        options.refuse("is for --rates prometheus:URL", {"--query": query})
    else:
        from controlplane.runtime.jobs.rates import with_rates

        parsed = with_rates(parsed, rates, query, say)
    if covers is not None:
        parsed = replace(parsed, workloads=with_covers_demanded(parsed.workloads, covers))
    previous = None
    if against is not None:
        from controlplane.files.plans import read_plan

        previous = read_plan(against)[0]
    cores = len(os.sched_getaffinity(0))
    planned = make_plan(
        parsed,
        document,
        Choices(
            strategy, rule, latency, quantile, seed, iterations, budget, bda, policy, as_coded, late_binding
        ),
        profiles=profiles,
        cores=cores,
        clock=SystemClock(),
        previous=previous,
        improve=_proof(strategy) if prove else None,
    )
    made = planned.plan
    for kind in blind_types(planned):
        say(
            f"warning: the latency model {made.latency_model} knows no interference on {kind}: it is in no "
            "catalogue, and neighbours count as free; measure models beside each other: `ctl profile "
            "--colocation SECONDS`"
        )
    for model, kind, percent in models_of_one_share(planned):
        say(
            f"warning: {model} was measured at {percent:g} % of {kind} only, so it gets no smaller share: "
            f"`ctl profile {model} --device {kind}` measures more shares"
        )
    check_spare_core(made, document, cores, say, accepted=Allowance.ALL_CORES in allowed, spec=parsed)
    if output is not None and (Allowance.VIOLATIONS in allowed or made.verified):
        from controlplane.files.plans import write_plan

        write_plan(output, made)  # before anything is shown: the reader of stdout may have gone
    # With --json, stdout is the plan alone, which `ctl apply` reads.
    print_table: Callable[[RenderableType], None] = _on_stderr if json else show
    if not json:
        show(plan_table(made))
        if compiled():
            say("the planning time includes a compilation; the next plan needs none")
    if previous is not None:
        from controlplane.report.tables.change_table import change_table

        print_table(change_table(previous, made, parsed.workloads))
    if output is not None:
        if Allowance.VIOLATIONS not in allowed:
            refuse_violations(made, document)
        say(f"{output}: written")
    if json:  # last: what fails before prints an error in its place
        print_json(made)
    if made.infeasible:
        raise typer.Exit(InfeasibleError.exit_code)


def _on_stderr(table: RenderableType) -> None:
    warn(plain(table))


def _proof(strategy: str) -> Improve:
    if strategy != "joint":
        raise InputError(f"is for --strategy joint alone, not for {strategy}", field="--prove")
    from controlplane.planning.exact.prove import prove

    return prove

"""`ctl show`: what a plan says, without planning again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import options, wiring
from controlplane.cli.output import answer, say
from controlplane.domain.errors import InputError
from controlplane.domain.plan import Infeasible, Plan
from controlplane.domain.serving import LauncherName, Serving
from controlplane.files.documents import plain
from controlplane.files.plans import read_plan
from controlplane.files.writing import write_text
from controlplane.report.tables.plan_table import plan_table


def show(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="The plan: a file that `ctl plan -o` wrote.")
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(help="In place of PLAN: the section `serve` of this fleet, to paste into its spec."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(help="A workload: why it has its share and batch, beside the alternatives."),
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Another plan: what changes from it to PLAN.")] = None,
    report: options.Report = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the plan here (.svg, .png or .pdf).", callback=options.drawable),
    ] = None,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    json: options.Json = False,
) -> None:
    """Show PLAN as `ctl plan` did, or one workload of it, or what changes; write its page or its figure."""
    if fleet is not None:
        options.refuse("is in place of a plan", {"PLAN": plan})
        _section(fleet, json=json)
        return
    if plan is None:
        raise InputError("name a plan, or a fleet with --fleet", field="PLAN")
    parsed = read_plan(plan)[0]
    if explain is not None:
        _explain(parsed, explain, profiles, json=json)
    elif against is not None:
        _compare(read_plan(against)[0], parsed, json=json)
    else:
        answer(parsed, plan_table(parsed), json=json)
    if plot is not None:
        from controlplane.report.plots import plot_plan

        plot_plan(parsed, plot)
        say(f"{plot}: written")
    if report is not None:
        from controlplane.runtime.jobs.plan import plan_page

        write_text(report, plan_page(parsed, profiles))
        say(f"{report}: written")


def _section(fleet: str, *, json: bool) -> None:
    import yaml

    found, settings = wiring.existing_fleet(fleet)
    following = found.files.following.settings()
    dwell_s = following.dwell_s if following.follow else None
    section = Serving.of(LauncherName(settings.launcher), settings.endpoints, settings.cluster, dwell_s)
    answer({"serve": section}, yaml.safe_dump({"serve": plain(section)}, sort_keys=False).rstrip(), json=json)


def _explain(plan: Plan, workload: str, profiles: Path, *, json: bool) -> None:
    from controlplane.report.tables.explanation_table import explanation_table
    from controlplane.runtime.jobs.plan import explain_workload

    found = explain_workload(plan, workload, profiles)
    infeasible = found if isinstance(found, Infeasible) else None
    document = {
        "workload": workload,
        "explained": found if infeasible is None else (),
        "infeasible": infeasible,
    }
    answer(document, explanation_table(found), json=json)


def _compare(before: Plan, after: Plan, *, json: bool) -> None:
    from controlplane.planning.replan.differences import changes, endings, terms
    from controlplane.report.tables.change_table import change_table

    document = {
        "changes": changes(before, after),
        "endings": endings(before, after),
        "terms": terms(before, after),
    }
    answer(document, change_table(before, after), json=json)

"""`ctl show` and `ctl render`: what a plan says, without planning again; its model repositories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import options
from controlplane.cli.output import answer, say
from controlplane.domain.errors import InputError

if TYPE_CHECKING:
    from controlplane.domain.plan import Plan


def show(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="The plan: a file that `ctl plan -o` wrote.")
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(help="In place of PLAN: the section `serve` of this fleet, to paste into its spec."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(help="A workload: why it has its share and batch, beside the alternatives.")
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Another plan: what changes from it to PLAN.")] = None,
    report: options.Report = None,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    json: options.Json = False,
) -> None:
    """Show PLAN as `ctl plan` did, or one workload of it, or what changes; write its page."""
    from controlplane.files.plans import read_plan
    from controlplane.files.writing import write_text
    from controlplane.report.tables.plan_table import plan_table

    if fleet is not None:
        import yaml

        from controlplane.cli import wiring
        from controlplane.files.documents import plain

        options.refuse("is in place of a plan", {"PLAN": plan})
        section = {"serve": wiring.existing_fleet(fleet)[0].files.section()}
        answer(section, yaml.safe_dump(plain(section), sort_keys=False).rstrip(), json=json)
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
    if report is not None:
        from controlplane.runtime.jobs.plan import plan_page

        write_text(report, plan_page(parsed, profiles))
        say(f"{report}: written")


def _explain(plan: Plan, workload: str, profiles: Path, *, json: bool) -> None:
    from controlplane.domain.plan import Infeasible
    from controlplane.report.tables.plan_table import explanation_table
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
    from controlplane.planning.replan.differences import changes, endings, shadow_changes, terms
    from controlplane.report.tables.change_table import change_table

    document = {
        "changes": changes(before, after),
        "shadows": shadow_changes(before, after),
        "endings": endings(before, after),
        "terms": terms(before, after),
    }
    answer(document, change_table(before, after), json=json)


def render(
    plan: options.PlanFile,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    output: options.Output = options.DEFAULT_OUTPUT,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    manifest: Annotated[
        bool,
        typer.Option(
            "--manifest",
            help="Print PLAN as the Fleet object of a cluster instead, for a repository of manifests.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Write the model repository of each partition of PLAN, as `ctl apply` would; start nothing."""
    from controlplane.files.pinned import PinRules
    from controlplane.files.plans import read_plan
    from controlplane.runtime.fleet.rendering import Place, pinned_plan

    parsed, _ = read_plan(plan)
    if manifest:
        from controlplane.cli.fleet.targets import show_manifest

        show_manifest(fleet, parsed, allow_violations=False, json=json)
        return
    _, rendered = pinned_plan(parsed, repository, Place(output, fleet), PinRules(), {})
    paths = {partition: str(one.path) for partition, one in rendered.items()}
    answer({"partitions": paths}, "\n".join(paths.values()), json=json)

"""`ctl apply` and `ctl diff`: converge a fleet to a plan, or show what that would change."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from controlplane.cli import options
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.output import say_when_compiling


def apply(
    plan: options.PlanFile,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    output: options.Output = options.DEFAULT_OUTPUT,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    given: options.SetServe = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the steps, with -v the servers' commands; change nothing.")
    ] = False,
    yes: options.Yes = False,
    require_quota: Annotated[
        bool, typer.Option("--require-quota", help="Fail where this host cannot enforce shares.")
    ] = False,
    allow: options.Allow = None,
    as_planned: Annotated[
        bool,
        typer.Option("--as-planned", help="Undo the controller's redirects since this plan was applied."),
    ] = False,
    no_controller: options.NoController = False,
    json: options.Json = False,
) -> None:
    """Make the running fleet match PLAN, served as its section `serve` says.

    New servers start and answer a test inference before traffic moves to them; old servers finish their
    requests before they stop. Applying the same plan again keeps the shares to which the controller
    redirected. After an interruption, the next apply continues from what runs. Where a cluster has
    controllers for the fleet, this writes its Fleet object, and they apply it.
    """
    from controlplane.cli.fleet.targets import Wish, target

    allowed = options.allowances(allow)
    if options.Allowance.VIOLATIONS not in allowed:
        say_when_compiling()  # only verify compiles
    interactive = not dry_run and not yes and not json and sys.stdin.isatty()
    wish = Wish(
        plan=plan,
        fleet=fleet,
        repository=repository,
        profiles=profiles,
        output=output,
        given=tuple(given or ()),
        allowed=allowed,
        require_quota=require_quota,
        as_planned=as_planned,
        controlled=not no_controller,
        confirmed=interactive,
        yes=yes,
    )
    found = target(wish)
    if dry_run:
        found.preview(json=json)
    elif not interactive or found.agreed():
        found.change(json=json)


def diff(
    plan: options.PlanFile,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    output: options.Output = options.DEFAULT_OUTPUT,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    given: options.SetServe = None,
    json: options.Json = False,
) -> None:
    """Show the steps with which `ctl apply PLAN` would change the running fleet.

    -v adds the servers' commands, which --json always has. Exit code 1: something would change.
    """
    from controlplane.cli.fleet.targets import Wish, target

    everything = frozenset(options.Allowance)
    wish = Wish(plan, fleet, repository, profiles, output, tuple(given or ()), everything)
    if target(wish).preview(json=json):
        raise typer.Exit(EXIT_NO)

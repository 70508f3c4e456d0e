"""`ctl diff`: what an apply of a plan would change."""

from __future__ import annotations

import typer

from controlplane.cli import options
from controlplane.cli.endings import EXIT_NO
from controlplane.cli.fleet.targets import Wish, target
from controlplane.cli.options import Allowance
from controlplane.domain.fleet import Cluster
from controlplane.runtime.fleet.preflight import FollowOptions


def diff(
    plan: options.PlanFile,
    repository: options.Repository = options.DEFAULT_REPOSITORY,
    profiles: options.Profiles = options.DEFAULT_PROFILES,
    output: options.Output = options.DEFAULT_OUTPUT,
    launcher: options.Launcher = None,
    context: options.Context = None,
    namespace: options.Namespace = None,
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Show the steps and the servers' commands with which `ctl apply PLAN` would change the running fleet.

    Exit code 1: something would change. This is `ctl apply --dry-run` with an answer for scripts.
    """
    nothing = FollowOptions(None, None, None, all_cores=True)
    wish = Wish(
        plan,
        fleet,
        repository,
        profiles,
        output,
        launcher,
        Cluster(context, namespace),
        {},
        nothing,
        frozenset(Allowance),
    )
    if target(wish).preview(json=json):
        raise typer.Exit(EXIT_NO)

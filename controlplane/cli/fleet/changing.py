"""`ctl redirect`, `ctl rollback` and `ctl destroy`: change a fleet without a new plan."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.output import answer


def redirect(
    workload: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD", help="The workloads to move.", autocompletion=completers.workloads
        ),
    ],
    fleet: options.Fleet = options.DEFAULT_FLEET,
    json: options.Json = False,
) -> None:
    """Route each WORKLOAD from its active server to its shadow, or back.

    Other workloads of the same partition move too. Requests in flight finish on the server that has them.
    """
    from controlplane.cli import cluster, wiring
    from controlplane.runtime.fleet.fleet import redirect as redirected

    cluster.by_leader(wiring.fleet_files(fleet), "redirect", *workload, *(("--json",) if json else ()))
    found, settings = wiring.existing_fleet(fleet)
    routes = redirected(found, workload, settings)
    lines = [f"{endpoint} -> {', '.join(route.members)}" for endpoint, route in sorted(routes.items())]
    document = {"fleet": fleet, "routes": {e: list(r.members) for e, r in routes.items()}}
    answer(document, "\n".join(lines), json=json)


def rollback(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    yes: options.Yes = False,
    no_controller: options.NoController = False,
    json: options.Json = False,
) -> None:
    """Apply again the plan that ran before the present one."""
    from controlplane.cli import cluster, wiring
    from controlplane.cli.fleet import outcomes
    from controlplane.cli.output import say
    from controlplane.domain.serving import differences
    from controlplane.report.tables.change_table import terms_line
    from controlplane.runtime.fleet import controller_process, preflight
    from controlplane.runtime.fleet.execute import describe

    if (kept := cluster.kept_fleet(wiring.fleet_files(fleet))) is not None:
        outcomes.show_report(fleet, kept.rollback(), json=json)
        return
    found, settings = wiring.existing_fleet(fleet)
    request, known = found.previous(), found.files.following.settings()
    follow = known
    if request.plan.spec is not None:
        follow = preflight.checked_follow(found.files, request.plan, say, all_cores=known.all_cores)
    changed = differences(settings.section(known), request.settings.section(follow))
    if not yes and not json and sys.stdin.isatty():
        steps = [*describe(found.preview(request)), *outcomes.lines(changed)]
        print("\n".join(steps) or "nothing to do")
        if steps and not options.agreed("Go on?"):
            return
    else:
        outcomes.say_or_refuse(changed, accepted=yes)
    serving = controller_process.left_alone if no_controller else controller_process.left_running
    with serving(found.files):
        outcome = found.apply(replace(request, controlled=not no_controller))
        if follow != known:
            found.files.following.write(follow)
    servers = f"fleet {fleet}: {len(outcome.servers)} servers"
    done = outcomes.converged(fleet, outcome)
    answer(done, servers if outcome.actions else terms_line(outcome.terms), json=json)


def destroy(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Drain and stop all servers of a fleet, its gateway and its controller.

    The fleet's history is kept: `ctl events` shows it. A second `ctl destroy` does nothing.
    """
    from controlplane.cli import cluster, wiring
    from controlplane.runtime.fleet import controller_process, history

    kept = cluster.kept_fleet(wiring.fleet_files(fleet))
    found = None if kept is not None else wiring.fleet_to_end(fleet)
    if kept is None and found is None:
        before = f"nothing is left of it: it was destroyed before (`ctl events --fleet {fleet}`)"
        answer({"fleet": fleet, "destroyed": False}, f"fleet {fleet}: {before}", json=json)
        return
    if not yes and not options.agreed(f"Drain and stop fleet {fleet!r}?"):
        raise typer.Exit(0)
    if kept is not None:
        kept.destroy()
    elif found is not None:
        controller_process.stop(found.files)
        history.destroy(found)
    answer({"fleet": fleet, "destroyed": True}, f"fleet {fleet}: destroyed", json=json)

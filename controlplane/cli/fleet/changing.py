"""`ctl redirect`, `rollback`, `destroy` and `controller`: change a fleet without a new plan, or repair it."""

from __future__ import annotations

import sys
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli import completers, options
from controlplane.cli.output import answer, print_json_line, warn


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
    from controlplane.cli.fleet import targets
    from controlplane.cli.output import say
    from controlplane.domain.serving import differences
    from controlplane.report.tables.change_table import terms_line
    from controlplane.runtime.fleet import controller_process, preflight
    from controlplane.runtime.fleet.execute import describe

    if (kept := cluster.kept_fleet(wiring.fleet_files(fleet))) is not None:
        targets.show_report(fleet, kept.rollback(), json=json)
        return
    found, settings = wiring.existing_fleet(fleet)
    request, known = found.previous(), found.files.following.settings()
    follow = known
    if request.plan.spec is not None:
        follow = preflight.checked_follow(found.files, request.plan, say, all_cores=known.all_cores)
    changed = differences(settings.section(known), request.settings.section(follow))
    if not yes and not json and sys.stdin.isatty():
        steps = [*describe(found.preview(request)), *targets.changed_lines(changed)]
        print("\n".join(steps) or "nothing to do")
        if steps and not options.agreed("Go on?"):
            return
    else:
        targets.say_or_refuse(changed, accepted=yes)
    serving = controller_process.left_alone if no_controller else controller_process.left_running
    with serving(found.files):
        outcome = found.apply(replace(request, controlled=not no_controller))
        if follow != known:
            found.files.following.write(follow)
    servers = f"fleet {fleet}: {len(outcome.servers)} servers"
    done = targets.converged(fleet, outcome)
    answer(done, servers if outcome.actions else terms_line(outcome.terms), json=json)


def destroy(
    fleet: options.Fleet = options.DEFAULT_FLEET, yes: options.Yes = False, json: options.Json = False
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


def controller(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    once: Annotated[bool, typer.Option("--once", help="Repair what is broken, then exit; for cron.")] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Print what would be done; change nothing.")
    ] = False,
    host: Annotated[str, typer.Option(help="The address of /healthz and /metrics.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port of /healthz and /metrics; 0 switches them off.", min=0, max=65535)
    ] = 0,
    elected: Annotated[
        bool,
        typer.Option(
            "--elected",
            help="In a pod: apply the plan of the fleet's Fleet object, while this replica is the leader.",
        ),
    ] = False,
    repository: Annotated[
        Path | None,
        typer.Option(help="With --elected: the folder where the pod mounts the volume of TRISECT_MODELS."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the events on stdout, one JSON document a line.")
    ] = False,
) -> None:
    """Run the controller of a fleet: redirect from slow and dead servers to shadows, and replace them.

    A fleet has one controller; `ctl apply` starts it in the background. Events are JSON lines on stderr, or
    on stdout with --json.
    """
    from controlplane.cli import cluster, wiring

    show = print_json_line if json else lambda event: warn(dumps(event))
    options.refuse("is for --elected", {} if elected else {"--repository": repository})
    if elected:
        refused = {"--once": once or None, "--plan-only": plan_only or None}
        options.refuse("is not for --elected", refused)
        cluster.lead(fleet, show, repository or options.DEFAULT_REPOSITORY, host=host, port=port)
        return
    wiring.serve(fleet, show, once=once, plan_only=plan_only, host=host, port=port)

"""`ctl rollback`: return to the previous plan."""

from __future__ import annotations

import sys
from dataclasses import replace

from controlplane.cli import cluster, options, wiring
from controlplane.cli.fleet import committed
from controlplane.cli.fleet.committed import converged
from controlplane.cli.output import answer
from controlplane.report.tables.change_table import terms_line
from controlplane.runtime.fleet import controller_process
from controlplane.runtime.fleet.execute import describe


def rollback(
    fleet: options.Fleet = options.DEFAULT_FLEET,
    yes: options.Yes = False,
    no_serve: options.NoServe = False,
    json: options.Json = False,
) -> None:
    """Apply again the plan that ran before the present one."""
    if (kept := cluster.kept_fleet(wiring.fleet_files(fleet))) is not None:
        committed.show_report(fleet, kept.rollback(), json=json)
        return
    found, _ = wiring.existing_fleet(fleet)
    if not yes and not json and sys.stdin.isatty():
        steps = describe(found.preview(found.previous()))
        print("\n".join(steps) or "nothing to do")
        if steps and not options.agreed("Go on?"):
            return
    serving = controller_process.left_alone if no_serve else controller_process.left_running
    with serving(found.files):
        outcome = found.apply(replace(found.previous(), controlled=not no_serve))
    servers = f"fleet {fleet}: {len(outcome.servers)} servers"
    answer(converged(fleet, outcome), servers if outcome.actions else terms_line(outcome.terms), json=json)
